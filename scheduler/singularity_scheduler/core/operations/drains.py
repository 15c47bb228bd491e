"""Nodes that get nothing new, and nodes that everything leaves. Part of `decide` (see `policy`).

A drain takes what is there off in the order of tier and priority, a few at a time: everything of a
session goes to the store, and it comes back on another node that has room, at once or as soon as
there is one. What cannot be stored is parked and stays, and the drain is not over; only one by
force ends it, and says so. Every step is found anew from what is durable, so a restart of the
service goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason, Words, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import endings
from singularity_scheduler.core.values.administration import (
    DutyAsked,
    DutyEvent,
    NodeDuty,
    NodeMark,
    NoticeGiven,
    next_duty,
)
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.reports import NodeJoined
from singularity_scheduler.core.values.states import DeviceState, ProcessState

AT_ONCE = 4
"""How many sessions leave a node at the same time: its disk and network are shared, and those of a
higher tier are to be safe first."""

LEAVE_RETRY_S = 30.0
"""Seconds before a session that could not be stored is asked to leave again."""

_RULES = {
    DutyEvent.CORDON: "node.cordoned",
    DutyEvent.DRAIN: "node.drain",
    DutyEvent.EMPTY: "node.drained",
    DutyEvent.FILLED: "node.drain",
    DutyEvent.UNCORDON: "node.opened",
    DutyEvent.UNDRAIN: "node.opened",
}


# -- what is asked --------------------------------------------------------------------------


def asked(draft: Draft, event: DutyAsked) -> None:
    """An administrator (or an upgrade) says what a node is used for."""
    node = placement.named(draft.state, event.node)
    if event.event is DutyEvent.DRAIN and not (event.notice or event.force or event.store):
        _refuse_homeless(draft, node.id)
    change(
        draft,
        node.id,
        event.event,
        event.by,
        event.reason,
        deadline=event.deadline,
        notice=event.notice,
        force=event.force,
    )


def _refuse_homeless(draft: Draft, node_id: str) -> None:
    """`Conflict` when the node has sessions that no other node could ever take as things are."""
    if draft.duty(node_id).leaving or draft.node(node_id).abilities.trouble:
        return  # it is said already, or they stay there
    others = [other for other in sorted(draft.state.nodes) if other != node_id]
    homeless: list[tuple[SessionView, Reason]] = []
    for view in left_on(draft, node_id):
        if view.part is not None:
            continue  # it stays there and is parked
        whys = [placement.barred(draft, view, other) for other in others]
        if all(whys):
            told = obstacles.several(why for why in whys if why is not None)
            homeless.append((view, told or because("no_other_node")))
    if homeless:
        first, why = homeless[0]
        more = len(homeless) - 1
        raise refuse(
            Conflict,
            because("homeless", node=node_id, who=first.label, more=more, why=why),
            node=node_id,
            sessions=[view.id for view, _ in homeless],
        )


def noticed(draft: Draft, event: NoticeGiven) -> None:
    """The machine goes away; said by itself, so it is never refused."""
    if event.node in draft.state.nodes:
        reason = because("machine_goes")
        change(draft, event.node, DutyEvent.DRAIN, "", reason, deadline=event.deadline, notice=True)


def change(
    draft: Draft,
    node_id: str,
    event: DutyEvent,
    by: str,
    reason: Words,
    *,
    deadline: float | None = None,
    notice: bool = False,
    force: bool = False,
) -> NodeMark:
    """Take one step of the table of duties; `Conflict` when there is none."""
    before = draft.duty(node_id)
    duty = next_duty(before.duty, event, node_id)
    kept = event in (DutyEvent.EMPTY, DutyEvent.FILLED)
    agent = draft.node(node_id).abilities
    mark = (
        replace(before, duty=duty)
        if kept
        else NodeMark(node_id, duty, by, reason, draft.now, deadline, notice, force, agent.instance)
    )
    draft.duties[node_id] = mark
    rule = mark.rule if event is DutyEvent.DRAIN else _RULES[event]
    draft.order(by, event.value, node_id, before.duty.value, duty.value, mark.reason, rule)
    return mark


def joined(draft: Draft, event: NodeJoined) -> None:
    """A machine that had to go is back as a new one: it is used again."""
    mark = draft.duty(event.node)
    new = bool(mark.instance and event.abilities.instance not in ("", mark.instance))
    if mark.leaving and mark.notice and new and draft.now >= (mark.deadline or 0.0):
        change(draft, event.node, DutyEvent.UNDRAIN, "", because("machine_is_back"))


# -- what follows ---------------------------------------------------------------------------


def proceed(draft: Draft, nodes: Iterable[str]) -> None:
    """Take what is to leave these nodes a step further."""
    for node_id in sorted(nodes):
        mark = draft.duty(node_id)
        if mark.duty is not NodeDuty.OPEN:
            _requeue(draft, node_id, mark)
        if mark.leaving:
            _advance(draft, node_id, mark)


def left_on(draft: Draft, node_id: str) -> list[SessionView]:
    """The sessions of which the node has something, in the order in which they leave."""
    return sorted(filter(is_there, _of(draft, node_id)), key=_order)


def is_there(view: SessionView) -> bool:
    """Whether its node has its process, or gets or loses it just now."""
    return not view.ended and view.process_state not in (
        ProcessState.QUEUED,
        ProcessState.SUSPENDED,
    )


def _order(view: SessionView) -> tuple[int, int, str]:
    return (-view.tier.rank, -view.priority.rank, view.id)


def _of(draft: Draft, node_id: str) -> list[SessionView]:
    known = draft.state.nodes.get(node_id)
    ids = {*(known.sessions if known else ()), *draft.changed}
    views = (draft.get(sid) for sid in sorted(ids))
    return [view for view in views if view is not None and view.node == node_id]


def _requeue(draft: Draft, node_id: str, mark: NodeMark) -> None:
    """Runs that were not started there yet wait on another node, if one can take them."""
    for view in _of(draft, node_id):
        if not view.pending:
            continue
        other = placement.choose_elsewhere(draft, view)
        if other is None:
            continue
        draft.note(replace(view, node=other), move_reasons.requeued(other, mark), "node.drain")


def _advance(draft: Draft, node_id: str, mark: NodeMark) -> None:
    there = left_on(draft, node_id)
    if not there and mark.duty is NodeDuty.DRAINING:
        change(draft, node_id, DutyEvent.EMPTY, "", mark.reason)
    elif there and mark.duty is NodeDuty.DRAINED:
        mark = change(draft, node_id, DutyEvent.FILLED, "", mark.reason)
    if not draft.node(node_id).connected:
        return
    under_way = sum(v.process_state is ProcessState.SUSPENDING or _is_told(v) for v in there)
    for view in there:
        if view.process_state is not ProcessState.LIVE or _is_told(view):
            continue
        if why := _cannot_leave(draft, view):
            _stuck(draft, view, mark, why)
        elif under_way < AT_ONCE:
            under_way += 1
            _leave(draft, view, mark)


def _is_told(view: SessionView) -> bool:
    return view.process_state is ProcessState.LIVE and view.leaving is not None


def _cannot_leave(draft: Draft, view: SessionView) -> Words:
    """Return why it cannot be put into the store now, in the words of its node where that says so;
    "": it can."""
    if why := gangs.stays(view):
        return why
    if trouble := draft.node(view.node).abilities.trouble:
        return trouble
    failed = view.leave_failed
    return failed[1] if failed and draft.now - failed[0] < LEAVE_RETRY_S else ""


def _leave(draft: Draft, view: SessionView, mark: NodeMark) -> None:
    wants = replace(view, wants=placement.waiting_for_device(view))
    nodes = placement.candidates(draft, replace(wants, target="", target_cluster=""))
    moves_on = any(not placement.no_room(draft, wants, n) for n in nodes if n != view.node)
    # A notebook that rests comes back with its next request; what works goes on when it can.
    called = (moves_on or not view.idle) and not view.held_back
    reason = move_reasons.drained(mark, moves_on, called)
    if mark.notice:
        reason = move_reasons.leaves_in_time(reason, view, mark, draft.now)
    view = replace(
        view,
        called=called,
        moving=moves_on and called,
        unwind=called,
        target="",
        target_cluster="",
        restore_from="",
    )
    moves.leave(draft, view, reason, mark.rule)


def _stuck(draft: Draft, view: SessionView, mark: NodeMark, why: Words) -> None:
    """It can neither move nor be stored."""
    if mark.force and (mark.deadline is None or draft.now >= mark.deadline):
        told = run_reasons.drained_by_force(mark.node, why)
        step, reason = run_reasons.closed(view, mark.by or None, told)
        endings.finish(draft, view, step, reason, "node.drain")
        return
    reason = move_reasons.stays(mark, why)
    if view.device_state is DeviceState.HELD and draft.now >= view.rests_until:
        queue.park(draft, view, reason, "node.drain", wants=not view.idle and not view.held_back)
    elif view.why != reason and view.device_state in (DeviceState.NONE, DeviceState.PARKED):
        draft.note(view, reason, "node.drain")
