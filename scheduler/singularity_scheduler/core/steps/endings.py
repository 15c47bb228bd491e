"""How sessions end, whoever or whatever ends them. Part of `decide` (see `policy`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state import checkpoints, queue
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import (
    DeviceEvent,
    DeviceState,
    ProcessEvent,
    ProcessState,
)

from . import groups
from .goals import condition_of


def command_end(draft: Draft, view: SessionView, reason: Reason, rule: str) -> None:
    """Tell the agent to remove everything of a session; it may be told so any number of times. The
    node that has its kernel connection is told too."""
    for node in dict.fromkeys((view.node, view.origin or view.node)):
        draft.actions.append(
            ev.End(view.id, node, reason, rule, view.epoch, view.seq, grace_s=view.grace_s)
        )


def finish(
    draft: Draft,
    view: SessionView,
    event: ProcessEvent,
    reason: Reason,
    rule: str,
    *,
    exit_code: int | None = None,
) -> SessionView:
    """Let a session end: final at once, its devices stay leased until the agent confirms."""
    began = view.process_state not in (ProcessState.QUEUED, ProcessState.STARTING)
    rollback = view.process_state is not ProcessState.SUSPENDED
    completed = event is ProcessEvent.COMPLETE
    view = checkpoints.ended(draft, view, completed)
    if began:
        reason = checkpoints.undo_reason(draft, view, reason, completed)
    # Whether it would be older than it was, should its end be taken back.
    view = replace(stay(view), held_by=None, rollback=rollback and view.part is None)
    if view.pending:  # its node has nothing of it
        return draft.step(queue.freed(view), event, reason, rule, ended=True)
    view = draft.quiet_step(
        replace(queue.freed(view), devices=view.devices, resizing=view.resizing),
        event,
        exit_code=exit_code,
    )
    if view.device_state is not DeviceState.NONE:
        view = draft.quiet_step(view, DeviceEvent.RELEASE)
    view = draft.note(view, reason, rule)
    command_end(draft, view, reason, rule)
    return view


def stay(view: SessionView) -> SessionView:
    """`view` without anything that was to happen with it in or behind the store."""
    return replace(
        view,
        called=False,
        target="",
        target_cluster="",
        moving=False,
        restore_from="",
        rollback=False,
        undo=False,
        unwind=False,
        leaving=None,
        lost=False,
        came_from="",
        retrying=False,
    )


def start_failed(draft: Draft, event: ev.StartFailed) -> None:
    view = draft.get(event.session)
    if view and view.process_state is ProcessState.STARTING:
        finish(draft, view, ProcessEvent.FAIL, run_reasons.start_failed(event.sentence), "start")


def end_all(draft: Draft, views: Iterable[SessionView], by: str, why: str, grace_s: float) -> None:
    """Somebody ends these sessions, none of which has ended."""
    for view in views:
        step, reason = run_reasons.closed(view, by, why)
        finish(draft, replace(view, grace_s=grace_s), step, reason, "user.end")


def _end_with_group(
    draft: Draft, views: Iterable[SessionView], why: Reason, grace_s: float
) -> None:
    """End these members of a group, none of which has ended."""
    for view in views:
        ending, reason = replace(view, grace_s=grace_s), run_reasons.cancelled_with_group(why)
        finish(draft, ending, ProcessEvent.CANCEL, reason, "user.end")


def late_groups(state: ClusterState, now: float) -> list[str]:
    """Groups that have not ended although their time is over."""
    found = []
    for group, known in state.groups.items():
        first = state.sessions[known.anyone]
        limit = first.member.timeout_s if first.member else None
        if limit is not None and now >= first.created_at + limit:
            found.append(group)
    return found


def group_late(draft: Draft, event: ev.GroupLate) -> None:
    """All of a group that has not ended is ended."""
    for view in groups.members(draft, event.group):
        limit = view.member.timeout_s if view.member else None
        if limit is not None and draft.now >= view.created_at + limit:
            _end_with_group(draft, [view], run_reasons.group_late(limit), view.grace_s)


def stop_groups(draft: Draft) -> None:
    """A member that failed in this decision ends the others, where that is asked for."""
    for view in list(draft.changed.values()):
        member, old = view.member, draft.state.sessions.get(view.id)
        if member is None or not member.stop_on_failure:
            continue
        if view.process_state is ProcessState.FAILED and not (old and old.final):
            others = groups.members(draft, member.group)
            failed = run_reasons.member_failed(view, member)
            _end_with_group(draft, others, failed, view.grace_s)


def stop_reached_groups(draft: Draft) -> None:
    """A member whose recorded values meet the condition of its group ends the others, once; it
    goes on itself, to store what it found, or has completed."""
    for sid in list(draft.changed):
        view, old = draft.changed[sid], draft.state.sessions.get(sid)
        member = view.member
        if member is None or not member.stop_when or member.reached:
            continue
        if view.final and view.process_state is not ProcessState.COMPLETED:
            continue
        if old is not None and old.recorded == view.recorded:
            continue
        condition, values = condition_of(member.stop_when), json.loads(view.recorded)
        assert condition is not None, f"{sid} has no condition: {member.stop_when}"
        others = [one for one in groups.members(draft, member.group) if one.id != sid]
        if not condition.met(values) or any(o.member and o.member.reached for o in others):
            continue
        why = run_reasons.figure_in(condition.name, values[condition.name], member)
        draft.put(_reached(view, sid, why))
        ending = [_reached(one, sid, why) for one in others]
        met = run_reasons.condition_met(why, str(condition))
        _end_with_group(draft, ending, met, view.grace_s)


def _reached(view: SessionView, by: str, why: Reason) -> SessionView:
    assert view.member is not None
    return replace(view, member=replace(view.member, reached=by, reached_why=why))


def ended(draft: Draft, event: ev.Ended) -> None:
    view = draft.get(event.session)
    if view is None or not view.final or event.node not in ("", view.node):
        return
    exit_code = event.exit_code if view.exit_code is None else view.exit_code
    view = replace(view, ended=True, exit_code=exit_code)
    if view.device_state is DeviceState.PARKING:
        draft.step(queue.freed(view), DeviceEvent.FREED, view.why, "process.ended")
    else:
        draft.put(view)
