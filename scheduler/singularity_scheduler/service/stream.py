"""The event stream (server-sent events): a snapshot first, then each changed session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tornado.iostream import StreamClosedError

from .documents import session_document
from .handlers import ApiHandler

HEARTBEAT_S = 15.0
"""A comment line this often, so that everything in between keeps the connection open."""


class EventsHandler(ApiHandler):
    """GET events. Ends when the client leaves, falls too far behind or the service stops."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")
        controller = self.controller
        subscription = controller.broker.subscribe(self.caller.sees)
        try:
            views = [v for v in controller.state.sessions.values() if subscription.sees(v)]
            sessions = [session_document(controller.state, v) for v in views]
            await self._send("snapshot", {"sessions": sessions})
            while True:
                try:
                    document = await asyncio.wait_for(subscription.queue.get(), HEARTBEAT_S)
                except (asyncio.TimeoutError, TimeoutError):
                    self.write(": heartbeat\n\n")
                    await self.flush()
                    continue
                if document is None:
                    return
                await self._send("session", document)
        except StreamClosedError:
            pass
        finally:
            controller.broker.unsubscribe(subscription)

    async def _send(self, event: str, data: dict[str, Any]) -> None:
        self.write(f"event: {event}\ndata: {json.dumps(data)}\n\n")
        await self.flush()
