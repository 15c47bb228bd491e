"""The session itself: which rings there are, which proxy serves which, on which device."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from singularity_proxy.checkpoint.device import driver, park_policy
from singularity_proxy.elastic.coordinator import Barrier, Cut, View, look
from singularity_proxy.elastic.placement import moved, place, replicas
from singularity_proxy.errors import (
    BadRequest,
    BarrierFailed,
    NotFound,
    SingularityError,
    Unavailable,
)
from singularity_proxy.wire import rpc
from singularity_proxy.wire.limits import SESSION
from singularity_proxy.wire.ring import RingFile, RingState

from .proxies import START_SECONDS, Parks, Proxy, Spares
from .workers import Ring, ended

T = TypeVar("T")
ATTEMPTS = 5
"""A proxy may die while rings are put behind it; so often others take its place."""
BARRIER_SECONDS = 10.0


class Standalone:
    """A session of `devices` virtual devices: `with Standalone() as s: run(..., env=s.env())`.

    They run on `physical` devices (default: as many), `{device_type}:{i}`, each with its own proxy,
    until `attach` or `resize` say otherwise. `capacity_bytes` is per physical device, `threads` per
    ring (0: one per core), `journal_bytes` as in the device proxy (0: no recovery).
    `driver_library` is the CUDA driver whose process checkpoint `park` may use ("": never),
    `proxy_env` what proxies get in their environment besides this process's, `spares` how many
    proxies are kept warm. `keep_rings`: those of workers whose processes have ended, too, as they
    may come back from a process image. `collectives`: "bitwise" or "fast", the order in which
    reductions of its ranks add (None: as this process's environment says). Methods may be called
    from any thread.
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
        physical: int | None = None,
        spares: int = 1,
        keep_rings: bool = False,
        collectives: str | None = None,
    ) -> None:
        self.device_type = device_type
        self.devices = devices
        self.capacity_bytes = capacity_bytes
        self.threads = threads or os.cpu_count() or 1
        self.journal_bytes = journal_bytes
        self.session = uuid.uuid4().hex[:12]
        self.epoch = 0
        self.proxy_env = proxy_env or {}
        self.keep_rings = keep_rings
        self.collectives = collectives
        if driver_library is None:
            driver_library = driver.LIBRARY if device_type == "cuda" else ""
        self._parks = Parks(driver_library)
        self.automatic = True
        """Attach when a worker rings the doorbell, and when a proxy dies; switch off to hold a
        session parked."""
        self.doorbell_rings = 0
        self._ended = False
        self._spare_count = spares
        self._where = place(devices, self._named(devices if physical is None else physical))
        self._rings: dict[str, Ring] = {}
        self._proxies: dict[str, Proxy] = {}
        self._numbers = itertools.count()
        self._barrier: Barrier | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
        order = {} if self.collectives is None else {"SINGULARITY_COLLECTIVES": self.collectives}
        return {
            **os.environ,
            **order,
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
        Ranks with groups are stopped at a common place first, if they come to one.
        """
        if way not in park_policy.WAYS:
            raise BadRequest(f"a device is parked by 'copy', 'driver' or 'auto', not '{way}'")
        return self._run(self._park(way))

    def attach(self, physical: list[str] | None = None) -> None:
        """Put proxies behind the rings: virtual device i on `physical[i]` (default: as before)."""
        self._run(self._attach(physical))

    def resize(self, physical: int, deadline_s: float = BARRIER_SECONDS) -> dict[str, Any]:
        """Go on with so many physical devices; only what changes its device is moved.

        Answers {"devices", "moved", "bytes", "seconds", "barrier_s", "rounds"}. Raises BadRequest,
        LayoutRefused and BarrierFailed (after `deadline_s`); the session is as before then.
        """
        return self._run(self._resize(physical, deadline_s))

    def barrier(self, deadline_s: float = BARRIER_SECONDS) -> Cut:
        """Stop all ranks at a common place and let them go on at once."""
        return self._run(self._stand(deadline_s))

    def checkpoint(self, directory: str) -> list[dict[str, Any]]:
        """Device state of all proxies written to `directory`; execution goes on."""
        return self._run(self._checkpoint(directory))

    def proxy_pids(self) -> list[int]:
        return [p.process.pid for p in self._proxies.values()]

    def all_pids(self) -> list[int]:
        """The proxies and the warm spares."""
        return self.proxy_pids() + self._spares.pids()

    def wait_warm(self) -> None:
        """Until the next `attach` needs not start a process."""
        self._run(self._spares.warm())

    def stats(self) -> list[dict[str, Any]]:
        return self._run(self._stats())

    def rings(self) -> list[RingFile]:
        return [ring.file for ring in self._rings.values()]

    @property
    def placement(self) -> list[str]:
        """The physical device of each virtual one."""
        return list(self._where)

    @property
    def measured(self) -> park_policy.Measurements:
        return self._parks.measured

    # ---- inside the loop

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS * 2)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _named(self, count: int) -> list[str]:
        return [f"{self.device_type}:{i}" for i in range(count)]

    async def _start(self) -> None:
        self._lock = asyncio.Lock()
        self._server = await rpc.serve(
            self.folder / "agent.sock",
            {"ring.open": self._open_ring},
            allowed_uids={os.getuid()},
            limits=SESSION,
        )
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._bell.bind(str(self.folder / "doorbell"))
        self._loop.add_reader(self._bell, self._rung)
        self._spares = Spares(self.folder, self._spare_count, self.proxy_env, self._proxy_gone)

    async def _stop(self) -> None:
        self._loop.remove_reader(self._bell)
        self._bell.close()
        self._server.close()
        await self._server.wait_closed()
        async with self._lock:
            self._ended = True
            await self._spares.end()
            for proxy in list(self._proxies.values()):
                await proxy.end()
            self._proxies.clear()
            await self._parks.close()
            for ring in self._rings.values():
                ring.file.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- workers

    async def _open_ring(self, peer: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        virtual = int(params["virtual_device"])
        ring_id = f"{peer.credentials.pid}-{virtual}-{next(self._numbers)}"
        path = self.shm / f"{ring_id}.ring"
        ring = RingFile.create(
            path,
            virtual_device=virtual,
            device_type=self.device_type,
            memory_capacity=self.capacity_bytes,
        )
        self._rings[ring_id] = Ring(ring_id, virtual, ring)
        if not self.keep_rings:
            self._spawn(self._until_ended(self._rings[ring_id], peer.credentials.pid))
        return {
            "ring_id": ring_id,
            "path": str(path),
            "device_type": self.device_type,
            "memory_capacity": self.capacity_bytes,
        }

    async def _until_ended(self, ring: Ring, pid: int) -> None:
        """The worker's process ends: so does its ring, and ranks that wait for it learn of that."""
        await ended(pid)
        ring.ended = True
        for proxy in list(self._proxies.values()):  # a resize may go on meanwhile
            if ring.id in proxy.attached:
                await self._close(proxy, ring)
        for path in self.shm.glob(f"{ring.id}.*"):
            path.unlink(missing_ok=True)

    async def _close(self, proxy: Proxy, ring: Ring) -> None:
        proxy.attached.discard(ring.id)
        with contextlib.suppress(SingularityError):  # it died, or moves the ring just now
            await proxy.peer.call("close_ring", ring_id=ring.id)

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                _, descriptors, _, _ = socket.recv_fds(self._bell, 256, 2)
                self.doorbell_rings += 1
                for descriptor in descriptors:  # of a store: nobody here may more than its process
                    with contextlib.suppress(OSError), socket.socket(fileno=descriptor) as one:
                        if one.family == socket.AF_UNIX:
                            one.send(b"n", socket.MSG_DONTWAIT)
        if self.automatic:
            self._spawn(self._attach_or_fail())

    def _proxy_gone(self, proxy: Proxy) -> None:
        if self.automatic and not self._ended and proxy in self._proxies.values():
            self._spawn(self._attach_or_fail())

    async def _attach_or_fail(self) -> None:
        try:
            await self._attach(None)
        except SingularityError as error:  # the worker that waits is told
            for ring in self._rings.values():
                if ring.file.state is not RingState.FAILED:
                    ring.file.fail(error.message)

    # ---- devices

    async def _attach(self, physical: list[str] | None) -> None:
        async with self._lock:
            if self._ended:  # the doorbell rang while another attach was under way
                return
            wanted = self._where if physical is None else physical
            if len(wanted) != self.devices:
                raise BadRequest(
                    f"{len(wanted)} devices were named for {self.devices} virtual ones"
                )
            await self._move(wanted, BARRIER_SECONDS)

    async def _resize(self, count: int, deadline_s: float) -> dict[str, Any]:
        async with self._lock:
            began = time.monotonic()
            view = await self._look()
            sets = replicas(self.devices, view.groups())
            wanted = place(self.devices, self._named(count), sets=sets, now=self._where)
            changed = moved(self._where, wanted)
            cut, size = await self._move(wanted, deadline_s)
            return {
                "devices": wanted,
                "moved": changed,
                "bytes": size,
                "seconds": time.monotonic() - began,
                "barrier_s": cut.seconds if cut else 0.0,
                "rounds": cut.rounds if cut else 0,
            }

    async def _stand(self, deadline_s: float) -> Cut:
        async with self._lock, Barrier(self._living()) as barrier:
            return await barrier.reach(deadline_s)

    async def _move(self, wanted: list[str], deadline_s: float) -> tuple[Cut | None, int]:
        """Have each ring served where `wanted` says. Ranks with groups that are served elsewhere
        now stop at a common place before. -> (that place, bytes written)"""
        cut, size = None, 0
        where = self._served()
        leaving = any(wanted[self._rings[i].virtual] != device for i, device in where.items())
        async with Barrier(self._living()) as barrier:
            if leaving and (await self._look()).contributed:
                cut = await barrier.reach(deadline_s)
            self._barrier = barrier if cut else None
            self._where = list(wanted)
            try:
                for left in reversed(range(ATTEMPTS)):
                    try:
                        size += await self._arrange(wanted)
                        break
                    except (Unavailable, NotFound):  # a proxy or a worker died meanwhile
                        if not left:
                            raise
            finally:
                self._barrier = None
        return cut, size

    async def _arrange(self, wanted: list[str]) -> int:
        """From whatever there is to `wanted`; done again when it fails half way. -> bytes"""
        self.epoch += 1
        for device, proxy in list(self._proxies.items()):
            if proxy.held:
                await self._parks.unpark(proxy, self.epoch)
            if proxy.dead:  # another one rebuilds its state
                await self._end(device)
        proxies = list(self._proxies.items())
        sizes = await _all(self._clear(device, proxy, wanted) for device, proxy in proxies)
        await _all(self._fill(device, wanted) for device in dict.fromkeys(wanted))
        return sum(sizes)

    async def _clear(self, device: str, proxy: Proxy, wanted: list[str]) -> int:
        """What belongs elsewhere leaves the proxy; one that is not wanted ends. -> bytes written"""
        leaving = [i for i in proxy.attached if wanted[self._rings[i].virtual] != device]
        size = 0
        if leaving:
            size = int((await proxy.peer.call("park_rings", rings=leaving))["bytes"])
            proxy.attached.difference_update(leaving)
        if device not in wanted:
            await self._end(device)
        return size

    async def _fill(self, device: str, wanted: list[str]) -> None:
        began, proxy = time.monotonic(), self._proxies.get(device)
        if proxy is None:
            proxy = self._proxies[device] = await self._spares.take()
            await proxy.peer.call(
                "bind",
                session=self.session,
                uid=os.getuid(),
                gid=os.getgid(),
                device=device,
                capacity_bytes=self.capacity_bytes,
                threads=self.threads,
                epoch=self.epoch,
            )
            if self._barrier is not None:
                await self._barrier.join(proxy)
        for ring in list(self._rings.values()):
            mine = wanted[ring.virtual] == device and ring.id not in proxy.attached
            # One that has failed has told its worker; it must not keep those of others waiting.
            if mine and not ring.ended and ring.file.state is not RingState.FAILED:
                await proxy.peer.call(
                    "attach",
                    ring_id=ring.id,
                    path=ring.file.path,
                    state_prefix=str(self.shm / ring.id),
                    journal_bytes=self.journal_bytes,
                    epoch=self.epoch,
                )
                proxy.attached.add(ring.id)
                if ring.ended:
                    await self._close(proxy, ring)
        self._parks.attached(device, began)

    async def _end(self, device: str) -> None:
        proxy = self._proxies.pop(device)
        if self._barrier is not None:
            self._barrier.forget(proxy)
        await proxy.end()

    def _living(self) -> list[Proxy]:
        return [p for p in self._proxies.values() if not (p.dead or p.held)]

    def _served(self) -> dict[str, str]:
        """Ring -> the device that serves it."""
        return {i: device for device, p in self._proxies.items() for i in p.attached}

    async def _look(self) -> View:
        """How far ranks are; empty while no ring belongs to a group."""
        try:
            stats = [await proxy.peer.call("stats") for proxy in self._living()]
            if any(ring.get("groups") for s in stats for ring in s["rings"].values()):
                return await look(self._living())
        except Unavailable:  # one has just died; it is replaced
            pass
        return View()

    async def _park(self, way: str) -> dict[str, Any]:
        async with self._lock:
            start, total, ways = time.monotonic(), 0, []
            async with Barrier(self._living()) as barrier:
                # One that does not come in time is parked all the same: what is on its way between
                # ranks is in their journals.
                with contextlib.suppress(BarrierFailed):
                    if (await self._look()).contributed:
                        await barrier.reach(BARRIER_SECONDS)
                for device, proxy in list(self._proxies.items()):
                    if proxy.held:
                        continue
                    try:
                        size, chosen = await self._parks.park(device, proxy, way, self.epoch)
                    except Unavailable:
                        if not proxy.dead:
                            raise
                        # The device is free; snapshot and journal are the state.
                        del self._proxies[device]
                        await proxy.end()
                        continue
                    if not proxy.held:
                        del self._proxies[device]
                    total += size
                    ways.append(chosen)
            ms = (time.monotonic() - start) * 1e3
            return {"bytes": total, "ms": ms, "ways": ways}

    async def _checkpoint(self, directory: str) -> list[dict[str, Any]]:
        async with self._lock, Barrier(self._living()) as barrier:
            if (await self._look()).contributed:
                await barrier.reach(BARRIER_SECONDS)
            return [
                await p.peer.call("checkpoint", directory=directory) for p in self._proxies.values()
            ]

    async def _stats(self) -> list[dict[str, Any]]:
        return [await p.peer.call("stats") for p in list(self._proxies.values())]


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """All to their end; then the first failure is raised."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]
