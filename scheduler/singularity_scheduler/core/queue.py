"""Who gets devices next, and who gives them up for it (policy v1).

Served is tier by tier, first come first served inside a tier, and nobody overtakes: a session that
needs two devices is not starved by those that need one. A waiter takes all its devices at once:
free ones; else those of idle notebooks (any tier, longest idle first, then the lowest tier); else
those of busy sessions of a lower tier (lowest tier first, then the latest attached). Victims are
parked only when that gives the waiter everything it needs.
"""

from __future__ import annotations

from dataclasses import replace

from . import reasons
from .cluster import Draft
from .events import Attach, Park, Start
from .model import PARK_RETRY_S, SessionView
from .states import DeviceEvent, DeviceState, ProcessEvent, ProcessState


def serve(draft: Draft, node_id: str) -> None:
    """Give out the devices of one node; called at the end of each decision that touches it.

    Looks at the head of the queue only as far as devices last: at most one waiter per device.
    """
    if not draft.node(node_id).connected:
        return
    occupants = draft.usable(node_id)
    free = [d for d, view in occupants.items() if view is None]
    coming = [d for d, view in occupants.items() if view and parking(view)]
    for waiter in draft.waiting(node_id):
        if waiter.held_back:
            return  # they are the last ones
        preferred = waiter.preferred
        if preferred and set(preferred) <= {*free, *coming}:
            taken = list(preferred)
        else:
            missing = waiter.virtual_devices - len(free) - len(coming)
            if missing > 0:
                victims = choose_victims(draft, node_id, waiter, missing)
                if not victims:
                    return
                for victim in victims:
                    preempt(draft, victim, waiter)
                    coming.extend(victim.devices)
            home = waiter.home if set(waiter.home) <= set(free) else ()
            taken = list(home) or [*free, *coming][: waiter.virtual_devices]
        if set(taken) <= set(free):
            grant(draft, waiter, tuple(taken))
        free = [d for d in free if d not in taken]
        coming = [d for d in coming if d not in taken]


def admit(draft: Draft, node_id: str) -> None:
    """Start the queued runs of one node that have room; called like `serve`.

    A run starts when the started runs of its own tier and of higher ones leave it the devices it
    asks for: what lower tiers use it takes by preemption. So no more runs are started than can have
    devices, and nobody overtakes. Runs that somebody holds back count for nothing here, and neither
    do notebooks with a person in front: they hold devices only while they use them.
    """
    if not draft.node(node_id).connected:
        return
    devices = len(draft.usable(node_id))
    for run in draft.pending(node_id):
        if run.held_back:
            return  # they are the last ones
        if run.virtual_devices > devices:
            continue  # the node lost devices (or they are drained): the others need not wait
        used = sum(n for rank, n in draft.admitted(node_id).items() if rank >= run.tier.rank)
        if used + run.virtual_devices > devices:
            return
        start(draft, run, "queue.admit")


def start(draft: Draft, view: SessionView, rule: str) -> None:
    """Step from `queued` to `starting` and command it."""
    reason = "its process is being started"
    view = draft.step(view, ProcessEvent.START, reason, rule, seq=view.seq + 1)
    draft.actions.append(Start(view.id, view.node, reason, rule, view.epoch, view.seq))


def parking(view: SessionView) -> bool:
    """Its devices will be free shortly."""
    leaves = view.process_state is ProcessState.SUSPENDING and view.leased
    return view.device_state is DeviceState.PARKING or leaves


def may_preempt(waiter: SessionView, holder: SessionView, now: float) -> bool:
    """Whether `holder` has to give its devices up for `waiter`."""
    failed = holder.park_failed_at
    return (
        holder.device_state is DeviceState.HELD
        and holder.process_state is ProcessState.LIVE
        and holder.id != waiter.id
        and (failed is None or now - failed >= PARK_RETRY_S)
        and (holder.idle or holder.tier.rank < waiter.tier.rank)
    )


def _preference(holder: SessionView) -> tuple[int, float, int, int, str]:
    """Sorts possible victims, the best one first."""
    if holder.idle:
        return (0, holder.idle_since or 0.0, holder.tier.rank, 0, holder.id)
    return (1, 0.0, holder.tier.rank, -holder.attach_order, holder.id)


