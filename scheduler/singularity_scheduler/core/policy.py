"""`decide(state, event, now)`: what changes and what is to be done. Pure.

The caller (the service's controller, the simulator, tests) makes the decision durable, applies it
to the state, then executes its actions; each outcome comes back as another event. An event that
no longer fits (an answer of an older epoch, a session that is gone) decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

from singularity_proxy.errors import BadRequest, Conflict, NotFound

from .gangs import members as gangs
from .gangs import sets as gang_sets
from .gangs import steps as gang_steps
from .gangs import store as gang_store
from .gangs import turns as gang_turns
from .moves import answers, device_restores, relocation, returns, scaling
from .moves import whole as moves
from .operations import defragmentation, drains, health, quotas, upgrades
from .placement import choice as placement
from .reasons import of_devices as reasons
from .reasons import of_moves as move_reasons
from .reasons import of_runs as run_reasons
from .reasons.reason import Reason, because
from .reasons.refusals import Refused, refuse
from .state import checkpoints, queue, shares
from .state.cluster import ClusterState
from .state.draft import Draft
from .steps import (
    balance,
    creating,
    endings,
    groups,
    keeping,
    losses,
    nodes,
    proxies,
    reopening,
    settings,
    tiers,
    turns,
)
from .values import administration as adm
from .values import events as ev
from .values import recorded
from .values.layout import told
from .values.model import SessionView
from .values.states import CHANGING, DeviceEvent, DeviceState, ProcessState

Handler = Callable[[Draft, Any], None]

ENDING_SIGNALS = frozenset({1, 9, 15})
"""HUP, KILL, TERM: whoever sends one wants the process to end."""


def decide(state: ClusterState, event: ev.Event, now: float) -> ev.Decision:
    """The decision on one event; changes nothing itself.

    Raises `Refused` (a `BadRequest`, `Conflict`, `Forbidden`, `NotFound`, `Unavailable` or
    `Unsupported` with a reason; nothing changed) for what people ask, and never for what nodes
    report.
    """
    draft = Draft(state, now)
    _HANDLERS[type(event)](draft, event)
    moves.settle(draft)
    endings.stop_groups(draft)
    endings.stop_reached_groups(draft)
    here = {event.node} if isinstance(event, ev.NodeJoined | ev.NodeLost | ev.Tick) else set()
    gang_steps.settle(draft, here)
    groups.settle(draft)
    _follow_orders(draft, here)
    if here or draft.changed or draft.marks or draft.duties:
        returns.bring_back(draft)
    _serve(draft, here | draft.touched() | draft.queued_nodes())
    gang_steps.settle(draft)
    if isinstance(event, ev.Tick):
        relocation.proceed(draft, event.node)
        defragmentation.proceed(draft, event.node)
    shares.settle(draft)
    return draft.decision()


def _serve(draft: Draft, nodes: set[str]) -> None:
    """Start the runs that have room on these nodes, and give out their devices."""
    waiting = [node for node in nodes if not draft.idle(node)]
    together = gang_turns.serve(draft, waiting)
    todo = {*waiting, *gangs.queued_with(draft, nodes)}
    while todo:
        started = (queue.admit(draft, node) for node in sorted(todo))
        todo = {node for views in started for node in views}
    for node in waiting:
        if node not in together:
            turns.serve(draft, node)


def _follow_orders(draft: Draft, here: set[str]) -> None:
    """Empty nodes that are to be emptied, and go on with an upgrade."""
    nodes = here | draft.touched()
    if nodes:
        drains.proceed(draft, nodes)
    if nodes or draft.upgrade:
        while begun := upgrades.proceed(draft):
            drains.proceed(draft, begun)


# -- what people ask ------------------------------------------------------------------------


def _find(draft: Draft, session: str) -> SessionView:
    """Return the session that somebody names; refuses one that there is not."""
    view = draft.get(session)
    if view is None:
        raise refuse(NotFound, because("no_such_session", session=session), session=session)
    return view


def _asked(draft: Draft, session: str) -> SessionView:
    """The session somebody wants to act on; refuses unknown and ended ones."""
    view = _find(draft, session)
    refuse_ended(view)
    return view


def _refused(view: SessionView, why: Reason) -> Refused:
    """Make the refusal of something that the state of a session does not allow now."""
    return refuse(Conflict, why, session=view.id, state=view.word)


def refuse_ended(view: SessionView) -> None:
    """`Conflict` when there is nothing left to act on."""
    if view.final:
        state = view.process_state.value
        raise _refused(view, because("has_ended", who=view.label, state=state))


def _refuse_unstarted(view: SessionView) -> None:
    """`Conflict` when there is no process yet to act on."""
    if view.pending:
        why = because("not_started_yet", who=view.label)
    elif view.process_state is ProcessState.STARTING:
        why = because("just_starting", who=view.label)
    else:
        return
    raise _refused(view, why)


def _park_asked(draft: Draft, event: ev.ParkAsked) -> None:
    view = _asked(draft, event.session)
    moves.refuse_away(view)
    if view.device_state is not DeviceState.HELD:
        raise _refused(view, _why_not_parked(view))
    queue.park(draft, view, reasons.parked_by(event.by), "user.park")


def _why_not_parked(view: SessionView) -> Reason:
    """Return why a session that does not hold devices cannot be parked."""
    if view.device_state is DeviceState.NONE:
        return because("nothing_to_park", who=view.label)
    if view.device_state is DeviceState.WAITING:
        return because("waits_and_holds_none", who=view.label)
    if view.device_state is DeviceState.PARKED:
        return because("parked_already", who=view.label)
    return because("changing_devices", who=view.label)


def _preempt_asked(draft: Draft, event: ev.PreemptAsked) -> None:
    """Take the devices, as for a session that goes first, and give none until a resume."""
    view = _asked(draft, event.session)
    if view.held_back:
        raise _refused(view, because("preempted_already", who=view.label))
    for one in gangs.together(draft, view):
        held = replace(one, held_by=event.by, moving=False, asked=False, preferred=())
        reason = reasons.held_back(held)
        if held.device_state is DeviceState.HELD and held.here:
            queue.park(draft, held, reason, "user.preempt")
        else:
            draft.note(held, reason, "user.preempt")


def _keep_asked(draft: Draft, event: ev.KeepAsked) -> None:
    view = _asked(draft, event.session)
    if event.for_s:
        _refuse_unstarted(view)
        moves.refuse_away(view)
    keeping.asked(draft, view, event)


def _tier_asked(draft: Draft, event: ev.TierAsked) -> None:
    for view in gangs.together(draft, _asked(draft, event.session)):
        tiers.asked(draft, view, event)


def _resume_asked(draft: Draft, event: ev.ResumeAsked) -> None:
    view = _asked(draft, event.session)
    if view.part is not None and gang_store.resume_asked(draft, view, event):
        return
    if view.process_state in (ProcessState.SUSPENDING, ProcessState.SUSPENDED):
        moves.resume_asked(draft, view, event)
        return
    moves.refuse_in_flight(view)
    if event.checkpoint is not None:
        _refuse_unstarted(view)
        gangs.refuse_part(view)
        restore = ev.RestoreAsked(view.id, event.by, event.checkpoint)
        moves.restore_asked(draft, view, restore)
        return
    if event.node is not None and placement.named(draft.state, event.node).id != view.node:
        gangs.refuse_part(view)
        raise _refused(view, because("not_suspended", who=view.label, node=view.node))
    for other in gangs.others(draft, view):  # what one of them waits for, all do
        if other.held_back:
            draft.note(
                replace(other, held_by=None), run_reasons.resumed_part(event.by), "user.resume"
            )
    held_back, view = view.held_back, replace(view, held_by=None)
    if view.process_state in (ProcessState.QUEUED, ProcessState.STARTING):
        if not held_back:
            _refuse_unstarted(view)
        draft.note(view, run_reasons.resumed_unstarted(event.by), "user.resume")
    elif held_back and view.device_state is DeviceState.WAITING:
        draft.note(replace(view, asked=True), reasons.waits(view, event.by), "user.resume")
    elif view.device_state in (DeviceState.HELD, DeviceState.RESIZING):
        raise _refused(view, because("holds_already", who=view.label, devices=view.physical))
    elif view.device_state in (DeviceState.WAITING, DeviceState.ATTACHING):
        draft.put(replace(view, asked=True))
    elif view.device_state is DeviceState.PARKING:
        draft.put(replace(view, asked=True, wants=True))
    else:
        queue.enqueue(
            draft, replace(view, asked=True), reasons.waits(view, event.by), "user.resume"
        )


def _migrate_asked(draft: Draft, event: ev.MigrateAsked) -> None:
    view = _asked(draft, event.session)
    _refuse_unstarted(view)
    if view.part is not None and event.node is not None and not (event.cluster or event.devices):
        gang_store.migrate_asked(draft, view, event.node, event.by)
        return
    gangs.refuse_part(view)
    if event.node is not None or event.cluster is not None:
        if (event.node is not None) + (event.cluster is not None) + bool(event.devices) > 1:
            raise refuse(BadRequest, because("two_targets"))
        if event.cluster is not None:
            moves.change_cluster(draft, view, event.cluster, event.by)
        else:
            moves.migrate_asked(draft, view, str(event.node), event.by)
        return
    moves.refuse_away(view)
    if view.device_state in CHANGING:
        raise _refused(view, because("changing_devices", who=view.label))
    view = replace(view, held_by=None)
    targets, victims = placement.targets(draft, view, event.devices)
    view = replace(view, preferred=targets, asked=True, moving=True)
    reason = reasons.moving(event.by, targets)
    if view.device_state is DeviceState.HELD:
        queue.park(draft, view, reason, "user.migrate", wants=True)
    elif view.device_state is DeviceState.WAITING:
        draft.note(view, reason, "user.migrate")
    else:
        queue.enqueue(draft, view, reason, "user.migrate")
    for victim, rule in victims:
        turns.preempt(draft, victim, view, rule)


def _resize_asked(draft: Draft, event: ev.ResizeAsked) -> None:
    scaling.asked(draft, _asked(draft, event.session), event)


def _checkpoint_asked(draft: Draft, event: ev.CheckpointAsked) -> None:
    view = _asked(draft, event.session)
    _refuse_unstarted(view)
    ask = checkpoints.asked if view.part is None else gang_sets.asked
    ask(draft, view, event)


def _suspend_asked(draft: Draft, event: ev.SuspendAsked) -> None:
    view = _asked(draft, event.session)
    _refuse_unstarted(view)
    ask = moves.suspend_asked if view.part is None else gang_store.suspend_asked
    ask(draft, view, event)


def _restore_asked(draft: Draft, event: ev.RestoreAsked) -> None:
    view = _asked(draft, event.session)
    _refuse_unstarted(view)
    gangs.refuse_part(view)
    moves.restore_asked(draft, view, event)


def _drop_asked(draft: Draft, event: ev.DropAsked) -> None:
    view = _find(draft, event.session)
    drop = checkpoints.drop_one if view.part is None else gang_sets.drop_set
    drop(draft, view, checkpoints.find(view, event.checkpoint))


def _end_asked(draft: Draft, event: ev.EndAsked) -> None:
    view = _find(draft, event.session)
    if view.final:
        endings.command_end(draft, view, view.why, "user.end")
    found = gangs.others(draft, view) if view.final else gangs.together(draft, view)
    endings.end_all(draft, found, event.by, event.reason, event.grace_s)


def _group_end_asked(draft: Draft, event: ev.GroupEndAsked) -> None:
    found = groups.members(draft, event.group)
    endings.end_all(draft, found, event.by, event.reason, event.grace_s)


def _signal_asked(draft: Draft, event: ev.SignalAsked) -> None:
    view = _asked(draft, event.session)
    if view.pending:
        _refuse_unstarted(view)
    moves.refuse_away(view)
    if event.signum in ENDING_SIGNALS and view.stopped_by != event.by:
        draft.put(replace(view, stopped_by=event.by))


# -- what nodes report ----------------------------------------------------------------------


def _needed(draft: Draft, event: ev.DeviceNeeded) -> None:
    view = draft.get(event.session)
    if view is None or view.final or view.pending:
        return
    if view.in_flight:
        draft.put(replace(view, wants=True))
    elif not view.here:
        return
    elif view.device_state is DeviceState.PARKING and not view.wants:
        draft.put(replace(view, wants=True))
    elif view.device_state in (DeviceState.NONE, DeviceState.PARKED):
        queue.enqueue(draft, view, reasons.waits(view), "device.lazy")


def _withdrawn(draft: Draft, event: ev.DeviceWithdrawn) -> None:
    view = draft.get(event.session)
    if view is None or view.asked:
        return
    if view.device_state is DeviceState.WAITING:
        queue.withdraw(draft, view, reasons.withdrawn(view.saved), "device.withdrawn")
    elif view.wants and not view.moving:
        draft.put(replace(view, wants=False))


def _activity(draft: Draft, event: ev.Activity) -> None:
    view = draft.get(event.session)
    if view is None or view.final or view.busy is event.busy:
        return
    if event.busy and scaling.rested(draft, view):
        view = replace(view, woken_at=draft.now)
    view = draft.put(replace(view, busy=event.busy, idle_since=None if event.busy else event.at))
    if not event.busy:
        _withdrawn(draft, ev.DeviceWithdrawn(event.session))


def _used(draft: Draft, event: ev.DeviceUse) -> None:
    view = draft.get(event.session)
    if view is not None and view.leased and not view.final:
        draft.put(replace(view, unused_since=event.quiet_since))


def _attached(draft: Draft, event: ev.Attached) -> None:
    view = draft.get(event.session)
    if not _current(view, event.epoch, DeviceState.ATTACHING):
        return
    view = draft.step(
        view,
        DeviceEvent.ATTACHED,
        reasons.held(view, view.saved),
        "device.attached",
        devices=told(view.devices, event.devices),
        saved=True,
        moving=False,
        asked=False,
        held_since=draft.now,
        unused_since=None,
        attach_s=event.ms / 1000,
    )
    _take_back(draft, view)


def _take_back(draft: Draft, view: SessionView) -> None:
    """Have a session whose devices have just settled leave them, if that was decided meanwhile."""
    if view.held_back:
        queue.park(draft, view, reasons.held_back(view), "user.preempt")
    elif mark := health.leaves(draft, view):
        health.move_off(draft, view, mark)


def _resized(draft: Draft, event: ev.Resized) -> None:
    view = draft.get(event.session)
    if _current(view, event.epoch, DeviceState.RESIZING) and not view.final:
        _take_back(draft, scaling.done(draft, view, event))


def _resize_failed(draft: Draft, event: ev.ResizeFailed) -> None:
    view = draft.get(event.session)
    if _current(view, event.epoch, DeviceState.RESIZING) and not view.final:
        _take_back(draft, scaling.failed(draft, view, event))


def _attach_failed(draft: Draft, event: ev.AttachFailed) -> None:
    view = draft.get(event.session)
    if not _current(view, event.epoch, DeviceState.ATTACHING):
        return
    step = DeviceEvent.ATTACH_FAILED_SAVED if view.saved else DeviceEvent.ATTACH_FAILED
    reason = reasons.attach_failed(event.sentence, view.saved)
    wants = not view.asked  # its worker is still blocked: the next tick tries again
    view = scaling.at_least(queue.freed(view), event.least)
    draft.step(view, step, reason, "device.attach_failed", wants=wants)


def _tick(draft: Draft, event: ev.Tick) -> None:
    node = draft.state.nodes.get(event.node)
    for sid in sorted(node.retry if node else ()):
        view = draft.state.sessions[sid]
        queue.enqueue(draft, view, reasons.waits(view), "device.lazy")
    keeping.expire(draft, event.node)
    queue.park_idle(draft, event.node)
    balance.proceed(draft, event.node)


def _parked(draft: Draft, event: ev.Parked) -> None:
    view = draft.get(event.session)
    if not _current(view, event.epoch, DeviceState.PARKING):
        return
    if view.final:
        return  # its devices are free when the agent confirms the end
    view = draft.step(
        view,
        DeviceEvent.PARKED,
        view.why,
        "device.parked",
        devices=(),
        park_failed_at=None,
        park_s=event.ms / 1000,
        home=view.physical if event.stays else (),
    )
    if view.wants:
        # One that moves keeps its old place in time: those who came later do not overtake it.
        queue.enqueue(
            draft,
            view,
            view.why if view.moving else reasons.waits(view),
            _rule_of_return(view),
            order=view.attach_order if view.moving else None,
        )


def _rule_of_return(view: SessionView) -> str:
    if not view.moving:
        return "device.lazy"
    return "user.migrate" if view.asked else "device.drained"


def _park_failed(draft: Draft, event: ev.ParkFailed) -> None:
    view = draft.get(event.session)
    if not _current(view, event.epoch, DeviceState.PARKING) or view.final:
        return
    reason = reasons.park_failed(event.sentence)
    draft.step(
        replace(view, moving=False, preferred=(), wants=False, asked=False, held_by=None),
        DeviceEvent.PARK_FAILED,
        reason,
        "device.park_failed",
        park_failed_at=draft.now,
    )


def _orphaned(draft: Draft, event: ev.Orphaned) -> None:
    """Its Jupyter server is gone: it waits in the store for the next one, or ends where that
    cannot be."""
    view = draft.get(event.session)
    if view is None or view.process_state is not ProcessState.LIVE:
        return
    sentence = event.sentence or because("server_is_gone")
    if view.leaving is None and not draft.node(view.node).abilities.image_trouble:
        moves.leave(draft, view, move_reasons.hibernating(sentence), "user.suspend", urgent=True)
    elif view.leaving is None:
        step, reason = run_reasons.closed(view, None, sentence)
        endings.finish(draft, view, step, reason, "user.end")


def _joined(draft: Draft, event: ev.NodeJoined) -> None:
    nodes.joined(draft, event)
    drains.joined(draft, event)


def _current(view: SessionView | None, epoch: int, state: DeviceState) -> TypeGuard[SessionView]:
    """Whether an answer of the agent is the one the session waits for."""
    return view is not None and view.epoch == epoch and view.device_state is state


_HANDLERS: dict[type, Handler] = {
    ev.SessionCreated: creating.created,
    ev.GroupCreated: creating.group_created,
    ev.GangCreated: creating.gang_created,
    ev.GroupEndAsked: _group_end_asked,
    ev.ParkAsked: _park_asked,
    ev.PreemptAsked: _preempt_asked,
    ev.KeepAsked: _keep_asked,
    ev.TierAsked: _tier_asked,
    ev.ResumeAsked: _resume_asked,
    ev.MigrateAsked: _migrate_asked,
    ev.ResizeAsked: _resize_asked,
    ev.CheckpointAsked: _checkpoint_asked,
    ev.SuspendAsked: _suspend_asked,
    ev.RestoreAsked: _restore_asked,
    ev.ForkAsked: moves.fork_asked,
    ev.ReopenAsked: reopening.asked,
    ev.DropAsked: _drop_asked,
    ev.SignalAsked: _signal_asked,
    ev.EndAsked: _end_asked,
    ev.DrainAsked: health.drain_asked,
    ev.ReturnAsked: health.return_asked,
    ev.DevicesLooked: health.looked,
    ev.NodeJoined: _joined,
    ev.NodeAway: nodes.away,
    ev.NodeLost: losses.node_lost,
    ev.Tick: _tick,
    ev.GroupLate: endings.group_late,
    ev.Started: nodes.started,
    ev.StartFailed: endings.start_failed,
    ev.ProcessExited: answers.note_exit,
    ev.Ended: endings.ended,
    ev.DeviceNeeded: _needed,
    ev.DeviceWithdrawn: _withdrawn,
    ev.Activity: _activity,
    ev.Recorded: recorded.told,
    ev.DeviceUse: _used,
    ev.Attached: _attached,
    ev.AttachFailed: _attach_failed,
    ev.Parked: _parked,
    ev.ParkFailed: _park_failed,
    ev.Resized: _resized,
    ev.ResizeFailed: _resize_failed,
    ev.LeaseLapsed: queue.park_lapsed,
    ev.LeaseReaped: queue.free_reaped,
    ev.ProxyRecovered: proxies.recovered,
    ev.ProxyFailed: proxies.failed,
    ev.ProxyGaveUp: proxies.gave_up,
    ev.ProxySilent: proxies.silent,
    ev.ProxyAnswers: proxies.answers,
    ev.DeviceWorking: proxies.working,
    ev.SquashingOff: proxies.squashing_off,
    ev.CheckpointTaken: checkpoints.taken,
    ev.SetStored: gang_sets.stored,
    ev.ContentsBack: device_restores.done,
    ev.CheckpointsFound: checkpoints.found,
    ev.CheckpointGone: checkpoints.gone,
    ev.CheckpointProved: checkpoints.proved,
    ev.Suspended: answers.note_suspended,
    ev.SuspendFailed: answers.note_suspend_failed,
    ev.Fenced: answers.note_fenced,
    ev.Resumed: answers.note_resumed,
    ev.ResumeFailed: answers.note_resume_failed,
    ev.Wanted: moves.wanted,
    ev.Orphaned: _orphaned,
    adm.ParametersAsked: settings.asked,
    adm.QuotaAsked: quotas.asked,
    adm.QuotaGone: quotas.gone,
    adm.TiersAsked: tiers.said,
    adm.DutyAsked: drains.asked,
    adm.NoticeGiven: drains.noticed,
    adm.UpgradeAsked: upgrades.asked,
    adm.UpgradeChange: upgrades.changed,
    adm.UpgradedAsked: upgrades.back,
}
