"""A day in half hours: how many devices were used and waited for, and what each tier got. Pure.

From `Shift`s, what the ledger's transitions sum up to in each bucket. Between two shifts a number
of devices stays as it is, so its mean over a bucket follows from the sums alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.service.ledger.occupancy_rows import BEFORE, Shift

WIDTH_S = 1800.0
BUCKETS = 48

TIERS = tuple(tier.value for tier in Tier)
"""The highest first."""


@dataclass(frozen=True)
class Usage:
    """Of one tier in one bucket, or in all: device seconds."""

    served_s: float = 0.0
    """With devices."""
    waiting_s: float = 0.0
    """In the queue, or waiting for devices."""
    taken: int = 0
    """How often the scheduler took devices away."""

    @property
    def attained(self) -> float | None:
        """Part of the time with work in which there were devices; None: there was no work."""
        wanted = self.served_s + self.waiting_s
        return self.served_s / wanted if wanted > 1e-6 else None

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.served_s + other.served_s,
            self.waiting_s + other.waiting_s,
            self.taken + other.taken,
        )


@dataclass(frozen=True)
class Bucket:
    """One stretch of time; the newest one goes on until now."""

    start: float
    seconds: float
    tiers: dict[str, Usage]

    @property
    def total(self) -> Usage:
        return sum(self.tiers.values(), Usage())

    def served(self, tier: str) -> float:
        """Devices that its sessions had, on average."""
        return self.tiers[tier].served_s / self.seconds

    def waiting(self, tier: str) -> float:
        """Devices that its sessions waited for, on average."""
        return self.tiers[tier].waiting_s / self.seconds


@dataclass(frozen=True)
class Day:
    """The last 24 hours, the oldest bucket first."""

    at: float
    buckets: tuple[Bucket, ...]

    def of(self, tier: str) -> Usage:
        """All of the day."""
        return sum((bucket.tiers[tier] for bucket in self.buckets), Usage())

    @property
    def most(self) -> float:
        """The most devices that were used and waited for in a bucket, on average."""
        totals = ((b.total.served_s + b.total.waiting_s) / b.seconds for b in self.buckets)
        return max(totals, default=0.0)


def beginning(now: float) -> float:
    """Where the day begins: the buckets begin at whole half hours."""
    return (now // WIDTH_S + 1 - BUCKETS) * WIDTH_S


def day_of(shifts: Iterable[Shift], now: float) -> Day:
    """`shifts`: since `beginning(now)`."""
    start = beginning(now)
    of: dict[tuple[str, int], Shift] = {(shift.tier, shift.bucket): shift for shift in shifts}
    served, waiting = dict.fromkeys(TIERS, 0.0), dict.fromkeys(TIERS, 0.0)
    buckets: list[Bucket] = []
    for tier in TIERS:
        if before := of.get((tier, BEFORE)):
            served[tier], waiting[tier] = before.served, before.waiting
    for number in range(BUCKETS):
        begins = number * WIDTH_S
        ends = min(begins + WIDTH_S, max(now - start, begins + 1e-3))
        tiers: dict[str, Usage] = {}
        for tier in TIERS:
            shift = of.get((tier, number), Shift(tier, number, 0.0, 0.0, 0.0, 0.0, 0))
            tiers[tier] = Usage(
                _area(served[tier], shift.served, shift.served_at, begins, ends),
                _area(waiting[tier], shift.waiting, shift.waiting_at, begins, ends),
                shift.taken,
            )
            served[tier] += shift.served
            waiting[tier] += shift.waiting
        buckets.append(Bucket(start + begins, ends - begins, tiers))
    return Day(now, tuple(buckets))


def _area(before: float, gained: float, gained_at: float, begins: float, ends: float) -> float:
    """What was there at the beginning for all of the time, what came for the rest of it."""
    return max(0.0, before * (ends - begins) + gained * ends - gained_at)
