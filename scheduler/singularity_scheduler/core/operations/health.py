"""When a device is unwell, and what follows: it is drained. Pure.

A node reports what its devices say of themselves (`DeviceHealth`), here is decided what that means.
A drained device gets no new session, and those on it are moved off: parked, and brought back on
another one when there is one. An administrator drains and returns devices too; returning one
acknowledges what was wrong with it: the same fault does not drain it again, a new one does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from singularity_proxy.errors import Conflict, NotFound

from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons.reason import Reason, Words, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.devices import DeviceHealth, DeviceMark
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState

HOT_S = 60.0
"""A device is too hot when it has been at its limit for this many seconds."""

REST_S = 300.0
"""A device that was too hot is given to nobody for at least this many seconds."""

SILENT_S = 60.0
"""A driver that has not answered for this many seconds counts as gone."""

FATAL_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 156, 158})
"""Xid codes after which NVIDIA's Xid catalog asks for a reset of the GPU, a restart of the machine
or a repair (https://docs.nvidia.com/deploy/xid-errors/). All others are errors of a program, or
were corrected: they are shown and drain nothing."""


@dataclass(frozen=True)
class Fault:
    """`key` tells it from every other fault of the device; one that is not `lasting` drains the
    device only while it is there."""

    key: str
    why: Reason
    lasting: bool = True


def faults(health: DeviceHealth, now: float) -> list[Fault]:
    """What is wrong with a device, worst first; [] when it is well."""
    found = []
    if not health.present:
        found.append(Fault("lost", because("device_lost")))
    found += [
        Fault(f"xid:{code}:{at:.0f}", because("xid", number=code))
        for code, at in reversed(health.xids)
        if code in FATAL_XIDS
    ]
    if health.ecc_uncorrected:
        number = health.ecc_uncorrected
        found.append(Fault(f"ecc:{number}", because("memory_errors", number=number)))
    if health.row_remap_failed:
        found.append(Fault("row-remap", because("row_not_remapped")))
    if health.silent_s >= SILENT_S:
        silent = because("driver_silent", silent_s=health.silent_s)
        found.append(Fault("silent", silent, lasting=False))
    if health.hot_since is not None and now - health.hot_since >= HOT_S:
        hot = because("too_hot", temperature_c=health.temperature_c)
        found.append(Fault("hot", hot, lasting=False))
    return found


def is_hot(health: DeviceHealth) -> bool:
    """Whether the device is at its limit of temperature now."""
    at_limit = (
        health.temperature_c is not None
        and health.temperature_limit_c is not None
        and health.temperature_c >= health.temperature_limit_c
    )
    return at_limit or "hardware thermal slowdown" in health.clock_limits


def observed(before: DeviceHealth | None, health: DeviceHealth, now: float) -> DeviceHealth:
    """`health` with what only a series of reports can tell: since when the device is hot."""
    if not is_hot(health):
        return replace(health, hot_since=None)
    since = before.hot_since if before is not None else None
    return replace(health, hot_since=now if since is None else since)


# -- decisions (see `policy`) ---------------------------------------------------------------


def looked(draft: Draft, event: ev.DevicesLooked) -> None:
    """The node's devices were looked at: drain what is unwell, return what is well again."""
    node = draft.state.nodes.get(event.node)
    if node is None:
        return
    for device, health in node.health.items():
        view = draft.node(event.node).devices.get(device)
        if view is None or (health.uuid and health.uuid != view.key):
            continue  # the card was swapped since it reported this
        mark = draft.mark(event.node, device)
        found = faults(health, draft.now)
        known = tuple(k for k in mark.ignored if any(f.key == k for f in found))
        new = [f for f in found if f.key not in known]
        if known != mark.ignored:
            mark = draft.put_mark(replace(mark, ignored=known))
        if new and not mark.drained:
            drain(draft, mark, "", new[0].why, tuple(f.key for f in new))
        elif mark.by_itself and not new and not mark.lasting:
            if "hot" not in mark.faults or draft.now - mark.at >= REST_S:
                give_back(draft, mark, "")
        elif mark.drained:
            _note_faults(draft, mark, new)
    _move_off(draft, event.node)


def _note_faults(draft: Draft, mark: DeviceMark, new: list[Fault]) -> None:
    """A drained device tells more, or less."""
    here = [f.key for f in new]
    kept = [key for key in mark.faults if key != "silent" or key in here]
    keys = tuple(dict.fromkeys((*kept, *here)))
    if keys == mark.faults:
        return
    after = replace(mark, faults=keys)
    if mark.by_itself and set(here) - set(mark.faults):
        worst = next((f for f in new if f.lasting), new[0])
        lasting = mark.lasting or any(f.lasting for f in new)
        after = replace(after, lasting=lasting, reason=worst.why)
    draft.put_mark(after)
    _hurry(draft, mark, after)


def _hurry(draft: Draft, before: DeviceMark, after: DeviceMark) -> None:
    """Those who are just leaving a device that broke now cannot wait for it."""
    if not after.broken or before.broken:
        return
    for view in _holders(draft, after.node):
        if after.device in view.devices and view.device_state is DeviceState.PARKING:
            queue.insist(draft, view)


def drain_asked(draft: Draft, event: ev.DrainAsked) -> None:
    mark = _device(draft, event.node, event.device)
    reason = event.reason or because("maintenance")
    drain(draft, mark, event.by, reason, mark.faults)


def return_asked(draft: Draft, event: ev.ReturnAsked) -> None:
    mark = _device(draft, event.node, event.device)
    if not mark.drained:
        raise refuse(
            Conflict,
            because("not_drained", device=event.device, node=event.node),
            device=event.device,
        )
    give_back(draft, mark, event.by)


def _device(draft: Draft, node_id: str, device: str) -> DeviceMark:
    """The mark of a device that there is; `NotFound` otherwise."""
    node = draft.state.nodes.get(node_id)
    if node is None or not (
        device in node.devices or any(mark.device == device for mark in node.marks.values())
    ):
        known = tuple(f"{n.id}/{d}" for n in draft.state.nodes.values() for d in n.devices)
        raise refuse(
            NotFound,
            because("no_such_device", device=device, node=node_id, there=known),
            node=node_id,
            device=device,
        )
    return draft.mark(node_id, device)


def drain(
    draft: Draft, mark: DeviceMark, by: str, reason: Words, keys: tuple[str, ...] = ()
) -> DeviceMark:
    """No new session gets the device, those on it leave."""
    lasting = any(not _passes(key) for key in keys) or bool(by)
    before = mark
    mark = draft.put_mark(
        replace(
            mark, drained=True, by=by, reason=reason, at=draft.now, faults=keys, lasting=lasting
        )
    )
    _hurry(draft, before, mark)
    _move_off(draft, mark.node)
    return mark


def give_back(draft: Draft, mark: DeviceMark, by: str) -> DeviceMark:
    """Sessions get the device again; by somebody: what is wrong with it now is acknowledged."""
    ignored = mark.ignored
    if by:
        health = draft.state.nodes[mark.node].health.get(mark.device)
        here = [f.key for f in faults(health, draft.now)] if health else []
        ignored = tuple(dict.fromkeys((*here, *mark.faults)))
    return draft.put_mark(
        replace(
            mark,
            drained=False,
            by=by,
            reason="",
            at=draft.now,
            faults=(),
            ignored=ignored,
            lasting=False,
        )
    )


def leaves(draft: Draft, view: SessionView) -> DeviceMark | None:
    """The mark of a drained device that the session holds."""
    marks = (draft.mark(view.node, device) for device in view.devices)
    return next((mark for mark in marks if mark.drained), None)


def move_off(draft: Draft, view: SessionView, mark: DeviceMark) -> SessionView:
    """Park a session that holds a drained device; one that works waits for another device."""
    return queue.park(
        draft,
        view,
        reasons.moved_off(mark.device, mark.reason, mark.by),
        "device.drained",
        wants=not view.idle and not view.held_back,
        moving=not view.idle and not view.held_back,
    )


def _move_off(draft: Draft, node_id: str) -> None:
    for view in _holders(draft, node_id):
        if view.device_state is not DeviceState.HELD or view.final or view.in_flight:
            continue  # it is on its way, or `policy` asks again when its devices are there
        if draft.now < view.rests_until:
            continue
        if mark := leaves(draft, view):
            move_off(draft, view, mark)


def _holders(draft: Draft, node_id: str) -> Iterable[SessionView]:
    views = {v.id: v for v in draft.occupants(node_id).values() if v is not None}
    return [views[sid] for sid in sorted(views)]


def _passes(key: str) -> bool:
    return key in ("hot", "silent")
