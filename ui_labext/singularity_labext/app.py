"""The jupyter_server extension; enabled by ``jupyter_server_config.d/singularity_labext.json``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from traitlets import Bool, Float

from .events import Emitter, ForkFinder, Taker, follow
from .handlers import handlers

ACTIVE = frozenset({"waiting", "attaching", "held", "parking"})
"""Device states that mean that a session works or wants to."""


class SingularityLabExtension(ExtensionApp):  # type: ignore[misc]
    """Adds ``singularity/api/v1/...`` to the server and keeps it alive while devices are in use."""

    name = "singularity_labext"
    app_name = "Singularity"
    description = "Relays the Singularity scheduler's sessions and events to JupyterLab."

    watch_interval_s = Float(
        30.0,
        config=True,
        help="""Seconds between two looks at this user's sessions, from which the server learns
        whether devices are in use when it decides about shutting itself down. 0: never look.""",
    )

    emit_events = Bool(
        True,
        config=True,
        help="""Whether each change of this user's sessions is emitted through the server's event
        logger, with the schema urn:jupyter-singularity:event:session-state:v1.""",
    )

    _tasks: list[asyncio.Task[None]] = []
    _forks: ForkFinder | None = None
    _active: list[dict[str, Any]] = []

    def initialize_settings(self) -> None:
        """Called by jupyter_server before the handlers."""
        self.settings["singularity_client"] = _client()

    def initialize_handlers(self) -> None:
        """Called by jupyter_server once."""
        self.handlers.extend(handlers())

    async def _start_jupyter_server_extension(self, _serverapp: Any) -> None:
        """Called by jupyter_server when its loop runs."""
        client = self.settings["singularity_client"]
        if not isinstance(client, ServiceClient):
            return
        self._tasks = []
        if self.watch_interval_s > 0:
            self._tasks.append(asyncio.create_task(self._watch(client)))
        takers: list[Taker] = []
        if self.emit_events:
            takers.append(Emitter(self.serverapp.event_logger))
        if find_fork := getattr(self.serverapp.kernel_manager, "find_fork", None):
            self._forks = ForkFinder(find_fork)
            takers.append(self._forks)
        if takers:
            self._tasks.append(asyncio.create_task(follow(client, *takers)))

    async def stop_extension(self) -> None:
        """Called by jupyter_server when it stops."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        if self._forks is not None:
            await self._forks.close()

    def current_activity(self) -> list[dict[str, Any]]:
        """Sessions of this user that use or want devices; called by jupyter_server's own idle
        check. Empty when there is none and when nothing is known."""
        return self._active

    async def _watch(self, client: ServiceClient) -> None:
        while True:
            try:
                sessions = await client.sessions("active")
                self._active = [
                    {key: s.get(key) for key in ("id", "name", "state", "devices")}
                    for s in sessions
                    if s.get("device_state") in ACTIVE and (s.get("busy") or s.get("waiting_since"))
                ]
            except SingularityError:
                self._active = []
            await asyncio.sleep(self.watch_interval_s)


def _client() -> ServiceClient | SingularityError:
    """The scheduler's client, or why there is none: then every request gets that sentence."""
    try:
        return ServiceClient.from_environment(os.environ)
    except SingularityError as error:
        return error
