"""Groups: sessions that were submitted together, such as the runs of a sweep. Pure.

A group competes as one. It has one place in the queue: only one of its members that were not
started yet stands there by when it came, and the others stand behind everybody of their tier and
priority. When that member starts, the next one gets a place, as if it had come just now. So who
comes later waits for one member, however many there are. And what its started members attained
together counts for each of them, where attained service decides who has devices (see `turns`).

At most `Member.max_parallel` of them are started at a time; one that is parked or in the store is
started and has not ended.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Member

if TYPE_CHECKING:
    from singularity_scheduler.core.state.draft import Draft


@dataclass
class Group:
    """The active members of one group; kept by `ClusterState`."""

    started: set[str] = field(default_factory=set)
    in_line: set[str] = field(default_factory=set)
    """Not started, and with a place in the queue."""
    behind: list[tuple[int, str]] = field(default_factory=list)
    """(number, session) of those that are not started and have none, sorted."""

    @property
    def anyone(self) -> str:
        """One of them; what holds for the group is with each."""
        return self.behind[0][1] if self.behind else next(iter(self.in_line or self.started))

    @property
    def members(self) -> list[str]:
        """All of them; those that were not started first."""
        return [*(sid for _, sid in self.behind), *sorted(self.in_line), *sorted(self.started)]


def enter(groups: dict[str, Group], view: SessionView) -> None:
    """A member is in the state; called by `ClusterState`."""
    assert view.member is not None
    group = groups.setdefault(view.member.group, Group())
    if _started(view):
        group.started.add(view.id)
    elif view.behind:
        insort(group.behind, (view.member.number, view.id))
    elif view.pending:
        group.in_line.add(view.id)


def leave(groups: dict[str, Group], view: SessionView) -> None:
    """It is not in the state any more as it was; called by `ClusterState`."""
    assert view.member is not None
    group = groups[view.member.group]
    if _started(view):
        group.started.discard(view.id)
    elif view.behind:
        group.behind.remove((view.member.number, view.id))
    elif view.pending:
        group.in_line.discard(view.id)
    if not (group.started or group.in_line or group.behind):
        del groups[view.member.group]


def _started(view: SessionView) -> bool:
    return not (view.pending or view.final)


# -- as a decision leaves them --------------------------------------------------------------


def members(draft: Draft, group: str) -> list[SessionView]:
    """Its members that have not ended; those that were not started first."""
    known = draft.state.groups.get(group, Group())
    ids = dict.fromkeys([*known.members, *_changed(draft, group)])
    return [view for sid in ids if (view := draft.get(sid)) is not None and not view.final]


def running(draft: Draft, group: str) -> int:
    """How many of its members are started and have not ended."""
    changed = _changed(draft, group)
    known = draft.state.groups.get(group, Group())
    kept = sum(sid not in draft.changed for sid in known.started)
    return kept + sum(map(_started, changed.values()))


def full(draft: Draft, member: Member) -> bool:
    """Whether as many of its group are started as may be at once."""
    most = member.max_parallel
    return most is not None and running(draft, member.group) >= most


def line_up(draft: Draft, group: str) -> None:
    """Give the next member a place in the queue if none has one that it can use."""
    changed = _changed(draft, group)
    known = draft.state.groups.get(group, Group())
    kept = (draft.state.sessions[sid] for sid in known.in_line if sid not in draft.changed)
    for view in (*kept, *changed.values()):
        if view.pending and not view.behind and not view.held_back:
            return
    waiting = [
        *(draft.state.sessions[sid] for _, sid in known.behind if sid not in draft.changed),
        *(view for view in changed.values() if view.behind),
    ]
    free = (view for view in waiting if not view.held_back)
    found = min(free, key=lambda view: view.member.number if view.member else 0, default=None)
    if found is not None:
        draft.put(replace(found, queue_order=draft.next_order()))


def settle(draft: Draft) -> None:
    """Let a member line up for each that left the queue in this decision, however that was."""
    for group in dict.fromkeys(v.member.group for v in draft.changed.values() if v.member):
        line_up(draft, group)


def left(draft: Draft) -> bool:
    """Whether this decision lets more members of a group start."""
    return any(
        view.member is not None
        and view.member.max_parallel is not None
        and view.final
        and (old := draft.state.sessions.get(view.id)) is not None
        and not old.final
        for view in draft.changed.values()
    )


def _changed(draft: Draft, group: str) -> dict[str, SessionView]:
    found = draft.changed.items()
    return {sid: v for sid, v in found if v.member is not None and v.member.group == group}
