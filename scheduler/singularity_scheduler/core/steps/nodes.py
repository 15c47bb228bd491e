"""The life of sessions on their nodes: started, ended, and what a returning agent tells us.

Part of `decide` (see `policy`). `joined` compares the ledger with the agent's truth and puts each
difference right: the ledger is right about leases, the agent about processes.
"""

from __future__ import annotations

import json
from dataclasses import replace

from singularity_scheduler.core.gangs import retries as gang_retries
from singularity_scheduler.core.moves import answers
from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.state import checkpoints, queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values import recorded
from singularity_scheduler.core.values.model import AgentFacts, SessionView
from singularity_scheduler.core.values.requested import Kind, Tier
from singularity_scheduler.core.values.states import (
    CHANGING,
    DeviceEvent,
    DeviceState,
    ProcessEvent,
    ProcessState,
)

from . import endings, losses, retries


def started(draft: Draft, event: ev.Started) -> None:
    view = draft.get(event.session)
    if view and view.process_state is ProcessState.STARTING:
        reason = run_reasons.runs(view)
        draft.step(
            view, ProcessEvent.LIVE, reason, "process.live", **retries.begun(view, draft.now)
        )


def away(draft: Draft, event: ev.NodeAway) -> None:
    draft.set_node(event.node, connected=False)


def joined(draft: Draft, event: ev.NodeJoined) -> None:
    cluster = event.abilities.cluster or draft.state.geography.home
    able = replace(event.abilities, cluster=cluster)
    draft.set_node(event.node, connected=True, devices=event.devices, abilities=able)
    facts = {f.id: f for f in event.sessions}
    known = draft.state.nodes.get(event.node)
    for sid in sorted(known.sessions if known else ()):
        view = draft.state.sessions[sid]
        if view.cluster != cluster:  # the ledger is older than clusters, or the node has another
            view = draft.put(view)
        if sid in event.starting or view.pending:
            continue  # whoever sends the command learns what became of it
        if view.in_flight:
            _reissue(draft, view)
        elif view.process_state is ProcessState.SUSPENDED:
            _suspended(draft, view, facts.get(sid))
        elif view.final and sid in facts:
            endings.command_end(draft, view, view.why, "recover")
        elif sid not in facts or facts[sid].suspended:
            _missing(draft, view)
        else:
            _compare(draft, view, facts[sid])
    for sid, fact in sorted(facts.items()):
        other = draft.get(sid)
        if other is None:
            _unknown(draft, event.node, fact)
        elif other.node == event.node:
            continue
        elif other.final:  # what it has of it, if only the kernel connection, has no use any more
            endings.command_end(draft, replace(other, node=event.node), other.why, "recover")
        elif not fact.suspended or (other.origin or other.node) != event.node:
            losses.fence(draft, other, event.node)


def _reissue(draft: Draft, view: SessionView) -> None:
    """Repeat the command that a session on its way waits for; an agent that has done it already
    answers what it answered then."""
    if view.process_state is ProcessState.SUSPENDING:
        draft.actions.append(moves.leave_action(view, "recover"))
    else:
        draft.actions.append(placement.resume_action(view, "recover"))


def _suspended(draft: Draft, view: SessionView, fact: AgentFacts | None) -> None:
    """A suspended session: its node has nothing of it, or it was away and still has everything."""
    if fact is None or fact.suspended:
        return
    if view.lost and fact.alive:
        _compare(draft, losses.found(draft, view), fact)
    else:
        losses.fence(draft, view, view.node)


def _missing(draft: Draft, view: SessionView) -> None:
    """The agent does not know this session: nothing of it is left there. A live one goes on from
    its newest checkpoint, if it has one with its process in it."""
    live = view.process_state is ProcessState.LIVE
    knows_not = run_reasons.agent_forgot(view.node)
    if live and gang_retries.lost(draft, view, knows_not, "agent.restarted"):
        return
    if live and view.newest_whole is not None and view.part is None:
        view = losses.lose(draft, view, 0.0)
        draft.note(
            replace(view, lost=False),
            move_reasons.agent_restarted(view, draft.now),
            "agent.restarted",
        )
        return
    unborn = view.process_state is ProcessState.STARTING
    if unborn and view.run is not None:  # what it runs is in the ledger: start it after all
        view = draft.put(replace(queue.freed(view), device_state=DeviceState.NONE))
        draft.actions.append(
            ev.Start(view.id, view.node, view.why, "recover", view.epoch, view.seq)
        )
        return
    if live and retries.may(draft, view):
        retries.from_beginning(draft, view, run_reasons.unknown(view), "agent.restarted")
        return
    if not view.final:
        reason = run_reasons.not_started() if unborn else run_reasons.gone(view)
        view = checkpoints.ended(draft, replace(view, rollback=True), False)
        if not unborn:
            reason = checkpoints.undo_reason(draft, view, reason, False)
        view = draft.step(queue.freed(view), ProcessEvent.FAIL, reason, "agent.restarted")
    # Whatever its device state was: with the agent's proxies gone there is none any more.
    draft.put(replace(queue.freed(view), device_state=DeviceState.NONE, ended=True, held_by=None))


