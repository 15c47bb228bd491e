"""Carries out what the service decides about devices: attach, park, recover, fence.

Proxies come and go, rings stay: a session's device state is always either in a living proxy or in
its snapshot and journal files in /dev/shm. Every change is written to the ledger before it begins
and after it ended, so that an agent that is killed in between knows what to finish (`settle`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import (
    ProxyFailed,
    SingularityError,
    Unavailable,
)
from singularity_proxy.wire.ring import RingState

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.ranks.barrier import let_go
from singularity_scheduler.agent.rights.leases import LeaseGrant
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase
from singularity_scheduler.agent.sessions.rings import LiveRing

from .binding import ProxyBinder
from .driver_parks import DriverParks
from .parks import Parker
from .proxies import Proxy, adopt_proxy
from .recovery import Recovery
from .resizes import Resizer, check_devices, placed

log = logging.getLogger("singularity.agent")

NEED_EVERY_S = 0.9
"""A waiting worker rings every second; the service is told at most this often per session."""

FENCE_RETRY_S = 5.0
"""A session whose lease lapsed and whose state could not be written is tried again after this."""


class DeviceKeeper:
    """The device side of all sessions of the node. One object per agent."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._binder = ProxyBinder(node, self._proxy_exited)
        self._driver = DriverParks(node, self._binder)
        self._parker = Parker(
            node,
            self._binder,
            self._driver,
            self._attach_device,
            self._try_again,
        )
        self._recovery = Recovery(node, self._binder, self._parker.park)
        self._resizer = Resizer(node, self._binder, self._set_down)

    def start(self) -> None:
        """Find out how devices can be parked here."""
        self._driver.start()

    async def close(self) -> None:
        """Called when the agent ends, behind everything else."""
        await self._driver.close()

    def parks(self) -> dict[str, Any]:
        """How devices are parked here, for `hello`."""
        return self._driver.describe()

    # -- commands of the service ------------------------------------------------------------------

    async def attach(
        self, live: LiveSession, lease: LeaseGrant, devices: list[str]
    ) -> dict[str, Any]:
        """Give the session `control`, one per virtual device, under `lease`."""
        record, node = live.record, self._node
        record.check_live()
        record.check_epoch(lease.epoch)
        check_devices(node, live, devices)
        started = time.monotonic()
        async with live.lock:
            record.check_live()
            record.check_epoch(lease.epoch)
            devices = placed(record, devices, record.devices)
            node.leases.grant(record.session, lease.epoch, lease.ttl_s, lease.received)
            node.save_leases()
            if record.phase is Phase.HELD and record.devices == devices:
                record.epoch, record.reason = lease.epoch, lease.reason
                node.save(live)
                return {"ms": 0.0, "devices": devices}
            if record.phase is Phase.HELD:
                await self._parker.park(live, moving=True)
                node.leases.grant(record.session, lease.epoch, lease.ttl_s, lease.received)
            before = record.phase
            record.move(Phase.ATTACHING)
            record.epoch, record.devices = lease.epoch, list(devices)
            try:
                node.save(live)
                await self._attach_all(live)
            except BaseException:
                await self._give_up_attach(live, before)
                self._tell_need_soon(live)
                raise
            record.move(Phase.HELD)
            record.reason = lease.reason
            live.waiting, live.told_need = False, 0.0
            node.try_save(live)
        return {"ms": round((time.monotonic() - started) * 1e3, 3), "devices": devices}

    async def resize(
        self, live: LiveSession, lease: LeaseGrant, devices: list[str]
    ) -> dict[str, Any]:
        """Go on with other physical devices behind the same virtual ones; see `resizes`."""
        try:
            return await self._resizer.resize(live, lease, devices)
        finally:
            if live.record.phase is not Phase.HELD and live.record.alive:
                self._tell_lapsed_soon(live)

    async def _set_down(self, live: LiveSession, why: str) -> None:
        """A session whose rings are neither all here nor all there: it is parked, and comes back as
        a whole."""
        log.error("session %s gives its devices back: %s", live.record.session, why)
        reason = f"its devices could not be changed, nor put back as they were: {why}"
        with contextlib.suppress(SingularityError):
            await self._parker.park(live, reason, moving=True)

    async def park(
        self,
        live: LiveSession,
        epoch: int,
        reason: str,
        force: bool = False,
        moving: bool = False,
    ) -> dict[str, Any]:
        """Write the session's device state to its files and free its devices; the answer says how
        much and for how long, and whether it `stays`: comes back faster to the same devices. Raises
        `NoSpace` when it cannot be written: then the session keeps its devices and goes on.
        `force`: its device is broken, so what the proxy cannot write any more is left to the
        snapshot and the journal that are there. `moving`: it goes on on another device."""
        record = live.record
        record.check_live()
        record.check_epoch(epoch)
        if force:
            await self._parker.hurry(live)
        async with live.lock:
            record.check_live()
            record.check_epoch(epoch)
            record.epoch = epoch
            done = await self._parker.park(live, reason, force, moving)
        self._tell_need_soon(live)
        return done

    async def fence(self, live: LiveSession) -> None:
        """The lease lapsed: stop using the devices. State that cannot be written now is kept in
        its proxy and tried again; the service reads from `hello` that the device is still held."""
        record = live.record
        self._node.emit(record.session, "lease.lapsed")
        log.warning("session %s: its lease ran out, its devices are given back", record.session)
        while record.alive and self._node.leases.epoch(record.session) is None:
            try:
                async with live.lock:
                    if self._node.leases.epoch(record.session) is None and record.alive:
                        await self._parker.park(
                            live,
                            "the scheduler was away and the lease ran out; nothing was lost",
                            anyhow=True,
                        )
                return
            except SingularityError as error:
                log.error("session %s cannot be parked: %s", record.session, error.message)
            await asyncio.sleep(FENCE_RETRY_S)

    # -- workers ----------------------------------------------------------------------------------

    def needed(self, live: LiveSession, ring_id: str) -> None:
        """A worker rang the doorbell; called on the loop for every datagram."""
        ring = live.rings.need(ring_id)
        record = live.record
        if ring is None or not record.alive:
            return
        if record.phase is Phase.HELD:
            device = record.device_of(ring.record.virtual_device)
            proxy = live.proxies.get(device)
            missing = proxy is None or ring_id not in proxy.attached
            if missing and not live.lock.locked() and not self._recovery.is_trying(live, device):
                self._node.spawn(self._attach_late(live, ring), "attach of a new ring")
            return
        live.waiting = True
        if time.monotonic() - live.told_need >= NEED_EVERY_S:
            self._tell_need(live)

    def _tell_need(self, live: LiveSession) -> None:
        """Pass on that a worker waits; again right after a park or a failed attach during which
        it began to wait."""
        if live.waiting and live.record.phase in (Phase.NONE, Phase.PARKED):
            live.told_need = time.monotonic()
            self._node.emit(live.record.session, "device.need")

    def _tell_need_soon(self, live: LiveSession) -> None:
        # Behind the answer to the command, which the service must see first.
        asyncio.get_running_loop().call_later(0.02, self._tell_need, live)

    def _tell_lapsed_soon(self, live: LiveSession) -> None:
        # Behind the answer to the command, as above.
        session = live.record.session
        asyncio.get_running_loop().call_later(0.02, self._node.emit, session, "lease.lapsed")

    def check_waiting(self, live: LiveSession) -> None:
        """Notice that nobody waits any more; called about twice a second for waiting sessions."""
        if live.waiting and not live.rings.still_waiting():
            live.waiting = False
            if live.record.phase in (Phase.NONE, Phase.PARKED):
                self._node.emit(live.record.session, "device.withdrawn")

    def open_ring(
        self, live: LiveSession, virtual_device: int, worker: ProcessIdentity
    ) -> dict[str, Any]:
        """A ring for `worker`; answer of `ring.open`."""
        node, record = self._node, live.record
        record.check_live()
        capacity = int(node.devices[0]["capacity_bytes"])
        ring, older = live.rings.create(virtual_device, worker, node.device_type, capacity)
        try:
            node.save(live)
        except SingularityError:
            live.rings.forget(ring)
            raise
        for old in older:
            self.worker_ended(live, old)
        return {
            "ring_id": ring.ring_id,
            "path": record.inside(ring.record.path),
            "device_type": node.device_type,
            "memory_capacity": capacity,
        }

    def worker_ended(self, live: LiveSession, ring: LiveRing) -> None:
        """The ring's process is gone: its ring ends, also in the proxy that serves it."""
        if live.record.alive:
            self._node.spawn(self._close_ring(live, ring), "end of a ring")

    async def _close_ring(self, live: LiveSession, ring: LiveRing) -> None:
        async with live.lock:
            if live.rings.rings.get(ring.ring_id) is not ring or not live.record.alive:
                return
            ring.file.set_state(RingState.CLOSED)
            for proxy in live.proxies.values():
                if ring.ring_id in proxy.attached:
                    proxy.attached.discard(ring.ring_id)
                    with contextlib.suppress(SingularityError):
                        await proxy.call("close_ring", timeout=None, ring_id=ring.ring_id)
            live.rings.forget(ring)
            await self._driver.end_idle(live)
            self._node.try_save(live)

    async def _attach_late(self, live: LiveSession, ring: LiveRing) -> None:
        async with live.lock:
            record = live.record
            if record.phase is not Phase.HELD or live.rings.rings.get(ring.ring_id) is not ring:
                return
            device = record.device_of(ring.record.virtual_device)
            proxy = live.proxies.get(device)
            if proxy is not None and ring.ring_id not in proxy.attached:
                try:
                    await self._binder.attach_ring(live, proxy, ring)
                except Unavailable:
                    pass  # the proxy died: recovery attaches all rings
                except ProxyFailed as error:
                    self._binder.fail_rings(live, [ring], error.message)
        if proxy is None:
            await self._recovery.serve(live, device)

    # -- attach -----------------------------------------------------------------------------------

    async def _attach_all(self, live: LiveSession) -> None:
        await self._driver.end_unfit(live)
        devices = sorted(set(live.record.devices))
        jobs = [asyncio.ensure_future(self._attach_device(live, d)) for d in devices]
        try:
            await asyncio.gather(*jobs)
        except BaseException:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            raise

    async def _attach_device(self, live: LiveSession, device: str) -> None:
        if await self._driver.bring_back(live, device):
            return
        began = time.monotonic()
        await self._binder.attach_device(live, device, self._binder.rings_of(live, device))
        self._driver.resumed(live, device, time.monotonic() - began)

    async def _give_up_attach(self, live: LiveSession, before: Phase) -> None:
        """An attach failed half way: what already runs is parked, the rest ended."""
        record = live.record
        for device, proxy in list(live.proxies.items()):
            if proxy.attached and record.alive:
                with contextlib.suppress(SingularityError):
                    await proxy.call("park", timeout=None)
            await self._binder.discard(live, device, proxy)
        self._binder.detach_headers(live)
        record.move(before)
        self._node.leases.release(record.session)
        if record.alive:
            self._node.try_save(live)
            self._node.try_save_leases()

    # -- process images ---------------------------------------------------------------------------

    async def set_aside(self, live: LiveSession) -> list[str]:
        """Write the device state of a frozen session to its files; its lease stays. Returns the
        devices that `take_back` wants. The caller holds the session's lock."""
        record = live.record
        devices = list(record.devices) if record.phase is Phase.HELD else []
        await self._parker.park(live, moving=True, keep_lease=True)
        return devices

    async def take_back(self, live: LiveSession, devices: list[str]) -> None:
        """Go on with the devices of `set_aside`, unless the lease lapsed meanwhile; a failure
        leaves the session parked, and its next device call asks anew."""
        record, leases = live.record, self._node.leases
        if not devices or not record.alive or record.phase is not Phase.PARKED:
            return
        if leases.epoch(record.session) is None:
            leases.release(record.session)
            self._node.try_save_leases()
            return
        record.move(Phase.ATTACHING)
        record.devices = list(devices)
        try:
            self._node.try_save(live)
            await self._attach_all(live)
        except SingularityError as error:
            log.error("session %s is parked: %s", record.session, error.message)
            await self._give_up_attach(live, Phase.PARKED)
            self._tell_need_soon(live)
            return
        record.move(Phase.HELD)
        self._node.try_save(live)

    async def copy_states(self, live: LiveSession, folder: str) -> None:
        """Have the proxies write the device state to `folder` and go on; it need not outlive this
        machine there. The caller holds the session's lock. Raises `Unavailable` when one of them
        ends meanwhile: it is replaced when the lock is free again."""
        for proxy in list(live.proxies.values()):
            try:
                await proxy.call("checkpoint", timeout=None, directory=folder, durable=False)
            except Unavailable:
                raise Unavailable(
                    f"a device proxy of session {live.record.session} ended before it had written "
                    "the device state; the session goes on with another one and older checkpoints "
                    "were kept, try again"
                ) from None

    # -- recovery ---------------------------------------------------------------------------------

    def _try_again(self, live: LiveSession, device: str) -> None:
        self._recovery.try_again(live, device)

    def _proxy_exited(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        if live.record.alive and not self._node.stopping:
            self._node.spawn(self.recover(live, device, proxy), "recovery of a device proxy")

    async def recover(self, live: LiveSession, device: str, dead: Proxy | None) -> None:
        """The proxy of `device` ended by itself, was killed or given up."""
        await self._recovery.recover(live, device, dead)

    # -- after an agent restart -------------------------------------------------------------------

    async def settle(self, live: LiveSession) -> None:
        """Bring the session into a defined phase after this agent replaced one that was killed.

        Held: proxies that live are adopted, dead ones recovered. An attach that was under way is
        undone, a park that was under way is finished; the service repeats its command anyway."""
        record, node = live.record, self._node
        async with live.lock:
            if not record.alive:
                return
            for device, proxy_record in list(record.proxies.items()):
                proxy = await adopt_proxy(proxy_record)
                if proxy is None:
                    del record.proxies[device]
                    continue
                if await self._driver.adopt(live, device, proxy):
                    continue
                live.proxies[device] = proxy
                self._binder.watch(live, device, proxy)
                if not proxy.watch.alive:
                    self._proxy_exited(live, device, proxy)
            await let_go(live)
            if record.phase is Phase.ATTACHING:
                ran = any(ring.file.read().done_seq for ring in live.rings.rings.values())
                await self._give_up_attach(live, Phase.PARKED if ran else Phase.NONE)
            elif record.phase is Phase.RESIZING:
                if not await self._resizer.settle(live):
                    self._tell_lapsed_soon(live)
            elif record.phase is Phase.PARKING:
                with contextlib.suppress(SingularityError):
                    await self._parker.park(live)
            if record.phase is Phase.HELD:
                await self._finish_attach(live)
        if record.phase is Phase.HELD:
            for device in sorted(set(record.devices) - set(live.proxies)):
                await self.recover(live, device, None)
        if record.alive:
            node.try_save(live)

    async def _finish_attach(self, live: LiveSession) -> None:
        """Have adopted proxies serve all rings that they should: the agent before this one may have
        been killed while one took the place of another. What none serves is left to recovery."""
        for device, proxy in list(live.proxies.items()):
            rings = self._binder.rings_of(live, device)
            missing = [ring for ring in rings if ring.ring_id not in proxy.attached]
            if not missing:
                continue
            with contextlib.suppress(SingularityError):
                if proxy.attached:  # else it may not even belong to the session yet
                    await self._binder.attach_rings(live, proxy, missing)
                    continue
            await self._binder.discard(live, device, proxy)

    async def drop(self, live: LiveSession) -> None:
        """End all proxies of a session that ends; their state goes with it."""
        await self._end_proxies(live)
        async with live.lock:
            await self._end_proxies(live)
            known = {*live.proxies, *live.off_device}
            for device, proxy_record in live.record.proxies.items():
                # Of an agent before this one, which did not come to take it over.
                if device not in known and (proxy := await adopt_proxy(proxy_record)):
                    await proxy.end()
            self._driver.forget(live)
            live.proxies.clear()
            live.off_device.clear()
            live.record.proxies.clear()
        self._node.leases.release(live.record.session)

    async def _end_proxies(self, live: LiveSession) -> None:
        proxies = (*live.proxies.values(), *live.off_device.values())
        await asyncio.gather(*(proxy.end() for proxy in proxies))
