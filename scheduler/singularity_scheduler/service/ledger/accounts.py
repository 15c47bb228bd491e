"""Accounting: who used how much of the platform, read from the ledger a little at a time.

The REST handlers read through it. What a session used is folded from its history (`core.usage`);
nothing of it is kept anywhere else, so it cannot disagree with what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Concatenate, ParamSpec, TypeVar

from singularity_proxy.errors import BadRequest
from sqlalchemy import Connection

from singularity_scheduler.client.usage import OF_SESSION
from singularity_scheduler.core.state.usage import DAY_S, NAMES, Meter, Usage
from singularity_scheduler.service.schemas import documents

from .ledger import Ledger
from .usage_rows import (
    Asked,
    Line,
    Metered,
    Place,
    read_lines,
    read_sessions,
    read_stored,
    still_wanted,
)

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

SETTLED_S = 5.0
"""What was decided so long ago is in the ledger, or was not done."""

SESSIONS = 200
LINES = 2000
"""Sessions, and lines of their histories, that are read at once."""

DEFAULT_S = 7 * DAY_S
"""How far back is counted when nobody says."""


@dataclass(frozen=True)
class Window:
    """The time that is accounted, fixed for all pages of an answer; UNIX seconds."""

    since: float
    until: float
    settled: float


def window(since: object, until: object, now: float) -> Window:
    """The time between two moments, each ISO 8601, UNIX seconds or None: up to now, and from
    `DEFAULT_S` before the end. What has not happened yet is left out. `BadRequest` for none."""
    end = min(_moment("until", until, now), now)
    start = max(0.0, _moment("since", since, end - DEFAULT_S))
    if start >= end:
        raise BadRequest("since must be before until, and before now: nothing was counted")
    return Window(start, end, now - SETTLED_S)


def _moment(name: str, text: object, fallback: float) -> float:
    if text is None:
        return fallback
    with contextlib.suppress(ValueError):
        seconds = float(str(text))
        if math.isfinite(seconds):
            return seconds
    with contextlib.suppress(ValueError, OverflowError):
        then = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        return (then if then.tzinfo else then.replace(tzinfo=timezone.utc)).timestamp()
    raise BadRequest(
        f"{name} must be a time, such as 2026-11-21 or 2026-11-21T08:00:00Z, or seconds since 1970"
    )


class Accounts:
    """One per service."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._one = asyncio.Lock()

    async def grouped(
        self, by: str, asked: Asked, limit: int, after: str | None = None
    ) -> tuple[list[Json], str | None]:
        """At most `limit` sums by `by` (of `client.usage.BY`, but "session") behind `after`, by
        name, and what to give as `after` for those behind them (None: there are none)."""
        groups: dict[str, Usage] = {}
        async with self._one:  # each of these reads all there is
            async for session, days in self._metered(asked, Place(), SESSIONS, by == "day"):
                for day, usage in days.items():
                    name = _day(day) if by == "day" else getattr(session, by)
                    groups.setdefault(name, Usage()).add(usage)
        names = sorted(name for name in groups if after is None or name > after)
        rows = [{by: name or None, **_figures(groups[name])} for name in names[:limit]]
        return rows, names[limit - 1] if len(names) > limit else None

    async def sessions(
        self, asked: Asked, limit: int, after: Place
    ) -> tuple[list[Json], Place | None]:
        """At most `limit` sessions behind `after` with what each used: those that go on, then those
        that have ended, the last one first; and what to give as `after`."""
        rows: list[Json] = []
        last = after
        async for session, days in self._metered(asked, after, min(limit, SESSIONS)):
            if len(rows) == limit:
                return rows, last
            last = session.place
            if days:
                rows.append(_of_session(session, days[0]))
        return rows, None

    async def _metered(
        self, asked: Asked, after: Place, at_once: int, daily: bool = False
    ) -> AsyncIterator[tuple[Metered, dict[int, Usage]]]:
        """Each session with what it used, by day."""
        look, since, until = self._look, asked.since, asked.until
        while found := await look(read_sessions, asked, after, at_once):
            meters = {s.id: Meter(s.virtual_devices, since, until, daily) for s in found}
            wanted = [(s.id, s.first) for s in found]
            while lines := await look(read_lines, wanted, until, LINES):
                await asyncio.to_thread(_fold, meters, lines)
                if len(lines) < LINES:
                    break
                wanted = still_wanted(wanted, lines)
            for one in await look(read_stored, list(meters), since, until):
                meters[one.session].checkpoint(one.at, one.stored_bytes, one.sent_bytes)
            for session in found:
                meter = meters[session.id]
                meter.close(session.updated_at if session.ended else asked.until)
                yield session, meter.found
            after = found[-1].place

    async def _look(
        self, read: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._ledger.look(lambda c: read(c, *args, **kwargs))


def _fold(meters: dict[str, Meter], lines: Sequence[Line]) -> None:
    for line in lines:
        meters[line.session].line(
            line.at, line.process_state, line.device_state, line.rule, line.devices
        )


def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_S, timezone.utc).date().isoformat()


def _figures(usage: Usage) -> Json:
    return {name: _rounded(getattr(usage, name)) for name in NAMES}


def _rounded(value: float | int) -> float | int:
    return round(value, 3) if isinstance(value, float) else value


_SAID: dict[str, Callable[[Metered], Any]] = {
    "session": lambda session: session.id,
    "virtual_cluster": lambda session: session.virtual_cluster or None,
    "experiment": lambda session: session.experiment or None,
    "created_at": lambda session: documents.iso(session.created_at),
}


def _of_session(session: Metered, usage: Usage) -> Json:
    said = {
        name: _SAID[name](session) if name in _SAID else getattr(session, name)
        for name in OF_SESSION
    }
    return said | _figures(usage)
