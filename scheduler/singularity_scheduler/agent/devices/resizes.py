"""Puts virtual devices of a session on other physical ones while the rest of it runs on.

A session keeps its virtual devices and their number; how many physical ones are behind them is the
scheduler's choice. Only the rings that change their device are parked and served elsewhere. The
ledger says where everything was until it is where it should be, so whatever fails in between, this
agent included, ends with the session as it was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from singularity_proxy.elastic.coordinator import Cut
from singularity_proxy.elastic.placement import moved, place, replicas
from singularity_proxy.errors import BadRequest, Conflict, SingularityError, Unavailable
from singularity_proxy.wire.ring import RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.ranks.barrier import together
from singularity_scheduler.agent.rights.leases import LeaseGrant
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase, SessionRecord
from singularity_scheduler.agent.sessions.rings import LiveRing

from .binding import ProxyBinder, blame
from .proxies import Proxy

log = logging.getLogger("singularity.agent")


class Resizer:
    """Used by `devices.DeviceKeeper`. `set_down(live)` parks a session whose devices could not be
    put right again; its caller holds the session's lock, as everywhere here."""

    def __init__(
        self,
        node: Node,
        binder: ProxyBinder,
        set_down: Callable[[LiveSession, str], Awaitable[None]],
    ) -> None:
        self._node = node
        self._binder = binder
        self._set_down = set_down

    async def resize(
        self, live: LiveSession, lease: LeaseGrant, devices: list[str]
    ) -> dict[str, Any]:
        """Go on with `control`, one for each virtual device, under `lease`. Returns {ms, devices,
        moved: virtual devices that changed their physical one}; `control` in another order where
        only some ranks may share one. On an error the session is as before, or parked when that
        could not be (and the service is told that its lease lapsed)."""
        record, node = live.record, self._node
        check_devices(node, live, devices)
        started = time.monotonic()
        async with live.lock:
            record.check_live()
            record.check_epoch(lease.epoch)
            if record.phase is not Phase.HELD:
                raise Conflict(
                    f"session {record.session} holds no devices now, so nothing was changed",
                    session=record.session,
                )
            node.leases.grant(record.session, lease.epoch, lease.ttl_s, lease.received)
            node.save_leases()
            record.epoch, before = lease.epoch, list(record.devices)
            try:
                if devices != before:
                    async with together(live, node.settings.barrier_s) as cut:
                        devices = self._placed(live, devices, cut)
                        await self._change(live, devices)
                record.reason = lease.reason or record.reason
                live.waiting, live.told_need = False, 0.0
            finally:
                node.try_save(live)
        ms = round((time.monotonic() - started) * 1e3, 3)
        return {"ms": ms, "devices": list(record.devices), "moved": moved(before, record.devices)}

    def _placed(self, live: LiveSession, devices: list[str], cut: Cut | None) -> list[str]:
        """`control`, as the session's process groups allow it: only replicas share one. Raises
        `LayoutRefused` when they are too few for that."""
        record = live.record
        if cut is not None:
            sets = replicas(record.virtual_devices, cut.groups)
            record.sets = sets if len(sets) > 1 else []
        return placed(record, devices, record.devices)

    async def settle(self, live: LiveSession) -> bool:
        """End the resize that the agent before this one was in the middle of, in the direction for
        which fewer proxies have to be started; the service asks for it anew. The caller holds the
        lock, and has adopted the proxies. False: the session had to be parked."""
        record = live.record
        before, after = record.devices, record.resizing or record.devices
        here = live.proxies.keys()
        if len(set(after) - here) <= len(set(before) - here):
            with contextlib.suppress(SingularityError):
                await self._look_at_all(live)
                await self._arrange(live, after)
                self._done(live, after)
                return True
        await self._go_back(live, "its node agent was replaced in the middle of a resize")
        return record.phase is Phase.HELD

    async def _change(self, live: LiveSession, devices: list[str]) -> None:
        record, node = live.record, self._node
        record.move(Phase.RESIZING)
        record.resizing = list(devices)
        try:
            node.save(live)
            await self._arrange(live, devices)
        except BaseException as error:
            if record.alive:
                await self._go_back(live, str(error))
            if record.phase is Phase.HELD and isinstance(error, SingularityError):
                error.message += "; it goes on with the devices it had"
            raise
        self._done(live, devices)

    def _done(self, live: LiveSession, devices: list[str]) -> None:
        live.record.devices, live.record.resizing = list(devices), None
        live.record.move(Phase.HELD)

    async def _go_back(self, live: LiveSession, why: str) -> None:
        """Put everything where it was before the resize that is under way."""
        record = live.record
        log.warning("session %s goes on with the devices it had: %s", record.session, why)
        try:
            await self._look_at_all(live)
            await self._arrange(live, record.devices)
        except SingularityError as error:
            record.resizing = None
            await self._set_down(live, error.message)
            return
        self._done(live, record.devices)
        self._node.try_save(live)

    # -- where everything is ----------------------------------------------------------------------

    async def _arrange(self, live: LiveSession, devices: list[str]) -> None:
        """Have each ring served on the device that `control` names for its virtual device, from
        whatever state the session's proxies are in. Proxies of other devices are ended."""
        await _all(
            self._clear(live, device, proxy, devices)
            for device, proxy in list(live.proxies.items())
        )
        record = live.record
        record.check_live()
        served = {ring_id for proxy in live.proxies.values() for ring_id in proxy.attached}
        for ring in live.rings.rings.values():
            left_behind = ring.file.state in (RingState.ATTACHED, RingState.MOVING)
            if ring.ring_id not in served and left_behind:
                ring.file.set_state(RingState.DETACHED)
        await _all(
            self._fill(live, device, self._rings_for(live, device, devices))
            for device in dict.fromkeys(devices)
        )
        record.check_live()

    async def _look_at_all(self, live: LiveSession) -> None:
        await _all(self._look(live, d, proxy) for d, proxy in list(live.proxies.items()))

    async def _look(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        """Ask the proxy which rings it serves, once it has done what it was asked before: a call
        that nobody waits for any more goes on."""
        try:
            await proxy.call("park_rings", timeout=None, rings=[])
            stats = await proxy.call("stats", timeout=None)
            proxy.attached = set(stats["rings"])
        except Unavailable:
            if proxy.connected:
                raise
            await self._binder.discard(live, device, proxy)

    def _rings_for(self, live: LiveSession, device: str, devices: Sequence[str]) -> list[LiveRing]:
        return [
            ring
            for ring in live.rings.rings.values()
            if devices[ring.record.virtual_device] == device
            and ring.file.state not in (RingState.FAILED, RingState.CLOSED)
        ]

    async def _clear(
        self, live: LiveSession, device: str, proxy: Proxy, devices: Sequence[str]
    ) -> None:
        """Have the proxy of `device` write and let go of what belongs elsewhere."""
        rings = live.rings.rings
        leaving = [
            ring_id
            for ring_id in proxy.attached
            if ring_id in rings and devices[rings[ring_id].record.virtual_device] != device
        ]
        try:
            if leaving:
                await proxy.call("park_rings", timeout=None, rings=leaving)
                proxy.attached.difference_update(leaving)
        except Unavailable:
            if proxy.connected:
                raise
            # It ended at this very moment: snapshots and journals are the state of all its rings.
            blame([rings[i] for i in proxy.attached if i in rings], pardoned=proxy.pardoned)
            await self._binder.discard(live, device, proxy)
            return
        if device not in devices:
            await self._binder.discard(live, device, proxy)

    async def _fill(self, live: LiveSession, device: str, rings: list[LiveRing]) -> None:
        """Have a proxy on `device` that serves `rings`."""
        proxy = live.proxies.get(device)
        if proxy is not None:
            missing = [ring for ring in rings if ring.ring_id not in proxy.attached]
            try:
                await self._binder.attach_rings(live, proxy, missing)
                return
            except Unavailable:
                if proxy.connected:
                    raise
            blame(rings, pardoned=proxy.pardoned)
            await self._binder.discard(live, device, proxy)
            for ring in rings:
                ring.file.set_state(RingState.DETACHED)
        await self._binder.attach_device(live, device, rings)


def placed(record: SessionRecord, devices: list[str], now: list[str]) -> list[str]:
    """`control` so that only virtual devices share one that may (`SessionRecord.sets`)."""
    of_set = {v: number for number, some in enumerate(record.sets) for v in some}
    sharing = {(device, of_set.get(v)) for v, device in enumerate(devices)}
    physical = list(dict.fromkeys(devices))
    if not record.sets or len(sharing) == len(physical):
        return devices
    return place(record.virtual_devices, physical, sets=record.sets, now=now)


def check_devices(node: Node, live: LiveSession, devices: list[str]) -> None:
    """Refuse devices that are not one of this node's for each virtual device of the session."""
    record = live.record
    if len(devices) != record.virtual_devices:
        raise BadRequest(
            f"session {record.session} has {record.virtual_devices} virtual devices, "
            f"but {len(devices)} physical ones were named",
        )
    for device in devices:
        node.device(device)


async def _all(jobs: Iterable[Awaitable[None]]) -> None:
    """All of them at once; raises the first error when all have ended. None is cancelled: half an
    end of a proxy would leave its process."""
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
