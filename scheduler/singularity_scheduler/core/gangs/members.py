"""Gangs: the sessions that run one program together, one on each of several nodes. Pure.

Each of them is a *part*: a run with devices, processes and a node of its own, which its scheduler
may park like any other. But a part is of use only while the others go on too. So they start, get
devices, are paused, begin again and end together (`gang_steps`, `turns`). Here is what is to
be known of a gang, and what is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from singularity_proxy.errors import Conflict, Unsupported

from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Part
from singularity_scheduler.core.values.states import DeviceState, ProcessState

if TYPE_CHECKING:
    from singularity_scheduler.core.state.draft import Draft

HAS = (DeviceState.ATTACHING, DeviceState.HELD, DeviceState.RESIZING)
"""Device states of a part that has devices and is to keep them."""


def parts(draft: Draft, part: Part) -> list[SessionView]:
    """Those of a gang that have not ended, by their numbers."""
    views = (draft.get(session) for session in part.sessions)
    return [view for view in views if view is not None and not view.final]


def together(draft: Draft, view: SessionView) -> list[SessionView]:
    """Whom it concerns what is asked of this session: all parts of its gang that have not ended;
    itself alone if it is no part."""
    return parts(draft, view.part) if view.part is not None else [view]


def others(draft: Draft, view: SessionView) -> list[SessionView]:
    """The other parts of its gang that have not ended; [] if it is no part."""
    return [other for other in together(draft, view) if other.id != view.id]


def whole(draft: Draft, view: SessionView) -> bool:
    """Whether no part of its gang has ended; always, if it is no part."""
    return view.part is None or len(parts(draft, view.part)) == view.part.parts


def elsewhere(draft: Draft, view: SessionView) -> set[str]:
    """Where the other parts of its gang are: it goes to none of these nodes."""
    return {other.node for other in others(draft, view)}


def queued_with(draft: Draft, nodes: Collection[str]) -> set[str]:
    """Where other parts of the gangs wait to be started that do so on these nodes: what changes
    here may let them start, or let others pass them, there."""
    known = [draft.state.nodes[node] for node in nodes if node in draft.state.nodes]
    ids = [*draft.changed, *(sid for node in known for sid in node.parts)]
    views = (draft.get(sid) for sid in ids)
    here = [v for v in views if v is not None and v.part and v.pending and v.node in nodes]
    return {node for view in here for node in elsewhere(draft, view)}


def goes_back(view: SessionView) -> bool:
    """Whether a part gives up what it is, to go on from a set or from its beginning."""
    return view.part is not None and view.rollback and not view.unwind


# -- what cannot be done --------------------------------------------------------------------


def place(part: Part) -> dict[str, int]:
    """Return which part of how many this is, as arguments of a reason."""
    return {"part": part.number, "parts": part.parts}


def stays(view: SessionView) -> Reason | None:
    """Return why it cannot be put into the store or go elsewhere by itself; None: it is no part."""
    if view.part is None:
        return None
    return because("stored_as_a_whole", **place(view.part))


def refuse_part(view: SessionView) -> None:
    """`Unsupported` when the session is a part, for what would store or move it alone."""
    if why := stays(view):
        raise refuse(Unsupported, because("part_stays", who=view.label, why=why), session=view.id)


def require_standing(
    draft: Draft, view: SessionView, views: list[SessionView], what: str = "suspended"
) -> None:
    """`Conflict` unless the ranks of all parts can be stopped together."""
    assert view.part is not None
    why: Reason | None = None
    if len(views) < view.part.parts:
        why = because("part_has_ended")
    for one in views:
        there = one.process_state is ProcessState.LIVE and one.leaving is None
        if not why and not (there and one.device_state is DeviceState.HELD):
            assert one.part is not None
            why = because("part_is", part=one.part.number, node=one.node, word=one.word)
    if why:
        raise refuse(
            Conflict,
            because("gang_not_standing", who=view.label, what=what, why=why),
            session=view.id,
        )


# -- who may start, who may have devices ----------------------------------------------------


def may_start(draft: Draft, views: list[SessionView]) -> bool:
    """Whether these parts, which are all of their gang, could be started as soon as there is room:
    otherwise nobody waits for them."""
    first = views[0].part if views else None
    if first is None or len(views) < first.parts:
        return False
    return all(
        view.pending
        and not view.held_back
        and draft.node(view.node).connected
        and draft.duty(view.node).duty is NodeDuty.OPEN
        and view.needs <= len(draft.usable(view.node))
        for view in views
    )


def may_have_devices(draft: Draft, views: list[SessionView]) -> bool:
    """Whether all of these parts, which are all of their gang that have not ended, can be given
    what they wait for: otherwise nothing is kept for any of them."""
    return all(view.device_state in HAS or _is_ready(draft, view) for view in views)


def _is_ready(draft: Draft, view: SessionView) -> bool:
    waits = view.process_state is ProcessState.LIVE and view.device_state is DeviceState.WAITING
    if not waits or view.held_back or view.leaving is not None:
        return False
    if not draft.node(view.node).connected or draft.duty(view.node).leaving:
        return False
    return view.needs <= len(draft.usable(view.node))
