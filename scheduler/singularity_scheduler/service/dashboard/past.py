"""What the pages read from the ledger: a day of device use, and the event log. Beside decisions."""

from __future__ import annotations

import asyncio
import time

from singularity_scheduler.service.ledger.ledger import Ledger
from singularity_scheduler.service.ledger.log_rows import Filters, Line, Place, read_log
from singularity_scheduler.service.ledger.occupancy_rows import read_shifts

from .series import WIDTH_S, Day, beginning, day_of

KEPT_S = 30.0
"""How long a day that was worked out is shown, to everybody."""

REST = 10.0
"""A day that took long is shown this many times as long: others read the ledger too."""


class Past:
    """One per application."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._day: asyncio.Task[Day] | None = None
        self._until = 0.0
        """Until when it is shown, by the monotonic clock."""

    async def day(self, now: float) -> Day:
        """The 24 hours up to `now`, some `KEPT_S` old; worked out once for all who ask. Raises
        the ledger's errors."""
        ill = self._day is not None and self._day.done() and self._day.exception() is not None
        if self._day is None or ill or (self._day.done() and time.monotonic() >= self._until):
            self._day = asyncio.ensure_future(self._work_out(now))
        return await asyncio.shield(self._day)

    async def _work_out(self, now: float) -> Day:
        start, began = beginning(now), time.monotonic()
        shifts = await self._ledger.look(lambda c: read_shifts(c, start, WIDTH_S, now))
        ended = time.monotonic()
        self._until = ended + max(KEPT_S, REST * (ended - began))
        return day_of(shifts, now)

    async def log(
        self, filters: Filters, whose: str | None, limit: int, after: Place
    ) -> tuple[list[Line], Place | None]:
        """As `read_log`."""
        return await self._ledger.look(lambda c: read_log(c, filters, whose, limit, after))
