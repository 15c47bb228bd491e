"""A day as bars: where they are in a picture of fixed size. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from singularity_scheduler.core.values.parameters import Parameters

from .series import BUCKETS, TIERS, Day

LEFT, BOTTOM, TOP = 44, 24, 8
"""Room for the words at the axes, in the units of a picture; the page scales it."""


@dataclass(frozen=True)
class Size:
    """Of a picture."""

    width: int
    height: int

    @property
    def step(self) -> float:
        """Of one bucket."""
        return (self.width - LEFT) / BUCKETS

    def y(self, part: float) -> float:
        """Where this part of the way up is."""
        return round(TOP + (self.height - BOTTOM - TOP) * (1 - min(part, 1.0)), 1)


LARGE = Size(960, 220)
SMALL = Size(480, 150)


@dataclass(frozen=True)
class Bar:
    """A rectangle; `looks` is the tier, or "waiting"."""

    looks: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Word:
    """A word at an axis, and the line that goes with it."""

    at: float
    """Where, along the axis."""
    moment: float | None
    """A time, or"""
    value: float | None
    """a number."""


@dataclass(frozen=True)
class Chart:
    """Everything of one picture."""

    size: Size
    bars: tuple[Bar, ...]
    lines: tuple[tuple[str, float], ...]
    """What tier or thing a line across it is of, and where."""
    across: tuple[Word, ...]
    up: tuple[Word, ...]


def devices_chart(day: Day, devices: int) -> Chart:
    """Devices in use, by tier, and those waited for on top; a line at the devices there are."""
    top = _nice(max(day.most, float(devices), 1.0))
    bars: list[Bar] = []
    for number, bucket in enumerate(day.buckets):
        below = 0.0
        for looks, value in [
            *((tier, bucket.served(tier)) for tier in TIERS),
            ("waiting", bucket.total.waiting_s / bucket.seconds),
        ]:
            if value > 0:
                bars.append(_bar(LARGE, looks, number, below / top, (below + value) / top))
                below += value
    return Chart(
        LARGE,
        tuple(bars),
        (("devices", LARGE.y(devices / top)),),
        _hours(LARGE, day, 3),
        tuple(Word(LARGE.y(n / 4), None, top * n / 4) for n in range(5)),
    )


def attained_chart(day: Day, tier: str, parameters: Parameters) -> Chart:
    """The part of the time with work in which sessions of a tier had devices; a line at what is
    promised."""
    bars = tuple(
        _bar(SMALL, tier, number, 0.0, attained)
        for number, bucket in enumerate(day.buckets)
        if (attained := bucket.tiers[tier].attained) is not None
    )
    promised = parameters.fraction(tier)
    lines = (("promised", SMALL.y(promised)),) if promised else ()
    up = tuple(Word(SMALL.y(n / 2), None, 50.0 * n) for n in range(3))
    return Chart(SMALL, bars, lines, _hours(SMALL, day, 6), up)


def _bar(size: Size, looks: str, number: int, low: float, high: float) -> Bar:
    x, y = round(LEFT + number * size.step + 1, 1), size.y(high)
    return Bar(looks, x, y, round(size.step - 2, 1), round(size.y(low) - y, 1))


def _hours(size: Size, day: Day, every: int) -> tuple[Word, ...]:
    """The hours that can be divided by `every`."""
    return tuple(
        Word(round(LEFT + number * size.step, 1), bucket.start, None)
        for number, bucket in enumerate(day.buckets)
        if bucket.start % (every * 3600) == 0
    )


def _nice(value: float) -> float:
    """The next of 4, 8, 20, 40, 80, 200, ...: a quarter of it is a number that people read."""
    scale = 10 ** math.floor(math.log10(value))
    return next(
        (m * scale for m in (0.4, 0.8, 2, 4, 8, 20) if m * scale >= value and m * scale >= 4), 4.0
    )
