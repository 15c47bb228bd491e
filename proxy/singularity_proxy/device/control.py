"""The socket of a device proxy: the node agent's calls, and the rule for orphans."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from singularity_proxy.errors import BadRequest, SingularityError
from singularity_proxy.wire import rpc

from . import process
from .proxy import DeviceProxy

_ORPHANED = "no agent is connected"
_BARRIER_LOOK_S = 0.001


class Control:
    """Serves `bind`, `attach`, `close_ring`, `park`, `park_rings`, `hold`, `release`, `checkpoint`,
    `stats` and `exit` at a socket.

    What blocks runs in one other thread, one call after another; `stats` is answered meanwhile.
    """

    def __init__(self, socket_path: str, *, orphan_s: float) -> None:
        self.proxy = DeviceProxy()
        self._socket_path = socket_path
        self._orphan_s = orphan_s
        self._peers: set[rpc.Peer] = set()
        self._orphan_timer: asyncio.TimerHandle | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="control")
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False

    async def run(self) -> None:
        """Serve for ever; the process ends by `exit`, by `park`, as an orphan, or by a signal."""
        handlers: dict[str, rpc.Handler] = {
            "bind": self._blocking(self.proxy.bind),
            "attach": self._blocking(self.proxy.attach),
            "close_ring": self._blocking(self.proxy.close_ring),
            "park_rings": self._blocking(self.proxy.park_rings),
            "checkpoint": self._blocking(self.proxy.checkpoint),
            "hold": self._blocking(self.proxy.hold),
            "release": self._blocking(self.proxy.release),
            "park": self._park,
            "barrier_ask": self._barrier_ask,
            "barrier_hold": self._barrier_hold,
            "barrier_release": self._barrier_release,
            "stats": self._stats,
            "exit": self._exit,
        }
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave, "it was told to end")
        self._arm_orphan_timer()
        server = await rpc.serve(
            self._socket_path,
            handlers,
            allowed_uids={os.getuid(), _parent_uid()},
            on_connect=self._connected,
            on_close=self._closed,
        )
        async with server:
            await server.serve_forever()

    def _blocking(self, work: Callable[..., dict[str, Any]]) -> rpc.Handler:
        async def handler(_: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
            return await self._in_worker(work, params)

        return handler

    async def _in_worker(
        self, work: Callable[..., dict[str, Any]], params: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            inspect.signature(work).bind(**params)
        except TypeError as error:
            raise BadRequest(f"{work.__name__}: {error}") from error
        call = partial(work, **params)
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    async def _park(self, _: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        answer = await self._in_worker(self.proxy.park, params)
        self._end_after_answer()
        return answer

    async def _stats(self, _: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        return self.proxy.stats()

    async def _barrier_ask(self, _: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        return self.proxy.barrier_ask()

    async def _barrier_hold(self, _: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        """Answers when every rank with a group stands or waits for others, or at the deadline."""
        loop = asyncio.get_running_loop()
        until = loop.time() + float(params["deadline_s"])
        self.proxy.barrier_hold(params["targets"], float(params["grace_s"]))
        while not (answer := self.proxy.barrier_ask())["held"] and loop.time() < until:
            await asyncio.sleep(_BARRIER_LOOK_S)
        return answer

    async def _barrier_release(self, _: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        return self.proxy.barrier_release()

    async def _exit(self, _: rpc.Peer, params: dict[str, Any]) -> dict[str, Any]:
        self._end_after_answer()
        return {}

    def _end_after_answer(self) -> None:
        # The caller sends the answer before it gives the loop back, so this runs after it.
        self._ending = True
        asyncio.get_running_loop().call_soon(process.end_now, self._socket_path)

    def _connected(self, peer: rpc.Peer) -> None:
        self._peers.add(peer)
        if self._orphan_timer:
            self._orphan_timer.cancel()
            self._orphan_timer = None

    def _closed(self, peer: rpc.Peer) -> None:
        self._peers.discard(peer)
        if not self._peers and not self._ending:
            self.proxy.barrier_release()  # whoever wanted the barrier is gone
            self._arm_orphan_timer()

    def _arm_orphan_timer(self) -> None:
        if self._orphan_s > 0:
            loop = asyncio.get_running_loop()
            self._orphan_timer = loop.call_later(self._orphan_s, self._leave, _ORPHANED)

    def _leave(self, why: str) -> None:
        task = asyncio.get_running_loop().create_task(self._park_and_end(why))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _park_and_end(self, why: str) -> None:
        """Park first, so that nothing is lost; if that fails, stay and try again later. One that is
        held for the driver just ends: its rings' snapshots and journals are its state."""
        if self.proxy.holds_state and not self.proxy.held:
            try:
                await self._in_worker(self.proxy.park, {})
            except SingularityError as error:
                print(f"device proxy: {why}, but it cannot park: {error.message}", file=sys.stderr)
                if not self._peers:
                    self._arm_orphan_timer()
                return
        if why == _ORPHANED and self._peers:
            return  # someone connected meanwhile; the rings say that they are detached
        process.end_now(self._socket_path)


def _parent_uid() -> int:
    try:
        return os.stat(f"/proc/{os.getppid()}").st_uid
    except OSError:
        return os.getuid()
