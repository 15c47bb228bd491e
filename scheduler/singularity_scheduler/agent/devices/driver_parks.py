"""Parks by the CUDA driver: the device proxy leaves its device, and its process stays.

`control` asks here first and parks by a copy where the answer is no. A proxy that is off its device
holds nothing of it: the memory is in its own process, its rings are detached, their snapshots and
journals stay on file. So it can be ended at any moment, by anybody, and nothing is lost: another
proxy rebuilds the state. It is the only way to go on when the session gets another device.

`singularity_proxy.checkpoint.device.driver` has the calls, `park_policy` the choice between both
ways.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from singularity_proxy.checkpoint.device import driver, park_policy
from singularity_proxy.checkpoint.device.driver import DriverHelper, DriverLost, DriverState, Moved
from singularity_proxy.checkpoint.device.park_policy import Measured, Measurements
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_proxy.probes import PAUSE_S, TRIES

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import OffDevice, Phase

from .binding import ProxyBinder
from .driver_helpers import HelperFiles
from .proxies import Proxy

log = logging.getLogger("singularity.agent")

Steps = Callable[[DriverHelper, int, int], Moved]


def library_of(device_type: str) -> str:
    """The library that can take a process off such a device; "": there is none."""
    return driver.LIBRARY if device_type == "cuda" else ""


class DriverParks:
    """One object per agent. All calls but `start` and `look` are made under the session's lock."""

    def __init__(self, node: Node, binder: ProxyBinder) -> None:
        self._node = node
        self._binder = binder
        self._library = ""
        self.available = False
        self.reason = "cpu devices are parked by a copy"
        self._helpers: dict[str, DriverHelper] = {}
        """By device: a call for one does not wait for that of another."""
        self._measured: dict[str, Measurements] = {}
        self._copied: dict[tuple[str, str], Measured] = {}
        """Parks by a copy that were not resumed yet, by session and device."""
        self._files = HelperFiles(os.path.join(node.settings.state_dir, "driver-helpers"))
        self._left_over: asyncio.Task[set[str]] | None = None
        """Ends what the agent before this one left; the devices of the calls it was in."""
        self._promised = 0
        """Bytes of host memory that parks under way will fill."""

    # -- what the machine can do ------------------------------------------------------------------

    def start(self) -> None:
        """Find out what the driver can do, in the background: until then parks are copies."""
        self._library = library_of(self._node.device_type)
        if not self._library:
            return
        ending = self._files.end_left_over()
        self._left_over = self._node.spawn(ending, "the end of left-over helpers")
        self.reason = "the driver was not asked yet"
        kept = self._node.ledger.get("node", "parks") or {}
        for device, text in kept.items():
            with contextlib.suppress(ValueError):
                self._measured[device] = Measurements.from_json(text)
        self._node.spawn(self.look(), "a look at the driver")

    async def look(self) -> None:
        """Ask the driver; a helper that was killed or did not answer has said nothing, so it is
        asked again, `TRIES` times."""
        for number in range(TRIES):
            found = await asyncio.to_thread(driver.describe, self._library)
            if found.get("conclusive", True):
                break
            await asyncio.sleep(PAUSE_S * 2**number)
        self.available = bool(found["available"])
        self.reason = (
            f"the CUDA driver (API {found['version']}) can checkpoint a process"
            if self.available
            else str(found["reason"])
        )
        log.info("parks by the driver: %s", self.reason)

    def describe(self) -> dict[str, Any]:
        """For `hello`: whether there is such a park here, and how much host memory those take."""
        records = [
            live.record.proxies[device]
            for live in self._node.sessions.values()
            for device in live.off_device
        ]
        return {
            "available": self.available,
            "reason": self.reason,
            "way": self._node.settings.park_by,
            "proxies": len(records),
            "host_bytes": sum(record.off.device_bytes for record in records if record.off),
        }

    async def close(self) -> None:
        """End the helpers, also in the middle of a call; called last."""
        for helper in self._helpers.values():
            await asyncio.to_thread(helper.close)
        self._files.forget()

    # -- park -------------------------------------------------------------------------------------

    async def park(self, live: LiveSession, device: str, proxy: Proxy) -> int | None:
        """Take the proxy off its device. Returns the bytes that left it; None: park it by a copy,
        it serves on (or is gone, which the copy finds out)."""
        if not self.available:
            return None
        try:
            stats = await proxy.call("stats")
        except SingularityError:
            return None
        size, rings = int(stats["memory_current"]), stats["rings"].values()
        free = driver.host_free_bytes(proxy.identity.pid)
        choice = park_policy.choose(
            self._known(device),
            device_bytes=size,
            host_free_bytes=max(0, free - self._promised),
            driver=True,
            recoverable=bool(rings) and all(ring["recovery"] for ring in rings),
            wanted=self._node.settings.park_by,
        )
        log.info(
            "session %s leaves %s by %s: %s",
            live.record.session,
            device,
            "the driver" if choice.way == park_policy.DRIVER else "a copy",
            choice.reason,
        )
        if choice.way != park_policy.DRIVER:
            return None
        return await self._take_off(live, device, proxy)

    async def _take_off(self, live: LiveSession, device: str, proxy: Proxy) -> int | None:
        record, virtual = live.record.proxies[device], _virtual_devices(live, device)
        record.off = OffDevice(virtual)
        try:
            self._node.save(live)  # an agent that comes next has to know what to look for
        except SingularityError:
            record.off = None
            return None
        began = time.monotonic()
        try:
            size = int((await proxy.call("hold", timeout=None))["bytes"])
        except SingularityError:
            record.off = None
            return None
        # It is what the device has reserved that moves, and other parks may have begun meanwhile.
        free = max(0, driver.host_free_bytes(proxy.identity.pid) - self._promised)
        if not park_policy.has_room(size, free):
            why = f"the host has no room for the {size} bytes that its device proxy has reserved"
            return await self._copy_instead(live, device, proxy, why)
        # So much is in host memory if this agent is killed and the driver finishes on its own.
        record.off = OffDevice(virtual, size)
        self._node.try_save(live)
        self._promised += size
        try:
            await self._ask(device, proxy, driver.park, size)
        except (DriverLost, Unavailable) as error:
            self._failed(device, proxy)
            return await self._give_up(live, device, proxy, error.message)
        except SingularityError as error:
            self._failed(device, proxy)
            return await self._copy_instead(live, device, proxy, error.message)
        except BaseException:
            await self._binder.discard(live, device, proxy)
            raise
        finally:
            self._promised -= size
        record.off = OffDevice(virtual, size, time.monotonic() - began)
        if live.proxies.pop(device, None) is proxy and proxy.watch.alive:
            self._set_aside(live, device, proxy)
        else:  # it ended right now
            await self._binder.discard(live, device, proxy)
        return size

    async def _copy_instead(
        self, live: LiveSession, device: str, proxy: Proxy, why: str
    ) -> int | None:
        """Let a held proxy serve again, for a copy; None, or 0 when it has to be ended."""
        log.warning("session %s: %s; it is parked by a copy", live.record.session, why)
        live.record.proxies[device].off = None
        try:
            await proxy.call("release", timeout=None, epoch=live.record.epoch)
        except SingularityError as refused:
            return await self._give_up(live, device, proxy, refused.message)
        return None

    async def _give_up(self, live: LiveSession, device: str, proxy: Proxy, why: str) -> int:
        """A proxy that is in no usable state is ended: the device is free all the same."""
        log.warning(
            "session %s: %s; its device proxy is ended, snapshot and journal are its state",
            live.record.session,
            why,
        )
        await self._binder.discard(live, device, proxy)
        self._binder.detach_headers(live, device)
        return 0

    def _set_aside(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        live.off_device[device] = proxy
        proxy.on_exit = lambda _: self._ended(live, device, proxy)

    def _ended(self, live: LiveSession, device: str, proxy: Proxy) -> None:
        """It was killed while it was off its device: its state is on file."""
        if live.off_device.get(device) is not proxy or self._node.stopping:
            return
        log.warning(
            "session %s: its parked device proxy ended; snapshot and journal are its state",
            live.record.session,
        )
        self._node.spawn(self._end(live, device), "end of a parked device proxy")

    async def _end(self, live: LiveSession, device: str) -> None:
        """Forget a proxy that is off its device, and end it; its state is on file."""
        proxy = live.off_device.pop(device, None)
        if proxy is not None:
            live.record.proxies.pop(device, None)
            self._node.try_save(live)
            await proxy.end()

    # -- and back ---------------------------------------------------------------------------------

    async def end_unfit(self, live: LiveSession) -> None:
        """End the proxies that are of no use on the devices the session now gets."""
        for device in list(live.off_device):
            if device not in live.off_device:
                continue  # it ended during the end of another
            off = live.record.proxies[device].off
            here = _virtual_devices(live, device)
            if off is None or not set(off.virtual_devices) <= set(here):
                log.info(
                    "session %s does not go back to %s: its state is rebuilt elsewhere",
                    live.record.session,
                    device,
                )
                await self._end(live, device)

    async def end_idle(self, live: LiveSession) -> None:
        """End the proxies none of whose rings is left: they only fill the host's memory."""
        for device, proxy in list(live.off_device.items()):
            if not proxy.attached & set(live.rings.rings):
                await self._end(live, device)

    async def bring_back(self, live: LiveSession, device: str) -> bool:
        """Put the proxy that left `device` back on it and let it serve. False: there is none (any
        more), so another one has to rebuild the state."""
        proxy = live.off_device.get(device)
        off = live.record.proxies[device].off if proxy is not None else None
        if proxy is None or off is None:
            return False
        began = time.monotonic()
        rings = self._binder.rings_of(live, device)
        try:
            await self._ask(device, proxy, driver.unpark, off.device_bytes)
            for ring in rings:
                ring.file.set_epoch(live.record.epoch)
            await proxy.call("release", timeout=None, epoch=live.record.epoch)
        except SingularityError as error:
            self._failed(device, proxy)
            log.warning(
                "session %s: %s; another device proxy rebuilds its state",
                live.record.session,
                error.message,
            )
            await self._end(live, device)
            return False
        except BaseException:
            await self._end(live, device)
            raise
        if live.off_device.get(device) is not proxy or not proxy.watch.alive:
            await self._end(live, device)  # it ended right now
            return False
        del live.off_device[device]
        live.proxies[device] = proxy
        self._binder.watch(live, device, proxy)
        live.record.proxies[device].off = None
        if off.seconds:  # else an agent before this one began the park, and nobody timed it
            seconds = off.seconds + time.monotonic() - began
            self._remember(device, park_policy.DRIVER, Measured(off.device_bytes, seconds))
        try:
            for ring_id in proxy.attached - set(live.rings.rings):  # their workers ended meanwhile
                proxy.attached.discard(ring_id)
                await proxy.call("close_ring", timeout=None, ring_id=ring_id)
            new = [ring for ring in rings if ring.ring_id not in proxy.attached]
            await self._binder.attach_rings(live, proxy, new)
        except Unavailable:
            await self._binder.discard(live, device, proxy)
            self._binder.detach_headers(live, device)
            return False
        return True

    # -- after an agent restart -------------------------------------------------------------------

    async def adopt(self, live: LiveSession, device: str, proxy: Proxy) -> bool:
        """Settle a proxy that the agent before this one was parking, had parked or was bringing
        back. True: it is off its device, or was ended; False: it serves."""
        record = live.record.proxies[device]
        if record.off is None:
            return False
        helper, pid = self._helper(device), proxy.identity.pid
        parked = live.record.phase is Phase.PARKED
        left_over = await asyncio.shield(self._left_over) if self._left_over else set()
        try:
            if device in left_over and not parked:
                # A call that was under way may change its state at any time, also after its helper.
                raise DriverLost(f"the driver was moving process {pid}, which cannot be trusted")
            state = await asyncio.to_thread(helper.call, "state", driver.LOCK_SECONDS, pid=pid)
            # Held or attaching, the device it may be on its way to is soon another session's.
            leaving = parked or live.record.phase is Phase.PARKING
            if state == DriverState.CHECKPOINTED and leaving:
                self._set_aside(live, device, proxy)
                return True
            if state == DriverState.LOCKED and not parked:
                limit = driver.LOCK_SECONDS + 30
                await asyncio.to_thread(helper.call, "unlock", limit, pid=pid)
                state = DriverState.RUNNING
            if state == DriverState.RUNNING and not parked:
                stats = await proxy.call("stats", timeout=30.0)
                if stats.get("held", False):
                    await proxy.call("release", timeout=None, epoch=live.record.epoch)
                record.off = None
                return False
        except SingularityError as error:
            log.warning("session %s: %s", live.record.session, error.message)
        live.off_device[device] = proxy
        await self._end(live, device)
        return True

    # -- figures ----------------------------------------------------------------------------------

    def copied(self, live: LiveSession, device: str, device_bytes: int, seconds: float) -> None:
        """A park by a copy took so long; how long its resume takes is told by `resumed`."""
        if self.available:
            self._copied[live.record.session, device] = Measured(device_bytes, seconds)

    def resumed(self, live: LiveSession, device: str, seconds: float) -> None:
        """Another proxy serves on `device` after so many seconds."""
        park = self._copied.pop((live.record.session, device), None)
        if park is not None:
            whole = Measured(park.device_bytes, park.seconds + seconds)
            self._remember(device, park_policy.COPY, whole)

    def forget(self, live: LiveSession) -> None:
        """The session ends, or goes on elsewhere: what was begun is not finished."""
        for key in [key for key in self._copied if key[0] == live.record.session]:
            del self._copied[key]

    def _known(self, device: str) -> Measurements:
        return self._measured.setdefault(device, Measurements())

    def _remember(self, device: str, way: str, measured: Measured) -> None:
        self._known(device).remember(way, measured)
        self._save()

    def _failed(self, device: str, proxy: Proxy) -> None:
        if proxy.watch.alive:  # else it was ended, which says nothing about the driver
            self._known(device).failed()
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(SingularityError):  # measured again
            texts = {device: known.to_json() for device, known in self._measured.items()}
            self._node.ledger.put("node", "parks", texts)

    # -- the driver -------------------------------------------------------------------------------

    def _helper(self, device: str) -> DriverHelper:
        if device not in self._helpers:
            self._helpers[device] = DriverHelper(self._library, self._files.writer(device))
        return self._helpers[device]

    async def _ask(self, device: str, proxy: Proxy, steps: Steps, size: int) -> Moved:
        """`steps` in a thread; given up when the proxy ends meanwhile (`DriverLost`)."""
        helper = self._helper(device)
        call = asyncio.ensure_future(asyncio.to_thread(steps, helper, proxy.identity.pid, size))
        gone = asyncio.ensure_future(proxy.watch.wait())
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not call.done():
                await asyncio.to_thread(helper.close)
                await asyncio.gather(call, return_exceptions=True)
        return call.result()


def _virtual_devices(live: LiveSession, device: str) -> list[int]:
    """The virtual devices of the session behind a physical one."""
    return [v for v, behind in enumerate(live.record.devices) if behind == device]
