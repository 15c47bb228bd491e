"""What the scheduler knows of the sessions of this server, and of the one before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Json = dict[str, Any]

log = logging.getLogger("singularity.server")


def newest(found: Sequence[Json]) -> list[Json]:
    """One session for each kernel id. There are two where a kernel was restarted and the one that
    was given up could not be ended; that is said."""
    kept: dict[str, Json] = {}
    for item in sorted(found, key=lambda item: str(item["session"]["created_at"])):
        if before := kept.get(item["kernel_id"]):
            log.warning(
                "Singularity: session %s was given up for session %s and still runs; 'jupyter "
                "singularity end %s' ends it",
                before["session"]["id"],
                item["session"]["id"],
                before["session"]["id"],
            )
        kept[item["kernel_id"]] = item
    return list(kept.values())


class Asked:
    """Asks the scheduler one question at a time, and gives the answer to all who wanted to know
    before it was asked: a server that hears of many forks at once does not ask once for each."""

    def __init__(self, ask: Callable[[], Awaitable[list[Json]]]) -> None:
        self._ask = ask
        self._one = asyncio.Lock()
        self._wanted = 0
        self._answered = 0
        """So many of those who wanted to know had come when `_answer` was asked for."""
        self._answer: list[Json] = []

    async def get(self) -> list[Json]:
        """Return what is known now, and not before this call. Raises what the scheduler refuses."""
        self._wanted += 1
        mine = self._wanted
        async with self._one:
            if self._answered < mine:
                before = self._wanted
                self._answer = await self._ask()
                self._answered = before
            return self._answer
