"""`Client`: what `ServiceClient` does, for code that is not asynchronous.

Each method is one of `ServiceClient` with the same arguments; it blocks until there is an answer.
Works in notebooks, scripts and threads alike: an event loop of its own runs in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from .api import ServiceClient
from .loop import Loop, call, iterate
from .made.blocking import BlockingVerbs


class Client(BlockingVerbs):
    """As `ServiceClient`, blocking. A ``with`` block ends its thread; so does the program's end."""

    def __init__(self, url: str, token: str, *, timeout: float = 60.0) -> None:
        """As of `ServiceClient`."""
        self._client = ServiceClient(url, token, timeout=timeout)
        self._loop = Loop()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """As `ServiceClient.from_environment`."""
        made = cls.__new__(cls)
        made._client, made._loop = ServiceClient.from_environment(environ), Loop()
        return made

    def close(self) -> None:
        """Idempotent."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    submit = call(ServiceClient.submit)
    submit_group = call(ServiceClient.submit_group)
    groups = call(ServiceClient.groups)
    get_group = call(ServiceClient.get_group)
    group_results = call(ServiceClient.group_results)
    cancel_group = call(ServiceClient.cancel_group)
    get_session = call(ServiceClient.get_session)
    sessions = call(ServiceClient.sessions)
    wait = call(ServiceClient.wait)
    stream_events = iterate(ServiceClient.stream_events)
    logs = iterate(ServiceClient.logs)
    why = call(ServiceClient.why)
    history = call(ServiceClient.history)
    end_session = call(ServiceClient.end_session)
    signal = call(ServiceClient.signal)

    fork = call(ServiceClient.fork)

    checkpoints = call(ServiceClient.checkpoints)
    delete_checkpoint = call(ServiceClient.delete_checkpoint)
    usage = call(ServiceClient.usage)
    devices = call(ServiceClient.devices)
    tiers = call(ServiceClient.tiers)
    cluster = call(ServiceClient.cluster)
    clusters = call(ServiceClient.clusters)
    nodes = call(ServiceClient.nodes)
