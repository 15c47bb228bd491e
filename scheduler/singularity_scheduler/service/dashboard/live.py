"""Tells a page that something it may show has changed; the page then asks for itself again.

What a page shows is made in one place, the templates; so a page that follows and one without a
script show the same, and a browser gets no more than its user may see.
"""

from __future__ import annotations

import asyncio

from singularity_proxy.errors import Forbidden, Unavailable
from tornado.iostream import StreamClosedError

from singularity_scheduler.service.events.feed import Listener, lines
from singularity_scheduler.service.operations.streams import Beats

from .page import Page


class Live(Page):
    """Server-sent events: `snapshot` at the beginning, `change` after each change."""

    streams = True
    _listener: Listener | None = None

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        listener, _ = self.services.feed.listen(self.caller.sees, None)
        self._listener = listener
        self.dashboard.pace.viewers += 1
        try:
            self.write(lines("snapshot", "{}") + b"\n")
            await self.push()
            await self._tell(listener)
        except StreamClosedError:
            pass
        finally:
            self.dashboard.pace.viewers -= 1
            self.services.feed.leave(listener)

    async def _tell(self, listener: Listener) -> None:
        beats = Beats()
        while True:
            await listener.wait(beats.left)
            due = beats.due()
            if due and not await self._still_allowed():
                return
            news = listener.take()
            if news is None:
                return
            if news:
                self.write(lines("change", "{}") + b"\n")
            elif due:
                self.write(b": heartbeat\n\n")
            else:
                continue  # it was for others
            await self.push()
            if news:
                await asyncio.sleep(self.dashboard.pace.gap_s)

    async def _still_allowed(self) -> bool:
        """Whether the login is what it was. A Hub that is away refuses nobody."""
        try:
            return await self._caller(self.login) == self.caller
        except Unavailable:
            return True
        except Forbidden:
            return False

    def on_connection_close(self) -> None:
        if self._listener is not None:
            self._listener.end()
        super().on_connection_close()