def _unknown(draft: Draft, node: str, fact: AgentFacts) -> None:
    """The agent runs a session that the ledger does not have (it was lost, or it ended while the
    agent was away): a live one is adopted, because ending it would lose somebody's work."""
    kinds, tiers = {k.value for k in Kind}, {t.value for t in Tier}
    complete = fact.user and fact.kind in kinds and fact.tier in tiers and fact.virtual_devices > 0
    view = SessionView(
        id=fact.id,
        user=fact.user or "unknown",
        kind=Kind(fact.kind) if complete else Kind.BATCH,
        name=fact.name,
        tier=Tier(fact.tier) if complete else Tier.BASIC,
        virtual_devices=max(fact.virtual_devices, 1),
        node=node,
        created_at=draft.now,
        updated_at=draft.now,
        epoch=fact.epoch,
        # The agent answers a number it knows with what it answered then: begin far beyond.
        seq=int(draft.now),
        process_state=ProcessState.LIVE,
        origin=node,
        incarnation=fact.incarnation,
        device_state=DeviceState.PARKED if fact.saved and not fact.devices else DeviceState.NONE,
    )
    if fact.suspended:  # its kernel connection alone; who brings it back is gone from the ledger
        losses.fence(draft, view, node)
        return
    if not complete or not fact.alive:
        endings.command_end(draft, view, run_reasons.not_known(), "recover")
        return
    _compare(draft, draft.note(view, run_reasons.taken_over(), "recover"), fact)


def _compare(draft: Draft, view: SessionView, fact: AgentFacts) -> None:
    """Both know it: take over what the agent knows better, command what the ledger knows better."""
    view = recorded.take(draft, view, json.loads(fact.recorded))
    if not fact.alive:
        answers.note_exit(draft, ev.ProcessExited(view.id, fact.exit_code, fact.reason))
        _settle_devices(draft, view.id)
        return
    if view.lost:
        view = draft.note(replace(view, lost=False), move_reasons.node_back(view), "node.found")
    if fact.busy is not None and fact.busy is not view.busy:
        idle_since = None if fact.busy else draft.now
        view = draft.put(replace(view, busy=fact.busy, idle_since=idle_since))
    if fact.quiet_since is not None and fact.quiet_since != view.unused_since:
        view = draft.put(replace(view, unused_since=fact.quiet_since))
    if fact.saved and not view.saved:
        view = draft.put(replace(view, saved=True))
    if view.process_state is ProcessState.STARTING:
        reason = run_reasons.runs(view)
        fields = retries.begun(view, draft.now)
        view = draft.step(view, ProcessEvent.LIVE, reason, "recover", **fields)
    view = _compare_devices(draft, view, fact)
    if fact.waiting and view.device_state in (DeviceState.NONE, DeviceState.PARKED):
        queue.enqueue(draft, view, reasons.waits(view), "device.lazy")
    elif fact.waiting and view.device_state is DeviceState.PARKING and not view.wants:
        draft.put(replace(view, wants=True))
    elif not fact.waiting and view.device_state is DeviceState.WAITING and not view.asked:
        queue.withdraw(draft, view, reasons.withdrawn(view.saved), "device.withdrawn")


def _settle_devices(draft: Draft, session: str) -> None:
    """A session that goes on although its process is gone may wait for a command of before the
    scheduler or its node was away: repeat it, as the agent's refusal lets the session leave."""
    view = draft.get(session)
    if view is not None and view.leaving is not None and view.device_state in CHANGING:
        queue.reissue(draft, view)


def _compare_devices(draft: Draft, view: SessionView, fact: AgentFacts) -> SessionView:
    holds = bool(fact.devices)
    state = view.device_state
    if state in CHANGING:
        queue.reissue(draft, view)
    elif state is DeviceState.HELD and not (holds and fact.epoch == view.epoch):
        reason = reasons.parked_while_away()
        if holds:
            view = queue.park(draft, view, reason, "recover")
        else:
            view = draft.step(queue.freed(view), DeviceEvent.LOST, reason, "recover", saved=True)
    elif state not in (DeviceState.HELD,) and holds:
        view = queue.park(
            draft,
            queue.freed(view),
            reasons.reclaimed(),
            "recover",
            DeviceEvent.RECLAIM,
            devices=fact.devices,
            epoch=max(view.epoch, fact.epoch),
            saved=True,
            wants=state is DeviceState.WAITING,
            asked=view.asked,
        )
    return view
