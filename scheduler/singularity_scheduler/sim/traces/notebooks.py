"""Seeded notebook sessions, fitted to the production trace published with NotebookOS (ASPLOS 2026).

What is fitted (a cluster of one company, June 2021; the data itself is not used or shipped):
idle gaps between cells p50 3 min, p75 7, p90 35, p95 194 min, p99 2.7 days; 24.9 % of the reserved
device time busy; the median session busy 14 % of its time; 92 cells a session (30,909 of 337);
161 sessions at a time on 866 devices; device counts 1, 4 and 8. From the last two and the number of
sessions follow a mean session of 14 days and a mean cell of 56 minutes.

The model: a session has a log-normal number of cells, and its own log-normal pace: the cells of
one session are alike, those of two are not. Pauses are drawn from the published quantiles. No
session lasts longer than 30 days, as in the observed month. The points of `PAUSES` above p90 are a
little higher than published, because sessions that end lose the longest pauses.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache, partial
from heapq import merge
from operator import attrgetter

from singularity_proxy.errors import BadRequest

from .curves import Curve, deal
from .records import Job, Trace

DAY_S = 86_400.0
PAUSES = Curve(
    (
        *((0.0, 30.0), (0.5, 180.0), (0.75, 420.0), (0.9, 2_100.0)),
        *((0.95, 12_200.0), (0.99, 262_000.0), (1.0, 1_600_000.0)),
    )
)
"""Idle seconds before a cell."""
CELLS = Curve.lognormal(80, 1.2)
"""Cells of a session."""
PACE = Curve.lognormal(1_080, 1.88, highest=6 * DAY_S)
"""Mean busy seconds of the cells of a session."""
SPREAD = Curve.lognormal(math.exp(-0.5), 1.0, lowest=0.0)
"""A cell relative to the pace of its session."""
SHORTEST_CELL_S = 60.0
"""The trace leaves out shorter ones."""
LONGEST_DAYS = 30.0
SIZES = ((1, 0.21), (4, 0.29), (8, 0.50))
"""(devices, share of sessions): together 161 sessions ask for 866 devices."""
SESSIONS_PER_DEVICE = 161 / 866
BUSY_SHARE = 0.249
"""Busy part of the reserved device time."""

_TABLE = 8192
"""Values of a curve that are drawn from."""
_CALIBRATE = 400
"""Sessions at a time that are looked at to find the scale of cells for an exact busy share."""


class Sessions:
    """Draws sessions: cells, and how long the user stays after the last one. With a `deck` the
    numbers and lengths of cells keep their mean over that many sessions (see `curves.deal`)."""

    def __init__(self, rng: random.Random, deck: int = 0) -> None:
        self._random = rng.random
        self._pauses = _table(PAUSES)
        self._spread = _table(SPREAD)
        self._lengths = deal(rng, CELLS.table(deck)) if deck else _draw(rng, _table(CELLS))
        self._paces = deal(rng, PACE.table(deck)) if deck else _draw(rng, _table(PACE))

    def next(self) -> tuple[tuple[tuple[float, float], ...], float]:
        """(cells, linger seconds) of one more session: at least one cell."""
        draw, pauses, spread = self._random, self._pauses, self._spread
        pace = next(self._paces)
        left = LONGEST_DAYS * DAY_S
        cells: list[tuple[float, float]] = []
        for _ in range(max(1, round(next(self._lengths)))):
            idle = pauses[int(draw() * _TABLE)]
            busy = pace * spread[int(draw() * _TABLE)]
            busy = max(busy, SHORTEST_CELL_S)
            left -= idle + busy
            if left < 0 and cells:
                return tuple(cells), 0.0
            cells.append((idle, busy))
        return tuple(cells), min(pauses[int(draw() * _TABLE)], max(left, 0.0))


@cache
def _table(curve: Curve) -> tuple[float, ...]:
    return tuple(curve.table(_TABLE))


def _draw(rng: random.Random, table: tuple[float, ...]) -> Iterator[float]:
    while True:
        yield table[int(rng.random() * _TABLE)]


def notebooks(devices: int = 866, days: float = 30.0, seed: int = 0) -> Trace:
    """A cluster that is fully reserved by notebooks for `days`: at any time about 161 sessions per
    866 devices that together ask for exactly `devices`, and 24.9 % of that time busy (within 0.2
    points; above about 2,000 devices found on a part of them).

    Each place for a session is taken by one session after another. At the start they are under
    way, at the end they are cut off. One that has no cell in between gets one of a minute at the
    end. Jobs have no tier.
    """
    if devices < 1:
        raise BadRequest(f"the cluster has {devices} devices: give at least 1", devices=devices)
    if not 0.5 <= days <= 3650:
        raise BadRequest(f"days is {days}: give from half a day to ten years", days=days)
    places = _places(devices, seed)
    scale = _scale(places[:_CALIBRATE], days * DAY_S, seed)
    return Trace(
        name="notebooks",
        jobs=partial(_jobs, tuple(places), days * DAY_S, seed, scale),
        devices=devices,
        facts={"format": "synthetic", "seed": seed, "days": days, "places": len(places)},
    )


def _places(devices: int, seed: int) -> list[int]:
    """Device counts of the sessions at one time, in random order; they sum to `devices`."""
    wanted = max(1, round(devices * SESSIONS_PER_DEVICE))
    for count in sorted(range(1, devices + 1), key=lambda n: abs(n - wanted)):
        eights = round(count * SIZES[2][1])
        for big in sorted(range(count + 1), key=lambda n: abs(n - eights)):
            four, rest = divmod(devices - count - 7 * big, 3)
            if rest == 0 and four >= 0 and big + four <= count:
                sizes = [8] * big + [4] * four + [1] * (count - big - four)
                random.Random(f"{seed}/places").shuffle(sizes)
                return sizes
    raise AssertionError("devices x 1 is always a solution")


def _scale(places: list[int], span_s: float, seed: int) -> float:
    """The factor on the length of cells with which these places are busy `BUSY_SHARE`."""
    low, high = 0.2, 5.0
    reserved = sum(places) * span_s
    for _ in range(24):
        scale = math.sqrt(low * high)
        busy = sum(job.devices * job.work_s for job in _jobs(tuple(places), span_s, seed, scale))
        if abs(busy / reserved - BUSY_SHARE) < 0.0005:
            break
        if busy / reserved < BUSY_SHARE:
            low = scale
        else:
            high = scale
    return scale


def _jobs(places: tuple[int, ...], span_s: float, seed: int, scale: float) -> Iterator[Job]:
    streams = (_place(number, size, span_s, seed, scale) for number, size in enumerate(places))
    for number, job in enumerate(merge(*streams, key=attrgetter("submit_s"))):
        job.id = number
        yield job


def _place(number: int, size: int, span_s: float, seed: int, scale: float) -> Iterator[Job]:
    """The sessions that take one place from 0 to `span_s`, one after another."""
    rng = random.Random(f"{seed}/place/{number}")
    sessions = Sessions(rng)
    opened = -(1 + rng.random()) * LONGEST_DAYS * DAY_S
    part = 0
    while opened < span_s:
        cells, linger_s = sessions.next()
        seen, at, last = [], opened, max(opened, 0.0)
        for idle, busy in cells:
            start = at + idle
            at = end = start + max(busy * scale, SHORTEST_CELL_S)
            if end > 0 and start < span_s:
                start, end = max(start, 0.0), min(end, span_s)
                seen.append((start - last, end - start))
                last = end
        closed = min(at + linger_s, span_s)
        if not seen and closed == span_s:
            start = max(span_s - SHORTEST_CELL_S, last)
            seen.append((start - last, span_s - start))
            last = span_s
        if seen:
            yield Job(
                id=0,
                name=f"notebook-{number}-{part}",
                submit_s=max(opened, 0.0),
                work_s=sum(busy for _, busy in seen),
                devices=size,
                user=f"user-{number}",
                cells=tuple(seen),
                linger_s=max(closed - last, 0.0),
            )
            part += 1
            opened = at + linger_s
        else:
            # Only its last pause reaches into the time looked at: the next one opens right away.
            opened = min(at + linger_s, 0.0)
