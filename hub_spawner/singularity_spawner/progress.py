"""The story of one server start, told to any number of progress pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class StartStory:
    """`start` says what it does, `progress` tells it; a page that comes late hears all of it."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._ended = False
        self._changed = asyncio.Event()

    def say(self, percent: int | None, message: str) -> None:
        """Add a step; `percent` None leaves the bar where it is. Saying the same thing again
        adds nothing."""
        if self._events and self._events[-1]["message"] == message:
            return
        event: dict[str, Any] = {"message": message}
        if percent is not None:
            event["progress"] = percent
        self._events.append(event)
        self._wake()

    def end(self) -> None:
        """No more steps: `events` ends for everybody."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """All steps so far, then each new one until `end`."""
        told = 0
        while True:
            changed = self._changed
            while told < len(self._events):
                yield self._events[told]
                told += 1
            if self._ended:
                return
            await changed.wait()