def choose_victims(
    draft: Draft, node_id: str, waiter: SessionView, missing: int
) -> list[SessionView]:
    """The holders to park so that at least `missing` devices come free; [] when that cannot be.

    None of them is superfluous: without any one the rest would not be enough.
    """
    usable = draft.usable(node_id)
    holders = {v.id: v for v in usable.values() if v and may_preempt(waiter, v, draft.now)}
    gives = {sid: sum(d in usable for d in v.devices) for sid, v in holders.items()}
    chosen: list[SessionView] = []
    total = 0
    for holder in sorted(holders.values(), key=_preference):
        if total >= missing:
            break
        chosen.append(holder)
        total += gives[holder.id]
    if total < missing:
        return []
    for holder in list(reversed(chosen)):
        if total - gives[holder.id] >= missing:
            chosen.remove(holder)
            total -= gives[holder.id]
    return chosen


def preempt(draft: Draft, victim: SessionView, waiter: SessionView) -> None:
    """Park `victim` for `waiter`; both reasons name the other."""
    if victim.idle:
        park(draft, victim, reasons.paused_idle(waiter), "preempt.idle")
    else:
        park(draft, victim, reasons.paused_lower(victim, waiter), "preempt.tier")


def park(
    draft: Draft,
    view: SessionView,
    reason: str,
    rule: str,
    event: DeviceEvent = DeviceEvent.PARK,
    **fields: object,
) -> SessionView:
    """Step to `parking` and command it."""
    view = draft.step(view, event, reason, rule, seq=view.seq + 1, **fields)
    draft.actions.append(_park_action(draft, view, reason, rule))
    return view


def _park_action(draft: Draft, view: SessionView, reason: str, rule: str) -> Park:
    force = is_broken(draft, view)
    moving = view.moving or any(draft.mark(view.node, d).drained for d in view.devices)
    epoch, seq = view.epoch, view.seq
    return Park(view.id, view.node, reason, rule, epoch, seq, force=force, moving=moving)


def insist(draft: Draft, view: SessionView) -> None:
    """Command the park of a session in `parking` anew, by force: its device broke meanwhile."""
    view = draft.put(replace(view, seq=view.seq + 1))
    draft.actions.append(
        Park(view.id, view.node, view.reason, "device.drained", view.epoch, view.seq, force=True)
    )


def is_broken(draft: Draft, view: SessionView) -> bool:
    """Whether a device of the session may be unable to hand its memory over."""
    return any(draft.mark(view.node, device).broken for device in view.devices)


def grant(draft: Draft, view: SessionView, devices: tuple[str, ...]) -> SessionView:
    """Give `devices` to a waiting session under the next epoch and command the attach."""
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
    )
    draft.actions.append(
        Attach(view.id, view.node, reason, rule, view.epoch, view.seq, devices=devices)
    )
    return view


def enqueue(
    draft: Draft, view: SessionView, reason: str, rule: str, order: int | None = None
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


def withdraw(draft: Draft, view: SessionView, reason: str, rule: str) -> SessionView:
    """Take a waiting session out of the queue."""
    event = DeviceEvent.WITHDRAW_SAVED if view.saved else DeviceEvent.WITHDRAW
    return draft.step(view, event, reason, rule, **_not_waiting())


def reissue(draft: Draft, view: SessionView) -> None:
    """Repeat the command a session in `attaching` or `parking` waits for; same epoch and seq, so
    an agent that has done it already answers what it answered then."""
    if view.device_state is DeviceState.ATTACHING:
        draft.actions.append(
            Attach(
                view.id,
                view.node,
                view.reason,
                "recover",
                view.epoch,
                view.seq,
                devices=view.devices,
            )
        )
    elif view.device_state is DeviceState.PARKING:
        draft.actions.append(_park_action(draft, view, view.reason, "recover"))


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
        waiting_since=None,
        asked=False,
        moving=False,
        preferred=(),
        wants=False,
    )
