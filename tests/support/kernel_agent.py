"""A per-session agent socket for tests of the kernel side: real calls, the test's answers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_proxy.wire import rpc

VERBS = (
    *("activity", "status", "park", "resume", "migrate", "checkpoint", "why", "history"),
    *("suspend", "checkpoints", "restore", "fork", "keep", "tier", "priority"),
    *("submit", "run"),
)


class Cut:
    """An answer that never comes: the connection is closed instead, and `then` is called."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then


class Agent:
    """Serves one session's socket on a thread of its own and records every call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        self.connections = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> list[bool]:
        """The activity reports so far."""
        return [params["busy"] for method, params in self.calls if method == "activity"]

    def start(self) -> None:
        """Listen at the path, again after a `stop`."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(20)

    def stop(self) -> None:
        """Close every connection and the socket."""
        if self._thread and self._loop and self._stop:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        peers: set[rpc.Peer] = set()

        def answering(method: str) -> rpc.Handler:
            async def answer(peer: rpc.Peer, params: dict[str, Any]) -> Any:
                self.calls.append((method, params))
                found = self.answers.get(method, {})
                if callable(found):
                    found = await asyncio.to_thread(found, params)
                if isinstance(found, Cut):
                    found.then()
                    await asyncio.get_running_loop().create_task(peer.close())
                if isinstance(found, SingularityError):
                    raise found
                return found

            return answer

        def connected(peer: rpc.Peer) -> None:
            self.connections += 1
            peers.add(peer)

        server = await rpc.serve(
            self.path,
            {verb: answering(verb) for verb in VERBS},
            allowed_uids={os.geteuid()},
            on_connect=connected,
            on_close=peers.discard,
        )
        ready.set()
        await self._stop.wait()
        server.close()
        for peer in list(peers):
            await peer.close()
        self.path.unlink(missing_ok=True)


@contextmanager
def agent(path: Path) -> Iterator[Agent]:
    """A listening agent socket at `path`."""
    found = Agent(path)
    found.start()
    try:
        yield found
    finally:
        found.stop()
