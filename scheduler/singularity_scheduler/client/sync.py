"""`Client`: what `ServiceClient` does, for code that is not asynchronous.

Each method is one of `ServiceClient` with the same arguments; it blocks until there is an answer.
Works in notebooks, scripts and threads alike: an event loop of its own runs in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from .api import ServiceClient
from .loop import Loop
from .loop import call as _call
from .loop import iterate as _iterate
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

    fork = _call(ServiceClient.fork)

    checkpoints = _call(ServiceClient.checkpoints)
    delete_checkpoint = _call(ServiceClient.delete_checkpoint)
    prove_checkpoint = _call(ServiceClient.prove_checkpoint)
    usage = _call(ServiceClient.usage)
    devices = _call(ServiceClient.devices)
    tiers = _call(ServiceClient.tiers)
    cluster = _call(ServiceClient.cluster)
    clusters = _call(ServiceClient.clusters)
    nodes = _call(ServiceClient.nodes)
