"""Device proxies as processes of this one: warm spares, and the ways to take one off its device."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity_proxy.checkpoint.device import driver, park_policy
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_proxy.wire import rpc

START_SECONDS = 60.0
OWN_GROUP: dict[str, Any] = (  # not a session of its own, see capsule.launcher
    {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
)


@dataclass(frozen=True)
class Held:
    """A proxy that was taken off its device."""

    device_bytes: int
    seconds: float


class Proxy:
    """A device proxy process and the connection to it; an `elastic.coordinator.Stoppable`."""

    def __init__(self, process: subprocess.Popen[bytes], peer: rpc.Peer) -> None:
        self.process = process
        self.peer = peer
        self.attached: set[str] = set()
        self.held: Held | None = None
        """Set while the driver has it."""

    @property
    def dead(self) -> bool:
        """A killed process closes its socket a moment before it can be waited for."""
        return self.peer.closed.is_set() or self.process.poll() is not None

    async def barrier_ask(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.peer.call("barrier_ask")
        return answer

    async def barrier_hold(
        self, targets: Mapping[str, int], deadline_s: float, grace_s: float
    ) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.peer.call(
            "barrier_hold", targets=targets, deadline_s=deadline_s, grace_s=grace_s
        )
        return answer

    async def barrier_release(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.peer.call("barrier_release")
        return answer

    async def end(self) -> None:
        await self.peer.close()
        self.process.kill()
        await asyncio.to_thread(self.process.wait)


class Spares:
    """Proxies that belong to nobody yet: `count` of them, replaced as they are taken. `on_close`
    is called with a proxy whose connection has ended."""

    def __init__(
        self, folder: Path, count: int, env: dict[str, str], on_close: Callable[[Proxy], None]
    ) -> None:
        self._folder, self._env, self._on_close = folder, env, on_close
        self._ended = False
        self._starting = deque(asyncio.create_task(self._spawn()) for _ in range(count))

    async def take(self) -> Proxy:
        """Raises Unavailable when no proxy can be started."""
        task = self._starting.popleft()
        self._starting.append(asyncio.create_task(self._spawn()))
        return await task

    async def warm(self) -> None:
        """Until the next ones need not be waited for."""
        await asyncio.gather(*(asyncio.shield(task) for task in self._starting))

    def pids(self) -> list[int]:
        return [task.result().process.pid for task in self._starting if task.done()]

    async def end(self) -> None:
        for task in self._starting:
            with contextlib.suppress(SingularityError):
                await (await task).end()
        self._starting.clear()

    async def _connected(self, process: subprocess.Popen[bytes], path: Path) -> Proxy:
        peer = await rpc.connect(path, on_close=lambda _: self._on_close(proxy))
        proxy = Proxy(process, peer)
        return proxy

    async def _spawn(self) -> Proxy:
        path = self._folder / f"p-{uuid.uuid4().hex[:8]}.sock"
        env = {k: v for k, v in os.environ.items() if not k.startswith("SINGULARITY_")}
        env.update(self._env)
        process = subprocess.Popen(  # noqa: ASYNC220  (a fork takes a millisecond)
            [sys.executable, "-m", "singularity_proxy.device", "--socket", str(path), "--warm"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=env,
            **OWN_GROUP,
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await self._connected(process, path)
            except Unavailable:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    await asyncio.to_thread(process.wait)
                    raise Unavailable(
                        f"the device proxy did not start (exit code {process.returncode})"
                    ) from None
                await asyncio.sleep(0.02)


class Parks:
    """Takes proxies off their devices, by a copy or by the driver, and measures which is faster."""

    def __init__(self, library: str) -> None:
        self.driver = driver.DriverHelper(library) if library else None
        self.measured = park_policy.Measurements()
        self.copied: dict[str, Held] = {}
        """Parks by a copy whose resume is not measured yet, by physical device."""

    async def close(self) -> None:
        if self.driver is not None:
            await asyncio.to_thread(self.driver.close)

    async def park(self, device: str, proxy: Proxy, way: str, epoch: int) -> tuple[int, str]:
        """-> (bytes, way taken). Raises Unavailable when the proxy dies meanwhile."""
        chosen = way if way != park_policy.AUTO else (await self._choose(proxy)).way
        if chosen == park_policy.DRIVER and await self._by_driver(proxy, epoch):
            return proxy.held.device_bytes if proxy.held else 0, chosen
        began = time.monotonic()
        size = int((await proxy.peer.call("park"))["bytes"])
        await asyncio.to_thread(proxy.process.wait)
        await proxy.peer.close()
        self.copied[device] = Held(size, time.monotonic() - began)
        return size, park_policy.COPY

    def attached(self, device: str, began: float) -> None:
        """What the last park of `device` by a copy has cost in all is known now."""
        if copied := self.copied.pop(device, None):
            seconds = copied.seconds + time.monotonic() - began
            self.measured.remember(
                park_policy.COPY, park_policy.Measured(copied.device_bytes, seconds)
            )

    async def unpark(self, proxy: Proxy, epoch: int) -> None:
        """Back from the driver; a proxy that cannot come back is killed, and then rebuilt."""
        assert self.driver is not None
        assert proxy.held is not None
        held, proxy.held = proxy.held, None
        start = time.monotonic()
        try:
            await asyncio.to_thread(
                driver.unpark, self.driver, proxy.process.pid, held.device_bytes
            )
            await proxy.peer.call("release", epoch=epoch)
        except SingularityError:
            self.measured.failed()
            proxy.process.kill()
            await asyncio.to_thread(proxy.process.wait)
            return
        seconds = held.seconds + time.monotonic() - start
        self.measured.remember(park_policy.DRIVER, park_policy.Measured(held.device_bytes, seconds))

    async def _choose(self, proxy: Proxy) -> park_policy.Choice:
        stats = await proxy.peer.call("stats")
        return park_policy.choose(
            self.measured,
            device_bytes=int(stats["memory_current"]),
            host_free_bytes=driver.host_free_bytes(proxy.process.pid),
            driver=self.driver is not None,
            recoverable=all(ring["recovery"] for ring in stats["rings"].values()),
        )

    async def _by_driver(self, proxy: Proxy, epoch: int) -> bool:
        """False: the proxy runs on and a copy is needed. True also when it had to be killed."""
        assert self.driver is not None, "no driver library was named"
        start = time.monotonic()
        try:
            held = int((await proxy.peer.call("hold"))["bytes"])
        except SingularityError:
            return False  # it keeps no journal, or is held
        # The driver moves what is reserved, which is more than the policy was asked about.
        if not park_policy.has_room(held, driver.host_free_bytes(proxy.process.pid)):
            await proxy.peer.call("release", epoch=epoch)
            return False
        try:
            await asyncio.to_thread(driver.park, self.driver, proxy.process.pid, held)
        except driver.DriverLost:
            self.measured.failed()
            proxy.process.kill()  # the device is free, and snapshot and journal rebuild the rest
            await asyncio.to_thread(proxy.process.wait)
            return True
        except SingularityError:
            self.measured.failed()
            await proxy.peer.call("release", epoch=epoch)
            return False
        proxy.held = Held(held, time.monotonic() - start)
        return True
