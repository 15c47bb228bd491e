"""One session on this machine without a platform: ring files, a doorbell and device proxies.

    python -m singularity_proxy.standalone train.py --lr 0.1

runs an unchanged script under the device proxy with nothing installed but torch. Benchmarks, the
proxy's own tests and a first look on a GPU machine use it; in the product the node agent does this
work, with leases, users and many sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .checkpoint import driver, park_policy
from .errors import BadRequest, SingularityError, Unavailable
from .wire import rpc
from .wire.ring import RingFile

T = TypeVar("T")
START_SECONDS = 60.0
ATTACH_ATTEMPTS = 5
OWN_GROUP: dict[str, Any] = (  # not a session of its own, see capsule.launcher
    {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
)


class _Proxy:
    """A device proxy process and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], peer: rpc.Peer) -> None:
        self.process = process
        self.peer = peer
        self.bound: dict[str, Any] = {}
        self.held: _Held | None = None


@dataclass(frozen=True)
class _Held:
    """A proxy that the driver has taken off its device."""

    device_bytes: int
    seconds: float


class Standalone:
    """A session of `devices` virtual devices: `with Standalone() as s: run(..., env=s.env())`.

    Each virtual device i has an own proxy on the physical device `{device_type}:{i}` until `attach`
    names others. `capacity_bytes` is per device, `threads` per proxy (0: one per core),
    `journal_bytes` as in the device proxy (0: no recovery). `driver_library` is the CUDA driver
    whose process checkpoint `park` may use ("": never), `proxy_env` what proxies get in their
    environment besides this process's. Methods may be called from any thread.
    """

    def __init__(
        self,
        device_type: str = "cpu",
        devices: int = 1,
        capacity_bytes: int = 4 << 30,
        threads: int = 1,
        journal_bytes: int = 64 << 20,
        driver_library: str | None = None,
        proxy_env: dict[str, str] | None = None,
    ) -> None:
        self.device_type = device_type
        self.devices = devices
        self.capacity_bytes = capacity_bytes
        self.threads = threads or os.cpu_count() or 1
        self.journal_bytes = journal_bytes
        self.session = uuid.uuid4().hex[:12]
        self.epoch = 0
        self.proxy_env = proxy_env or {}
        if driver_library is None:
            driver_library = driver.LIBRARY if device_type == "cuda" else ""
        self.driver = driver.DriverHelper(driver_library) if driver_library else None
        self.measured = park_policy.Measurements()
        self.automatic = True
        """Attach when a worker rings the doorbell; switch off to hold a session parked."""
        self.doorbell_rings = 0
        self._ended = False
        self._rings: dict[str, tuple[int, RingFile]] = {}
        self._proxies: dict[int, _Proxy] = {}
        self._copied: dict[int, _Held] = {}
        """Parks by a copy whose resume is not measured yet, by virtual device."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="standalone", daemon=True
        )

    # ---- life

    def __enter__(self) -> Standalone:
        self.folder = Path(tempfile.mkdtemp(prefix="singularity-", dir="/tmp"))
        self.shm = Path("/dev/shm") / f"singularity-{self.session}"
        self.shm.mkdir(mode=0o700)
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)

    def env(self) -> dict[str, str]:
        """This process's environment with what makes a child a worker of the session."""
        return {
            **os.environ,
            "SINGULARITY_SESSION": self.session,
            "SINGULARITY_SOCKET": str(self.folder / "agent.sock"),
            "SINGULARITY_DOORBELL": str(self.folder / "doorbell"),
            "SINGULARITY_DEVICES": str(self.devices),
            "SINGULARITY_DEVICE_TYPE": self.device_type,
        }

    # ---- verbs

    def park(self, way: str = "auto") -> dict[str, Any]:
        """Free the devices, by "copy", by "driver" or by what is expected to be faster ("auto").

        Answers {"bytes", "ms", "ways"}: ms until every device is free, and per proxy the way that
        was taken. Where the driver fails the state is copied, or rebuilt at the next `attach`.
        """
        if way not in park_policy.WAYS:
            raise BadRequest(f"a device is parked by 'copy', 'driver' or 'auto', not '{way}'")
        return self._run(self._park(way))

    def attach(self, physical: list[str] | None = None) -> None:
        """Put proxies behind the rings, on `physical` devices (default: the first ones)."""
        self._run(self._attach(physical))

    def checkpoint(self, directory: str) -> list[dict[str, Any]]:
        """Device state of all proxies written to `directory`; execution goes on."""
        return self._run(self._checkpoint(directory))

    def proxy_pids(self) -> list[int]:
        return [p.process.pid for p in self._proxies.values()]

    def all_pids(self) -> list[int]:
        """The proxies and the warm spare."""
        spare = [self._spare.result()[0].pid] if self._spare.done() else []
        return self.proxy_pids() + spare

    def wait_warm(self) -> None:
        """Until the next `attach` needs not start a process."""

        async def wait() -> None:
            await asyncio.shield(self._spare)

        self._run(wait())

    def stats(self) -> list[dict[str, Any]]:
        return self._run(self._stats())

    def rings(self) -> list[RingFile]:
        return [ring for _, ring in self._rings.values()]

    # ---- inside the loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS * 2)

    async def _start(self) -> None:
        self._lock = asyncio.Lock()
        self._server = await rpc.serve(
            self.folder / "agent.sock", {"ring.open": self._open_ring}, allowed_uids={os.getuid()}
        )
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._bell.bind(str(self.folder / "doorbell"))
        self._loop.add_reader(self._bell, self._rung)
        self._spare = asyncio.create_task(self._spawn())

    async def _stop(self) -> None:
        self._loop.remove_reader(self._bell)
        self._bell.close()
        self._server.close()
        await self._server.wait_closed()
        async with self._lock:
            self._ended = True
            with contextlib.suppress(SingularityError):
                process, peer = await self._spare
                await self._end(process, peer)
            for proxy in list(self._proxies.values()):
                await self._end(proxy.process, proxy.peer)
            self._proxies.clear()
            if self.driver is not None:
                await asyncio.to_thread(self.driver.close)
            for _, ring in self._rings.values():
                ring.close()

    async def _end(self, process: subprocess.Popen[bytes], peer: rpc.Peer) -> None:
        await peer.close()
        process.kill()
        await asyncio.to_thread(process.wait)

    async def _spawn(self) -> tuple[subprocess.Popen[bytes], rpc.Peer]:
        """A proxy that belongs to nobody yet."""
        path = self.folder / f"p-{uuid.uuid4().hex[:8]}.sock"
        env = {k: v for k, v in os.environ.items() if not k.startswith("SINGULARITY_")}
        env.update(self.proxy_env)
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
                return process, await rpc.connect(path)
            except Unavailable:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    await asyncio.to_thread(process.wait)
                    raise Unavailable(
                        f"the device proxy did not start (exit code {process.returncode})"
                    ) from None
                await asyncio.sleep(0.02)

    async def _open_ring(self, peer: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        virtual = int(params["virtual_device"])
        ring_id = f"{peer.credentials.pid}-{virtual}-{len(self._rings)}"
        path = self.shm / f"{ring_id}.ring"
        ring = RingFile.create(
            path,
            virtual_device=virtual,
            device_type=self.device_type,
            memory_capacity=self.capacity_bytes,
        )
        self._rings[ring_id] = (virtual, ring)
        return {
            "ring_id": ring_id,
            "path": str(path),
            "device_type": self.device_type,
            "memory_capacity": self.capacity_bytes,
        }

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(256):
                self.doorbell_rings += 1
        if self.automatic:
            self._answer = asyncio.create_task(self._attach_or_fail())

    async def _attach_or_fail(self) -> None:
        try:
            await self._attach(None)
        except SingularityError as error:  # the worker that waits is told
            for _, ring in self._rings.values():
                ring.fail(error.message)

    async def _attach(self, physical: list[str] | None) -> None:
        for left in reversed(range(ATTACH_ATTEMPTS)):
            try:
                return await self._attach_once(physical)
            except Unavailable:  # the proxy died meanwhile: another one rebuilds its state
                if not left:
                    raise

    async def _attach_once(self, physical: list[str] | None) -> None:
        async with self._lock:
            if (
                self._ended
            ):  # the doorbell rang while another attach was under way, and then we ended
                return
            wanted = physical or [f"{self.device_type}:{i}" for i in range(self.devices)]
            self.epoch += 1
            for index, device in enumerate(wanted):
                proxy = self._proxies.get(index)
                if proxy and proxy.held:
                    await self._unpark(proxy)
                if proxy and (proxy.process.poll() is not None or proxy.peer.closed.is_set()):
                    # It died: another one rebuilds its state.
                    await self._end(proxy.process, proxy.peer)
                    proxy = None
                began, copied = time.monotonic(), self._copied.pop(index, None)
                if proxy is None:
                    process, peer = await self._spare
                    self._spare = asyncio.create_task(self._spawn())
                    proxy = _Proxy(process, peer)
                    self._proxies[index] = proxy
                    await peer.call(
                        "bind",
                        session=self.session,
                        uid=os.getuid(),
                        gid=os.getgid(),
                        device=device,
                        capacity_bytes=self.capacity_bytes,
                        threads=self.threads,
                        epoch=self.epoch,
                    )
                for ring_id, (virtual, ring) in list(self._rings.items()):
                    if virtual == index and ring_id not in proxy.bound:
                        proxy.bound[ring_id] = await proxy.peer.call(
                            "attach",
                            ring_id=ring_id,
                            path=ring.path,
                            state_prefix=str(self.shm / ring_id),
                            journal_bytes=self.journal_bytes,
                            epoch=self.epoch,
                        )
                if copied:
                    seconds = copied.seconds + time.monotonic() - began
                    self.measured.remember(
                        park_policy.COPY, park_policy.Measured(copied.device_bytes, seconds)
                    )

    async def _park(self, way: str) -> dict[str, Any]:
        async with self._lock:
            start, total, ways = time.monotonic(), 0, []
            for index, proxy in list(self._proxies.items()):
                if proxy.held:
                    continue
                try:
                    size, chosen = await self._park_one(index, proxy, way)
                except Unavailable:
                    if not await self._has_died(proxy):
                        raise
                    del self._proxies[
                        index
                    ]  # the device is free; snapshot and journal are the state
                    continue
                total += size
                ways.append(chosen)
            ms = (time.monotonic() - start) * 1e3
            return {"bytes": total, "ms": ms, "ways": ways}

    async def _park_one(self, index: int, proxy: _Proxy, way: str) -> tuple[int, str]:
        """-> (bytes, way). Raises Unavailable when the proxy dies meanwhile, or has already."""
        chosen = way if way != park_policy.AUTO else (await self._choose(proxy)).way
        parked = chosen == park_policy.DRIVER and await self._park_by_driver(proxy)
        if parked:
            return proxy.held.device_bytes if proxy.held else 0, chosen
        began = time.monotonic()
        size = int((await proxy.peer.call("park"))["bytes"])
        del self._proxies[index]
        await asyncio.to_thread(proxy.process.wait)
        await proxy.peer.close()
        self._copied[index] = _Held(size, time.monotonic() - began)
        return size, park_policy.COPY

    async def _has_died(self, proxy: _Proxy) -> bool:
        """A killed process closes its socket a moment before it can be waited for."""
        if not proxy.peer.closed.is_set():
            return proxy.process.poll() is not None
        await self._end(proxy.process, proxy.peer)
        return True

    async def _choose(self, proxy: _Proxy) -> park_policy.Choice:
        stats = await proxy.peer.call("stats")
        return park_policy.choose(
            self.measured,
            device_bytes=int(stats["memory_current"]),
            host_free_bytes=driver.host_free_bytes(proxy.process.pid),
            driver=self.driver is not None,
            recoverable=all(ring["recovery"] for ring in stats["rings"].values()),
        )

    async def _park_by_driver(self, proxy: _Proxy) -> bool:
        """False: the proxy runs on and a copy is needed. True also when it had to be killed."""
        assert self.driver is not None, "no driver library was named"
        start = time.monotonic()
        try:
            held = int((await proxy.peer.call("hold"))["bytes"])
        except SingularityError:
            return False  # it keeps no journal, or is held
        # The driver moves what is reserved, which is more than the policy was asked about.
        if not park_policy.has_room(held, driver.host_free_bytes(proxy.process.pid)):
            await proxy.peer.call("release", epoch=self.epoch)
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
            await proxy.peer.call("release", epoch=self.epoch)
            return False
        proxy.held = _Held(held, time.monotonic() - start)
        return True

    async def _unpark(self, proxy: _Proxy) -> None:
        """Back from the driver; a proxy that cannot come back is killed, and then rebuilt."""
        assert self.driver is not None
        assert proxy.held is not None
        held, proxy.held = proxy.held, None
        start = time.monotonic()
        try:
            await asyncio.to_thread(
                driver.unpark, self.driver, proxy.process.pid, held.device_bytes
            )
            await proxy.peer.call("release", epoch=self.epoch)
        except SingularityError:
            self.measured.failed()
            proxy.process.kill()
            await asyncio.to_thread(proxy.process.wait)
            return
        seconds = held.seconds + time.monotonic() - start
        self.measured.remember(park_policy.DRIVER, park_policy.Measured(held.device_bytes, seconds))

    async def _checkpoint(self, directory: str) -> list[dict[str, Any]]:
        async with self._lock:
            return [
                await p.peer.call("checkpoint", directory=directory) for p in self._proxies.values()
            ]

    async def _stats(self) -> list[dict[str, Any]]:
        return [await p.peer.call("stats") for p in self._proxies.values()]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m singularity_proxy.standalone",
        description="Run a script under the device proxy.",
    )
    parser.add_argument("--device-type", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--devices", type=int, default=1, help="virtual devices")
    parser.add_argument(
        "--threads", type=int, default=0, help="threads per proxy; 0: torch's default"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="script.py and its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("name a script to run")
    with Standalone(options.device_type, options.devices, threads=options.threads) as session:
        return subprocess.run(
            [sys.executable, *options.command], env=session.env(), check=False
        ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
