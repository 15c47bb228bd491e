"""Steps of sessions that wait for devices, get them and give them up, and which queued runs are
started. Who gets which devices is decided by `turns`."""

from __future__ import annotations

from dataclasses import replace

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_runs as run_reasons
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.steps import groups, keeping
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.actions import Attach, Park, Resize, Start
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.layout import layout
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import (
    DeviceEvent,
    DeviceState,
    ProcessEvent,
    ProcessState,
)

from .draft import Draft


def admit(draft: Draft, node_id: str) -> set[str]:
    """Start the queued runs of one node that have room; called like `serve`. Returns the nodes on
    which parts of gangs were started: those behind them there are next.

    A run starts when the started runs of its own tier and of higher ones leave it the devices it
    asks for: what lower tiers use it takes by preemption. So no more runs are started than can have
    devices, and nobody overtakes. Runs that somebody holds back count for nothing here, and neither
    do notebooks with a person in front: they hold devices only while they use them. A group of
    which enough are started lets others pass. The parts of a gang start together, when each of them
    is the next one on its node and has room; all stand at the same place, so one gang is the next
    one everywhere. One that cannot start, whoever ends, lets others pass.
    """
    started: set[str] = set()
    if not draft.node(node_id).connected or draft.duty(node_id).duty is not NodeDuty.OPEN:
        return started
    devices = len(draft.usable(node_id))
    full: set[str] = set()
    """Groups of which no more are started now."""
    for run in draft.pending(node_id):
        if run.held_back:
            break  # they are the last ones
        if run.needs > devices:
            continue  # the node lost devices (or they are drained): the others need not wait
        if (member := run.member) and (member.group in full or groups.full(draft, member)):
            full.add(member.group)
            continue
        views = gangs.together(draft, run)
        if run.part is not None and not gangs.may_start(draft, views):
            continue
        if why := quotas.run_barred(draft, run):
            for view in views:
                wait_for_quota(draft, view, why)
            continue
        if not all(_has_room(draft, view) for view in views):
            break
        if not all(_is_next(draft, view) for view in views if view.id != run.id):
            break
        for view in views:
            start(draft, view, "queue.admit")
            if view.part is not None:
                started.add(view.node)
    return started


def may_start(draft: Draft, run: SessionView) -> bool:
    """Whether `admit` would start this queued run, which no quota keeps from it, now."""
    views = gangs.together(draft, run)
    if run.part is not None and not gangs.may_start(draft, views):
        return False
    return all(_has_room(draft, view) and _is_next(draft, view) for view in views)


def _has_room(draft: Draft, run: SessionView) -> bool:
    """Whether the started runs of its node leave it the devices it asks for."""
    admitted = draft.admitted_milli(run.node)
    used = sum(n for rank, n in admitted.items() if rank >= run.tier.rank)
    return used + run.wanted_milli <= 1000 * len(draft.usable(run.node))


def _is_next(draft: Draft, run: SessionView) -> bool:
    """Whether all queued runs before it on its node let others pass."""
    devices = len(draft.usable(run.node))
    for other in draft.pending(run.node):
        if other.id == run.id:
            return True
        full = other.member is not None and groups.full(draft, other.member)
        if other.held_back or not (
            full
            or other.needs > devices
            or quotas.run_barred(draft, other)
            or (other.part and not gangs.may_start(draft, gangs.parts(draft, other.part)))
        ):
            return False
    return False


def wait_for_quota(draft: Draft, view: SessionView, why: Reason) -> None:
    """Say that it waits for its virtual cluster."""
    reason = reasons.waits_for_quota(view, why)
    if view.why != reason:
        draft.note(view, reason, "quota.waits")


def start(draft: Draft, view: SessionView, rule: str) -> None:
    """Step from `queued` to `starting` and command it."""
    reason = run_reasons.starting()
    view = draft.step(view, ProcessEvent.START, reason, rule, seq=view.seq + 1)
    draft.actions.append(Start(view.id, view.node, reason, rule, view.epoch, view.seq))
    if view.member is not None:
        groups.line_up(draft, view.member.group)


def parking(view: SessionView) -> bool:
    """Its devices will be free shortly."""
    leaves = view.process_state is ProcessState.SUSPENDING and view.leased
    return view.device_state is DeviceState.PARKING or leaves


def _for_long(since: float | None, least_s: float, now: float) -> bool:
    """Whether it is `least_s` seconds since then; of a time that nobody knows, it is."""
    return not least_s or since is None or now - since >= least_s


def park_idle(draft: Draft, node_id: str) -> None:
    """Free devices that no call has reached for `idle_soft_s`; called as time goes by."""
    limit_s = draft.state.parameters.idle_soft_s
    node = draft.state.nodes.get(node_id)
    if not limit_s or node is None or not node.connected:
        return
    for sid in sorted(set(node.leases.values())):
        view = draft.get(sid)
        if view is None or view.device_state is not DeviceState.HELD or view.quiet_since is None:
            continue
        quiet_s = draft.now - view.quiet_since
        if (
            view.process_state is ProcessState.LIVE
            and quiet_s >= limit_s
            and _for_long(view.held_since, draft.state.parameters.min_run_s, draft.now)
            and draft.now >= view.rests_until
            and not keeping.kept(view, draft.state.parameters, draft.now)
        ):
            park(draft, view, reasons.parked_idle(quiet_s, limit_s), "idle.reclaim")


