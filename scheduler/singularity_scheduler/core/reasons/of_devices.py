"""Makes the reasons of what happens to the devices of sessions, and of checkpoints by name.

Each function returns a code with its arguments; `text.reasons` makes English of it.
"""

from __future__ import annotations

from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Priority, Tier
from singularity_scheduler.core.values.states import DeviceState

from .reason import Reason, Words, because


def name_of(reference: CheckpointRef) -> str:
    """Return the name of a checkpoint, its id if it has none."""
    return reference.name or reference.id


def age_s_of(reference: CheckpointRef, now: float) -> float:
    """Return how long ago a checkpoint was made, in seconds."""
    return max(0.0, now - reference.at)


# -- devices that are taken ---------------------------------------------------------------


def paused_idle(waiter: SessionView) -> Reason:
    return because(
        "paused_idle",
        by=waiter.label,
        tier=waiter.tier.value,
        least=waiter.needs,
        most=waiter.most,
    )


def parked_idle(quiet_s: float, limit_s: float) -> Reason:
    return because("parked_idle", quiet_s=quiet_s, limit_s=limit_s)


def paused_lower(victim: SessionView, waiter: SessionView) -> Reason:
    return because(
        "paused_lower",
        by=waiter.label,
        tier=waiter.tier.value,
        below=victim.tier.value,
        least=waiter.needs,
        most=waiter.most,
    )


def paused_borrower(victim: SessionView, waiter: SessionView) -> Reason:
    return because(
        "paused_borrower",
        by=waiter.label,
        cluster=waiter.virtual_cluster,
        lent=victim.virtual_cluster,
        least=waiter.needs,
        most=waiter.most,
    )


def paused_for_slice(victim: SessionView, waiter: SessionView) -> Reason:
    return because("paused_for_slice", by=waiter.label)


def paused_for_turn(victim: SessionView, waiter: SessionView) -> Reason:
    return because("paused_for_turn", by=waiter.label, both=victim.tier.value)


def paused_for_long_wait(victim: SessionView, waiter: SessionView) -> Reason:
    return because("paused_for_long_wait", by=waiter.label, both=victim.tier.value)


def paused_for_guarantee(victim: SessionView, waiter: SessionView) -> Reason:
    return because("paused_for_guarantee", by=waiter.label, promised_to=waiter.tier.value)


def goes_elsewhere(view: SessionView, node_id: str) -> Reason:
    return because("goes_elsewhere", node=node_id, here=view.node, needs=view.needs)


def makes_room(view: SessionView, waiter: SessionView) -> Reason:
    return because(
        "makes_room", waiter=waiter.label, here=view.node, least=waiter.needs, most=waiter.most
    )


def parked_by(by: str) -> Reason:
    return because("parked_by", by=by)


def held_back(view: SessionView) -> Reason:
    """What a session waits for that somebody (`held_by`) has preempted."""
    return because("held_back" if view.pending else "preempted", by=view.held_by)


def moved_off(device: str, why: Words, by: str) -> Reason:
    return because("moved_off", device=device, why=why, by=by or None)


def lapsed() -> Reason:
    return because("lapsed")


def set_down(why: str) -> Reason:
    return because("set_down", why=why)


def parked_while_away() -> Reason:
    return because("parked_while_away")


def reclaimed() -> Reason:
    return because("reclaimed")


def park_failed(sentence: str) -> Reason:
    return because("park_failed", sentence=sentence)


# -- kept alive, another tier -------------------------------------------------------------


def kept(by: str, for_s: float) -> Reason:
    return because("kept", by=by, for_s=for_s)


def keep_ended(by: str) -> Reason:
    return because("keep_ended", by=by)


def keep_over() -> Reason:
    return because("keep_over")


def changed(by: str, view: SessionView, tier: Tier, priority: Priority) -> Reason:
    """Somebody gives a session another tier, priority, or both."""
    tiers = (view.tier.value, tier.value) if tier is not view.tier else ()
    priorities = (view.priority.value, priority.value) if priority is not view.priority else ()
    return because("changed", by=by, tiers=tiers, priorities=priorities)


# -- waiting for devices and getting them -------------------------------------------------


def moving(by: str, devices: tuple[str, ...]) -> Reason:
    return because("moving", by=by, devices=devices)


def waits(view: SessionView, by: str | None = None) -> Reason:
    if view.held_back:
        return held_back(view)
    return because("waits", asked_by=by, least=view.needs, most=view.most)


def waits_for_quota(view: SessionView, why: Reason) -> Reason:
    return because("waits_for_quota", least=view.needs, most=view.most, why=why)


def granted(view: SessionView, devices: tuple[str, ...]) -> Reason:
    return because("granted", devices=devices, virtual=view.virtual_devices, saved=view.saved)


def held(view: SessionView, saved: bool) -> Reason:
    return because("held", devices=view.devices, virtual=view.virtual_devices, saved=saved)


def withdrawn(saved: bool) -> Reason:
    return because("withdrawn", saved=saved)


def attach_failed(sentence: str, saved: bool) -> Reason:
    return because("attach_failed", sentence=sentence, saved=saved)


def shrunk(view: SessionView, physical: int, waiter: SessionView) -> Reason:
    return because(
        "shrunk",
        virtual=view.virtual_devices,
        physical=physical,
        waiter=waiter.label,
        waiter_tier=waiter.tier.value,
        least=waiter.needs,
        most=waiter.most,
    )


def grown(view: SessionView, physical: int) -> Reason:
    return because("grown", virtual=view.virtual_devices, physical=physical)


def resizing(view: SessionView, by: str, physical: int) -> Reason:
    return because("resizing", by=by, virtual=view.virtual_devices, physical=physical)


def resized(view: SessionView) -> Reason:
    return because("resized", devices=view.resizing, virtual=view.virtual_devices)


def resize_failed(view: SessionView, sentence: str) -> Reason:
    virtual = view.virtual_devices
    return because("resize_failed", devices=view.devices, virtual=virtual, sentence=sentence)


def wished(view: SessionView, by: str, wanted: int) -> Reason:
    if view.device_state is DeviceState.HELD:
        return because("wished_more", by=by, wanted=wanted, has=len(view.physical))
    return because("wished_later", by=by, wanted=wanted)


def has_already(view: SessionView, by: str) -> Reason:
    return because("has_already", by=by, has=len(view.physical))


# -- device proxies -----------------------------------------------------------------------


def recovered(records: int, ms: float, why: str) -> Reason:
    return because("recovered", records=records, ms=ms, why=why)


def gave_up(operation: str, deaths: int) -> Reason:
    return because("gave_up", operation=operation, deaths=deaths)


def silent(limit_s: float) -> Reason:
    return because("silent", limit_s=limit_s)


def working(operation: str, seconds: float) -> Reason:
    return because("working", operation=operation, seconds=seconds)


def squashing_off(why: str) -> Reason:
    return because("squashing_off", why=why)
