"""Parks: the device state of a session is written to its files, and its devices are free."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from singularity_proxy.errors import BarrierFailed, SingularityError, Unavailable, Unsupported

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.ranks.barrier import together
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase

from .binding import ProxyBinder
from .driver_parks import DriverParks
from .proxies import Proxy

log = logging.getLogger("singularity.agent")

FORCED_PARK_S = 30.0
"""How long a proxy on a broken device may take to save its state before it is ended."""


class Parker:
    """Used by `devices.DeviceKeeper`. `attach(live, device)` brings a proxy back that had parked,
    when another one of its session could not; where that fails too, `try_again(live, device)` sees
    to it later."""

    def __init__(
        self,
        node: Node,
        binder: ProxyBinder,
        driver: DriverParks,
        attach: Callable[[LiveSession, str], Awaitable[None]],
        try_again: Callable[[LiveSession, str], None],
    ) -> None:
        self._node = node
        self._binder = binder
        self._driver = driver
        self._attach = attach
        self._try_again = try_again

    async def park(
        self,
        live: LiveSession,
        reason: str = "",
        force: bool = False,
        moving: bool = False,
        keep_lease: bool = False,
        anyhow: bool = False,
    ) -> dict[str, Any]:
        """Write the device state of a session and free its devices; the caller holds its lock.

        Answers {bytes, ms, stays}. `force`: its device is broken; `moving`: it goes on on another
        one; `keep_lease`: it comes back to these; `anyhow`: also where its ranks do not come
        together before. Raises what the proxies answered (`NoSpace`), or `BarrierFailed`: then it
        has its devices as before."""
        record = live.record
        if record.phase in (Phase.NONE, Phase.PARKED):
            return {"bytes": 0, "ms": 0.0, "stays": bool(live.off_device)}
        started = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            if not force and record.phase is Phase.HELD:
                try:
                    await stack.enter_async_context(together(live, self._node.settings.barrier_s))
                except (BarrierFailed, Unsupported) as error:
                    if not anyhow:
                        raise
                    log.warning("session %s: %s", record.session, error.message)
            return await self._park_now(live, reason, force, moving, keep_lease, started)

    async def _park_now(
        self,
        live: LiveSession,
        reason: str,
        force: bool,
        moving: bool,
        keep_lease: bool,
        started: float,
    ) -> dict[str, Any]:
        record, node = live.record, self._node
        if record.phase in (Phase.HELD, Phase.RESIZING):
            record.move(Phase.PARKING)
        node.try_save(live)
        devices = list(live.proxies)
        outcomes = await asyncio.gather(
            *(self._park_proxy(live, d, live.proxies[d], force, moving) for d in devices),
            return_exceptions=True,
        )
        record.check_live()
        errors = [x for x in outcomes if isinstance(x, BaseException)]
        if errors:
            # Some proxies may be gone with their state written: bring them back, keep it all.
            for device in sorted(set(record.devices) - set(live.proxies)):
                try:
                    await self._attach(live, device)
                except SingularityError as error:
                    log.error("session %s: %s", record.session, error.message)
                    self._try_again(live, device)
            record.check_live()
            record.move(Phase.HELD)
            node.try_save(live)
            raise errors[0]
        record.move(Phase.PARKED)
        record.reason = reason or record.reason
        if not keep_lease:
            node.leases.release(record.session)
        node.try_save(live)
        node.try_save_leases()
        written = sum(x for x in outcomes if isinstance(x, int))
        ms = round((time.monotonic() - started) * 1e3, 3)
        return {"bytes": written, "ms": ms, "stays": bool(live.off_device)}

    async def hurry(self, live: LiveSession) -> None:
        """What holds the session's lock may wait for a device that broke since: after a while give
        its proxies up, snapshot and journal are the state."""
        deadline = time.monotonic() + FORCED_PARK_S
        while live.lock.locked():
            if time.monotonic() >= deadline:
                for proxy in list(live.proxies.values()):
                    log.warning(
                        "session %s: its device is broken and its proxy does not answer; "
                        "it is ended",
                        live.record.session,
                    )
                    await proxy.abandon()
                deadline += FORCED_PARK_S  # an attach takes another proxy, which may hang as well
            await asyncio.sleep(0.05)

    async def _park_proxy(
        self, live: LiveSession, device: str, proxy: Proxy, force: bool, moving: bool
    ) -> int:
        if not (force or moving):
            left = await self._driver.park(live, device, proxy)
            if left is not None:
                return left
        began = time.monotonic()
        try:
            answer = await proxy.call("park", timeout=FORCED_PARK_S if force else None)
            written = int(answer.get("bytes", 0))
        except SingularityError as error:
            gone = isinstance(error, Unavailable) and not proxy.connected
            if not (gone or force):
                raise  # its own answer
            if not gone:
                log.warning(
                    "session %s: %s is broken and its proxy could not park (%s); its snapshot and "
                    "journal are the state",
                    live.record.session,
                    device,
                    error.message,
                )
            # Killed at this very moment: its snapshot and journal are the state.
            prefixes = [ring.record.prefix for ring in self._binder.rings_of(live, device)]
            written = sum(_size(p + suffix) for p in prefixes for suffix in (".snap", ".journal"))
        await self._binder.discard(live, device, proxy)
        self._binder.detach_headers(live, device)
        if not (force or moving):
            self._driver.copied(live, device, written, time.monotonic() - began)
        return written


def _size(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return 0