def park(
    draft: Draft,
    view: SessionView,
    reason: Reason,
    rule: str,
    event: DeviceEvent = DeviceEvent.PARK,
    **fields: object,
) -> SessionView:
    """Step to `parking` and command it."""
    view = draft.step(view, event, reason, rule, seq=view.seq + 1, **fields)
    draft.actions.append(_park_action(draft, view, reason, rule))
    return view


def _park_action(draft: Draft, view: SessionView, reason: Reason, rule: str) -> Park:
    force = is_broken(draft, view)
    moving = view.moving or any(draft.mark(view.node, d).drained for d in view.devices)
    epoch, seq = view.epoch, view.seq
    return Park(view.id, view.node, reason, rule, epoch, seq, force=force, moving=moving)


def insist(draft: Draft, view: SessionView) -> None:
    """Command the park of a session in `parking` anew, by force: its device broke meanwhile."""
    view = draft.put(replace(view, seq=view.seq + 1))
    draft.actions.append(
        Park(view.id, view.node, view.why, "device.drained", view.epoch, view.seq, force=True)
    )


def is_broken(draft: Draft, view: SessionView) -> bool:
    """Whether a device of the session may be unable to hand its memory over."""
    return any(draft.mark(view.node, device).broken for device in view.devices)


def grant(draft: Draft, view: SessionView, devices: tuple[str, ...]) -> SessionView:
    """Give these physical devices to a waiting session under the next epoch and command the
    attach."""
    devices = layout(view.virtual_devices, devices)
    reason, rule = reasons.granted(view, devices), "queue.grant"
    view = draft.step(
        view,
        DeviceEvent.GRANT,
        reason,
        rule,
        devices=devices,
        epoch=view.epoch + 1,
        seq=view.seq + 1,
        attach_order=draft.next_order(),
        waiting_since=None,
        preferred=(),
        home=(),
        scaled_at=draft.now if view.scale else None,
    )
    draft.actions.append(
        Attach(view.id, view.node, reason, rule, view.epoch, view.seq, devices=devices)
    )
    return view


def enqueue(
    draft: Draft, view: SessionView, reason: Reason, rule: str, order: int | None = None
) -> SessionView:
    """Let a session without devices wait for them; `order` keeps an older place in the queue."""
    return draft.step(
        view,
        DeviceEvent.NEED,
        reason,
        rule,
        waiting_since=draft.now,
        queue_order=draft.next_order() if order is None else order,
        wants=False,
    )


def withdraw(draft: Draft, view: SessionView, reason: Reason, rule: str) -> SessionView:
    """Take a waiting session out of the queue."""
    event = DeviceEvent.WITHDRAW_SAVED if view.saved else DeviceEvent.WITHDRAW
    return draft.step(view, event, reason, rule, **_not_waiting())


def reissue(draft: Draft, view: SessionView) -> None:
    """Repeat the command that a session whose devices are changing waits for; same epoch and seq,
    so an agent that has done it already answers what it answered then."""
    if view.device_state is DeviceState.ATTACHING:
        draft.actions.append(
            Attach(
                view.id,
                view.node,
                view.why,
                "recover",
                view.epoch,
                view.seq,
                devices=view.devices,
            )
        )
    elif view.device_state is DeviceState.PARKING:
        draft.actions.append(_park_action(draft, view, view.why, "recover"))
    elif view.device_state is DeviceState.RESIZING:
        draft.actions.append(resize_action(view, view.why, "recover"))


def resize_action(view: SessionView, reason: Reason, rule: str) -> Resize:
    """The command that a session in `resizing` waits for."""
    head = (view.id, view.node, reason, rule, view.epoch, view.seq)
    return Resize(*head, devices=view.resizing)


def _not_waiting() -> dict[str, object]:
    return {
        "waiting_since": None,
        "asked": False,
        "moving": False,
        "preferred": (),
        "wants": False,
    }


def freed(view: SessionView) -> SessionView:
    """`view` with nothing left of a lease or of a wait (for steps that end both)."""
    return replace(
        view,
        devices=(),
        resizing=(),
        waiting_since=None,
        asked=False,
        moving=False,
        preferred=(),
        wants=False,
    )


def park_lapsed(draft: Draft, event: ev.LeaseLapsed) -> None:
    """Park a session whose lease is over: its node lets it have its devices no longer."""
    view = draft.get(event.session)
    if view and view.device_state is DeviceState.HELD and not view.in_flight:
        if event.why:
            park(draft, view, reasons.set_down(event.why), "proxy.set_down")
        else:
            park(draft, view, reasons.lapsed(), "lease.lapsed")


def free_reaped(draft: Draft, event: ev.LeaseReaped) -> None:
    """Free the devices of a session whose lease nobody renewed, if it is still that lease."""
    view = draft.get(event.session)
    if view is None or not view.leased or view.epoch != event.epoch:
        return
    if view.final:
        draft.step(freed(view), DeviceEvent.FREED, view.why, "lease.reaped")
        return
    draft.step(
        freed(view),
        DeviceEvent.LOST,
        run_reasons.said(event.sentence),
        "lease.reaped",
        saved=True,
    )
