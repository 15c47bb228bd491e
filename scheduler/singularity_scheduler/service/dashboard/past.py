"""What the pages read from the ledger: a day of device use, and the event log. Beside decisions."""

from __future__ import annotations

import asyncio
import time

from singularity_scheduler.service.ledger import Ledger
from singularity_scheduler.service.log_rows import Filters, Line, Place, read_log
from singularity_scheduler.service.occupancy_rows import read_shifts

from .series import WIDTH_S, Day, beginning, day_of

KEPT_S = 30.0
"""How long a day that was worked out is shown, to everybody."""


class Past:
    """One per application."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._day: asyncio.Task[Day] | None = None
        self._since = -KEPT_S

    async def day(self, now: float) -> Day:
        """The 24 hours up to `now`, at most `KEPT_S` old; worked out once for all who ask. Raises
        the ledger's errors."""
        ill = self._day is not None and self._day.done() and self._day.exception() is not None
        if self._day is None or ill or time.monotonic() - self._since >= KEPT_S:
            self._since = time.monotonic()
            self._day = asyncio.ensure_future(self._work_out(now))
        return await asyncio.shield(self._day)

    async def _work_out(self, now: float) -> Day:
        start = beginning(now)
        shifts = await self._ledger.look(lambda c: read_shifts(c, start, WIDTH_S, now))
        return day_of(shifts, now)

    async def log(
        self, filters: Filters, whose: str | None, limit: int, after: Place
    ) -> tuple[list[Line], Place | None]:
        """As `read_log`."""
        return await self._ledger.look(lambda c: read_log(c, filters, whose, limit, after))
