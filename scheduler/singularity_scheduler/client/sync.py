"""`Client`: what `ServiceClient` does, for code that is not asynchronous.

Each method is one of `ServiceClient` with the same arguments; it blocks until there is an answer.
Works in notebooks, scripts and threads alike: an event loop of its own runs in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from .api import ServiceClient

P = ParamSpec("P")
T = TypeVar("T")

_END = object()


class _Loop:
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


def _call(
    method: Callable[Concatenate[ServiceClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._client, *args, **kwargs))

    return call


def _iterate(
    method: Callable[Concatenate[ServiceClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[Client, P], Generator[T]]:
    @functools.wraps(method)
    def iterate(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T]:
        stream: Any = method(self._client, *args, **kwargs)
        try:
            while (item := self._loop.run(_next(stream))) is not _END:
                yield item
        finally:
            self._loop.run(_close(stream))

    return iterate


async def _next(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream, _END)


async def _close(stream: AsyncGenerator[Any]) -> None:
    await stream.aclose()


class Client:
    """As `ServiceClient`, blocking. A ``with`` block ends its thread; so does the program's end."""

    def __init__(self, url: str, token: str, *, timeout: float = 60.0) -> None:
        """As of `ServiceClient`."""
        self._client = ServiceClient(url, token, timeout=timeout)
        self._loop = _Loop()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """As `ServiceClient.from_environment`."""
        made = cls.__new__(cls)
        made._client, made._loop = ServiceClient.from_environment(environ), _Loop()
        return made

    def close(self) -> None:
        """Idempotent."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    submit = _call(ServiceClient.submit)
    submit_group = _call(ServiceClient.submit_group)
    groups = _call(ServiceClient.groups)
    get_group = _call(ServiceClient.get_group)
    group_results = _call(ServiceClient.group_results)
    cancel_group = _call(ServiceClient.cancel_group)
    get_session = _call(ServiceClient.get_session)
    sessions = _call(ServiceClient.sessions)
    wait = _call(ServiceClient.wait)
    stream_events = _iterate(ServiceClient.stream_events)
    logs = _iterate(ServiceClient.logs)
    why = _call(ServiceClient.why)
    history = _call(ServiceClient.history)
    end_session = _call(ServiceClient.end_session)
    signal = _call(ServiceClient.signal)

    park = _call(ServiceClient.park)
    preempt = _call(ServiceClient.preempt)
    keep = _call(ServiceClient.keep)
    tier = _call(ServiceClient.tier)
    priority = _call(ServiceClient.priority)
    suspend = _call(ServiceClient.suspend)
    resume = _call(ServiceClient.resume)
    migrate = _call(ServiceClient.migrate)
    checkpoint = _call(ServiceClient.checkpoint)
    restore = _call(ServiceClient.restore)
    fork = _call(ServiceClient.fork)
    reopen = _call(ServiceClient.reopen)

    checkpoints = _call(ServiceClient.checkpoints)
    delete_checkpoint = _call(ServiceClient.delete_checkpoint)
    prove_checkpoint = _call(ServiceClient.prove_checkpoint)
    usage = _call(ServiceClient.usage)
    devices = _call(ServiceClient.devices)
    tiers = _call(ServiceClient.tiers)
    cluster = _call(ServiceClient.cluster)
    clusters = _call(ServiceClient.clusters)
    nodes = _call(ServiceClient.nodes)
