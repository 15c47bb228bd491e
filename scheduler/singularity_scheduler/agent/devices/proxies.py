"""Device proxy processes: a warm pool, and one `Proxy` object per process.

A proxy is a copy of a process that has loaded torch (`singularity_proxy.device.template`); the pool
keeps some that belong to nobody. `take` hands one out; binding it to a session (its uid, device and
capacity) happens once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import Any, Protocol

from singularity_proxy.capsule.launcher import helper_environment
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.capsule.tree import state_of
from singularity_proxy.device.template import READY_LIMIT_S, STOPPED_S, Template, why_ended
from singularity_proxy.errors import ProxyNotReady, SingularityError, Unavailable
from singularity_proxy.wire import rpc

from singularity_scheduler.agent.processes import end_process
from singularity_scheduler.agent.sessions.record import ProxyRecord

log = logging.getLogger("singularity.agent")

START_TRIES = 4
"""So many proxies are started one after another while none of them gets ready."""

START_PAUSE_S = 0.2
"""Pause behind the first one that did not; it doubles."""

REFILL_DELAY_S = 0.5
"""The pool is refilled a little later, so that the session that took a proxy has the cores."""


class Proxy:
    """One device proxy process and the connection to it."""

    def __init__(self, name: str, socket: str, identity: ProcessIdentity) -> None:
        self.name = name
        self.socket = socket
        self.on_exit: Callable[[Proxy], None] | None = None
        """Set by the session it is bound to; called on the loop when the process has ended."""
        self.watch = ProcessWatch(identity, self._exited)
        self._peer: rpc.Peer | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self.attached: set[str] = set()
        """Ring ids it serves."""
        self.given_up = ""
        """Why the agent ended it although it lived ("was stopped"); see `pulse`."""
        self.pardoned = False
        """What it was executing has nothing to do with its end."""

    @property
    def identity(self) -> ProcessIdentity:
        return self.watch.identity

    @property
    def log_path(self) -> str:
        return self.socket.removesuffix(".sock") + ".log"

    @property
    def connected(self) -> bool:
        """False as soon as its end of the control connection closed."""
        return self._peer is not None and not self._peer.closed.is_set()

    def record(self, device: str) -> ProxyRecord:
        return ProxyRecord(self.name, self.socket, device, self.identity)

    def _exited(self, _: ProcessWatch) -> None:
        if self._reconnecting:
            self._reconnecting.cancel()
        if self.on_exit:
            self.on_exit(self)

    async def connect(self, limit_s: float) -> None:
        """Wait until the process listens. Raises `ProxyNotReady` when it ends, is stopped, or is
        too slow."""
        clock = asyncio.get_running_loop().time
        deadline, ran = clock() + limit_s, clock()
        while True:
            try:
                self._peer = await rpc.connect(self.socket, on_close=self._closed)
                return
            except Unavailable:
                pass
            now = clock()
            if state_of(self.identity.pid) not in ("T", "t"):
                ran = now
            if not self.watch.alive or now > deadline or now - ran > STOPPED_S:
                raise ProxyNotReady(
                    f"a device proxy did not get ready ({self._why_not_ready(now - ran)})",
                    exit_code=self.watch.exit_code,
                )
            await self.watch.wait(0.02)

    def _why_not_ready(self, stopped_s: float) -> str:
        if self.watch.alive and stopped_s > STOPPED_S:
            return "it was stopped"
        return why_ended(self.watch, self.log_path)

    def _closed(self, _: rpc.Peer) -> None:
        # A proxy without a control connection parks itself after a while, so a living one is
        # called again; one that does not answer is ended and replaced like one that was killed.
        if self.watch.alive:
            self._reconnecting = asyncio.ensure_future(self._reconnect())

    async def _reconnect(self) -> None:
        with contextlib.suppress(ProxyNotReady):
            await self.connect(5.0)
            return
        await end_process(self.watch, 0)

    async def call(self, method: str, timeout: float | None = 60.0, **params: Any) -> Any:
        """Call the proxy; its typed error, or `Unavailable` when it is gone."""
        if self._peer is None or not self.connected:
            raise Unavailable(f"the device proxy is gone; '{method}' was not done")
        return await self._peer.call(method, timeout, **params)

    async def end(self, grace_s: float = 0.0) -> None:
        """End the process (0: at once) and remove its socket and log."""
        self.on_exit = None
        if grace_s > 0 and self.watch.alive:
            with contextlib.suppress(SingularityError):
                await self.call("exit", timeout=grace_s)
            await self.watch.wait(grace_s)
        await end_process(self.watch, 0)
        if self._reconnecting:
            self._reconnecting.cancel()
        if self._peer:
            await self._peer.close()
        for path in (self.socket, self.log_path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    async def abandon(self) -> None:
        """Kill the process and fail every call that waits for it, even where it is stuck in the
        driver and cannot end."""
        self.watch.signal(signal.SIGKILL)
        if self._peer:
            await self._peer.close()

    async def leave(self) -> None:
        """Forget the process without ending it (the agent stops, sessions go on)."""
        self.on_exit = None
        self.watch.close()
        if self._reconnecting:
            self._reconnecting.cancel()
        if self._peer:
            await self._peer.close()


class Starter(Protocol):
    """Starts device proxies."""

    async def start(self, socket_path: str, log_path: str) -> ProcessIdentity:
        """Start one that will listen at `socket_path`. Raises: OSError or SingularityError."""

    async def close(self) -> None:
        """End what it keeps to start them."""


def make_starter(folder: str) -> Starter:
    """Return what starts the device proxies of an agent whose own folder this is."""
    # A proxy runs as the session's user later, who has no business in our home.
    env = {**helper_environment(os.environ), "HOME": "/"}
    return Template(os.path.join(folder, "template.log"), env)


class ProxyPool:
    """Starts proxies and keeps `warm` of them ready. `folder` is the agent's own (0700)."""

    def __init__(self, folder: str, warm: int) -> None:
        self._folder = folder
        self._warm = warm
        self._starter = make_starter(folder)
        self._ready: list[Proxy] = []
        self._starting: set[asyncio.Task[Proxy]] = set()
        self._refill: asyncio.Task[None] | None = None
        self._closed = False
        self._made = 0

    def start(self) -> None:
        """Begin to fill the pool."""
        self._schedule(0.0)

    async def take(self, wanted: Callable[[], bool] = lambda: True) -> Proxy:
        """A started proxy that belongs to nobody: a warm one, one that is being started, or a new
        one. One that does not get ready is followed by another while it is `wanted`, `START_TRIES`
        in all; then `ProxyNotReady` is raised, which says why the last one did not."""
        clock = asyncio.get_running_loop().time
        deadline, pause, tries = clock() + READY_LIMIT_S, START_PAUSE_S, 0
        while True:
            tries += 1
            try:
                return await self._take_one()
            except ProxyNotReady as error:
                log.warning("%s", error.message)
                if tries == START_TRIES or clock() + pause > deadline or not wanted():
                    before = f", nor did {tries - 1} before it" if tries > 1 else ""
                    raise ProxyNotReady(error.message + before, **error.fields) from None
            await asyncio.sleep(pause)
            pause *= 2

    async def _take_one(self) -> Proxy:
        while self._ready:
            proxy = self._ready.pop(0)
            if proxy.watch.alive:
                self._schedule(REFILL_DELAY_S)
                return proxy
            await proxy.end()
        starting = next(iter(self._starting), None)
        if starting is not None:
            self._starting.discard(starting)
            self._schedule(REFILL_DELAY_S)
            return await starting
        proxy = await self._start()
        self._schedule(REFILL_DELAY_S)  # filling may have been given up before
        return proxy

    async def _start(self) -> Proxy:
        self._made += 1
        name = f"{os.getpid()}-{self._made}"
        socket = os.path.join(self._folder, f"{name}.sock")
        log_path = socket.removesuffix(".sock") + ".log"
        try:
            identity = await self._starter.start(socket, log_path)
        except ProxyNotReady:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log_path)
            raise
        except (SingularityError, OSError) as error:  # no process, memory or disk to spare
            with contextlib.suppress(FileNotFoundError):
                os.unlink(log_path)
            raise ProxyNotReady(f"a device proxy did not get ready ({error})") from None
        proxy = Proxy(name, socket, identity)
        try:
            await proxy.connect(READY_LIMIT_S)
        except BaseException:
            await proxy.end()
            raise
        return proxy

    def _schedule(self, delay_s: float) -> None:
        if not self._closed and (self._refill is None or self._refill.done()):
            self._refill = asyncio.ensure_future(self._fill(delay_s))

    async def _fill(self, delay_s: float) -> None:
        failures = 0
        await asyncio.sleep(delay_s)
        while not self._closed and len(self._ready) + len(self._starting) < self._warm:
            task = asyncio.ensure_future(self._start())
            self._starting.add(task)
            try:
                await asyncio.wait([task])
                mine = task in self._starting
                if mine and task.exception() is None:
                    self._ready.append(task.result())
                    failures = 0
                elif mine:
                    failures += 1
                    log.warning("warm device proxy: %s", task.exception())
                    if failures == 5:
                        return  # the next `take` tries again and says why
            except asyncio.CancelledError:
                task.cancel()
                raise
            finally:
                self._starting.discard(task)
            if failures:
                await asyncio.sleep(min(2.0**failures, 30.0))

    async def close(self) -> None:
        """End all proxies that belong to nobody."""
        self._closed = True
        tasks = [t for t in (self._refill, *self._starting) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(proxy.end() for proxy in self._ready), self._starter.close())
        self._ready.clear()


async def adopt_proxy(record: ProxyRecord) -> Proxy | None:
    """The proxy that an earlier agent bound to a session, connected; None when it is gone."""
    proxy = Proxy(record.name, record.socket, record.process)
    if not proxy.watch.alive:
        await proxy.end()
        return None
    try:
        await proxy.connect(10.0)
        stats = await proxy.call("stats", timeout=30.0)
    except SingularityError:
        await proxy.end()
        return None
    proxy.attached = set(stats.get("rings", {}))
    return proxy
