"""A day as bars: where they are in a picture of fixed size. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from singularity_scheduler.core.parameters import Parameters

from .series import BUCKETS, TIERS, WIDTH_S, Day

WIDTH = 960
HEIGHT = 220
"""Of the picture, in its own units; the page scales it."""

LEFT, BOTTOM = 44, 24
"""Room for the words at its axes."""

_STEP = (WIDTH - LEFT) / BUCKETS
_TALL = HEIGHT - BOTTOM - 8


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
            *((tier, bucket.served(tier)) for tier in reversed(TIERS)),
            ("waiting", bucket.total.waiting_s / bucket.seconds),
        ]:
            if value > 0:
                bars.append(_bar(looks, number, below / top, (below + value) / top))
                below += value
    return Chart(
        tuple(bars),
        (("devices", _y(devices / top)),),
        _hours(day),
        tuple(Word(_y(n / 4), None, top * n / 4) for n in range(5)),
    )


def attained_chart(day: Day, tier: str, parameters: Parameters) -> Chart:
    """The part of the time with work in which sessions of a tier had devices; a line at what is
    promised."""
    bars = tuple(
        _bar(tier, number, 0.0, attained)
        for number, bucket in enumerate(day.buckets)
        if (attained := bucket.tiers[tier].attained) is not None
    )
    promised = parameters.fraction(tier)
    lines = (("promised", _y(promised)),) if promised else ()
    up = tuple(Word(_y(n / 2), None, 50.0 * n) for n in range(3))
    return Chart(bars, lines, _hours(day), up)


def _bar(looks: str, number: int, low: float, high: float) -> Bar:
    y = _y(high)
    return Bar(
        looks, round(LEFT + number * _STEP + 1, 1), y, round(_STEP - 2, 1), round(_y(low) - y, 1)
    )


def _y(part: float) -> float:
    return round(8 + _TALL * (1 - min(part, 1.0)), 1)


def _hours(day: Day) -> tuple[Word, ...]:
    """Every third hour."""
    found = []
    for number, bucket in enumerate(day.buckets):
        if bucket.start % (6 * WIDTH_S) == 0:
            found.append(Word(round(LEFT + number * _STEP, 1), bucket.start, None))
    return tuple(found)


def _nice(value: float) -> float:
    """The next of 4, 8, 20, 40, 80, 200, ...: a quarter of it is a number that people read."""
    scale = 10 ** math.floor(math.log10(value))
    return next(
        (m * scale for m in (0.4, 0.8, 2, 4, 8, 20) if m * scale >= value and m * scale >= 4), 4.0
    )
