"""A node that is gone: what it ran goes on elsewhere from its last checkpoint. Pure.

A node whose leases have run out has given up its devices and stopped the sessions that could be
started elsewhere (`NodeLost.stopped`), so what the store has may be started elsewhere.
If it comes back before that has happened, its sessions simply go on; if it comes back later, its
agent is told to end what it still has of them (`nodes.joined`). So a session waits for its node as
long as it would lose by going on elsewhere, within limits. A notebook without a checkpoint waits
without one: silence is no proof of its end, but for a machine that was to be taken back by now. A
run without one has failed when the limit is over, because somebody may wait for its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from singularity_scheduler.core.gangs import retries as gang_retries
from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.state.cluster import Node
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind
from singularity_scheduler.core.values.states import (
    ProcessEvent,
    ProcessState,
)

from . import endings, retries

_NOT_LOST = (ProcessState.STARTING, ProcessState.SUSPENDED)


def node_lost(draft: Draft, event: ev.NodeLost) -> None:
    """Where no other node is there to take its sessions, everything waits for it to come back:
    then nothing is lost at all."""
    known = draft.state.nodes.get(event.node)
    if known is None:
        return
    if known.connected:
        draft.set_node(event.node, connected=False)
    others = [n for n in draft.state.nodes.values() if n.connected and n.id != event.node]
    if not others:
        return
    mark = draft.duty(event.node)
    taken_back = mark.notice and mark.deadline is not None and draft.now >= mark.deadline
    for sid in sorted(known.sessions):
        view = draft.state.sessions[sid]
        if view.pending:
            _queue_elsewhere(draft, view)
        elif event.stopped and event.hopeless and view.process_state is ProcessState.STARTING:
            # Nobody will ever say whether its process ran, and others may wait for it (a gang).
            view = draft.quiet_step(view, ProcessEvent.LIVE, **retries.begun(view, draft.now))
            if not _begin_elsewhere(draft, view, event):
                _fail(draft, view, event.silent_s)
        elif not event.stopped or view.final or view.process_state in _NOT_LOST:
            continue
        elif _whole(draft, view) and (event.hopeless or _could_go(draft, view, others)):
            # What is stored waits in the store, also when nobody can take it as things are.
            if event.hopeless or _would_lose_s(draft, view, event.silent_s) <= event.silent_s:
                lose(draft, view, event.silent_s)
        elif _begin_elsewhere(draft, view, event):
            continue
        elif event.hopeless and view.kind is Kind.INTERACTIVE and not taken_back:
            _wait_for_node(draft, view)
        elif event.hopeless:
            _fail(draft, view, event.silent_s)


def _wait_for_node(draft: Draft, view: SessionView) -> None:
    """A notebook that is nowhere but on a silent node: its variables may well be there still, and
    somebody is there to say when they are given up."""
    if not view.lost:
        draft.note(replace(view, lost=True), move_reasons.waits_for_node(view), "node.lost")


def _whole(draft: Draft, view: SessionView) -> bool:
    """Whether there is something it can come back from (a fork under way: its source's; a part of a
    gang: a set, with the others)."""
    if view.part is not None:
        return gang_retries.newest(draft, view) is not None
    return view.newest_whole is not None or bool(view.source and view.restore_from)


def _would_lose_s(draft: Draft, view: SessionView, silent_s: float) -> float:
    """Seconds of work between its newest checkpoint and the end of its node. While they are more
    than it has waited, its node may come back and cost less."""
    newest = view.newest_whole if view.part is None else gang_retries.newest(draft, view)
    if newest is None or view.process_state is ProcessState.RESUMING:  # it did nothing since
        return 0.0
    return draft.now - silent_s - newest.at


def _could_go(draft: Draft, view: SessionView, others: Iterable[Node]) -> bool:
    """Whether another node could take it, however busy it is. A gang needs one for each part."""
    if view.part is not None:
        return gang_retries.could_go_elsewhere(draft, view)
    return any(not placement.barred(draft, view, node.id) for node in others)


def _begin_elsewhere(draft: Draft, view: SessionView, event: ev.NodeLost) -> bool:
    """Start a run without a checkpoint from its beginning on another node, if it may be tried again
    and its own node stops it by itself, which takes namespaces. While it has run for longer than
    its node is silent, that one may come back and cost less."""
    trouble = draft.node(view.node).abilities.image_trouble
    if trouble or _whole(draft, view) or not retries.may(draft, view):
        return False
    began = view.created_at if view.started_at is None else view.started_at
    if not event.hopeless and draft.now - event.silent_s - began > event.silent_s:
        return False
    node = placement.choose_elsewhere(draft, view)
    if node is None:
        return False
    how = run_reasons.node_gone(view.node, event.silent_s)
    retries.from_beginning(draft, view, how, "node.lost", node)
    return True


def _queue_elsewhere(draft: Draft, view: SessionView) -> None:
    """A run that was not started yet waits on another node."""
    node = placement.choose_elsewhere(draft, view)
    if node is None:
        return
    reason = move_reasons.requeued_lost(node, view.node)
    draft.note(replace(view, node=node), reason, "node.lost")


def lose(draft: Draft, view: SessionView, silent_s: float) -> SessionView:
    """It is to go on from its newest checkpoint on another node, by itself; a part of a gang with
    the others from their newest set."""
    if gang_retries.lost(draft, view, run_reasons.node_silent(view.node, silent_s), "node.lost"):
        return draft.changed[view.id]
    reference = view.newest_whole
    own = next((c for c in view.checkpoints if c.id == view.restore_from and c.whole), None)
    if view.process_state is ProcessState.RESUMING and own is not None:
        reference = own  # it was coming back from this one
    forked = reference is None
    return moves.lose_place(
        draft,
        view,
        move_reasons.lost_node(view, silent_s, reference, draft.now),
        "node.lost",
        lost=view.process_state is not ProcessState.RESUMING,
        retrying=retries.left(view) > 0,
        restore_from=view.restore_from if forked else reference.id if reference else "",
    )


def _fail(draft: Draft, view: SessionView, silent_s: float) -> None:
    endings.finish(
        draft,
        view,
        ProcessEvent.FAIL,
        move_reasons.lost_for_good(view, silent_s),
        "node.lost",
    )


def found(draft: Draft, view: SessionView) -> SessionView:
    """Its node is back with it before it was started elsewhere: nothing is lost after all."""
    return draft.step(
        replace(view, called=False, rollback=False, undo=False, restore_from="", lost=False),
        ProcessEvent.FOUND,
        move_reasons.node_back(view),
        "node.found",
    )


def fence(draft: Draft, view: SessionView, node_id: str) -> None:
    """Tell an agent to end what it still has of a session that is not its any more."""
    where = view.node if view.node != node_id else None
    draft.actions.append(
        ev.Fence(
            view.id,
            node_id,
            move_reasons.fenced(where),
            "node.fenced",
            view.epoch,
            view.seq,
        )
    )
