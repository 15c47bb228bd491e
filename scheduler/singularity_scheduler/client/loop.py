"""How code that is not asynchronous calls the client: an event loop of its own in a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from .api import ServiceClient

P = ParamSpec("P")
T = TypeVar("T")

_END = object()


class Loop:
    """An event loop in a daemon thread, started when it is needed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; whatever interrupts the wait (Ctrl-C) ends the work too."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="singularity-client", daemon=True
                )
                self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Idempotent; the next `run` starts another one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class Blocking:
    """Base of `Client`: what its methods run on."""

    _client: ServiceClient
    _loop: Loop


def call(
    method: Callable[Concatenate[ServiceClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking, P], T]:
    @functools.wraps(method)
    def ask(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **kwargs))

    return ask


def iterate(
    method: Callable[Concatenate[ServiceClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking, P], Generator[T]]:
    @functools.wraps(method)
    def read(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        stream: Any = method(self._client, *args, **kwargs)
        try:
            while (item := self._loop.run(_next(stream))) is not _END:
                yield item
        finally:
            self._loop.run(_close(stream))

    return read


async def _next(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream, _END)


async def _close(stream: AsyncGenerator[Any]) -> None:
    await stream.aclose()
