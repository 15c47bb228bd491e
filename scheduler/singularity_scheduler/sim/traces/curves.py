"""Distributions given by a few published quantiles, and decks that keep their mean."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Curve:
    """A distribution of positive values: `points` are (share of values below, value), from share 0
    to share 1; between two of them the logarithm of the value grows evenly."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def lognormal(
        cls, median: float, sigma: float, *, lowest: float = 1.0, highest: float = math.inf
    ) -> Curve:
        """About a log-normal distribution, cut to `lowest` .. `highest`."""
        shares = (0.0001, 0.01, *(i / 20 for i in range(1, 20)), 0.975, 0.99, 0.995, 0.999, 0.9999)
        normal = NormalDist()
        values = [median * math.exp(sigma * normal.inv_cdf(share)) for share in shares]
        cut = [min(max(value, lowest), highest) for value in values]
        return cls(((0.0, cut[0]), *zip(shares, cut, strict=True), (1.0, cut[-1])))

    def at(self, share: float) -> float:
        """The value that `share` of all values lie below."""
        for (low, a), (high, b) in pairwise(self.points):
            if share <= high:
                return float(a * (b / a) ** ((share - low) / (high - low)))
        return self.points[-1][1]

    def table(self, size: int) -> list[float]:
        """`size` values, evenly spread over the shares: drawing one of them is drawing from it."""
        return [self.at((i + 0.5) / size) for i in range(size)]

    def strata(self, count: int) -> list[tuple[float, float]]:
        """(lowest value, ratio) of `count` slices of equal share: low x ratio**u for u even in
        0..1 has the mean of its slice, so a deck of few slices has the mean of the whole."""
        found = []
        for i in range(count):
            low = self.at(i / count)
            found.append((low, _ratio(self._mean(i / count, (i + 1) / count) / low)))
        return found

    def _mean(self, start: float, end: float) -> float:
        """Of the values between two shares."""
        total = 0.0
        for (low, a), (high, b) in pairwise(self.points):
            left, right = max(start, low), min(end, high)
            if left < right:
                first = a * (b / a) ** ((left - low) / (high - low))
                last = a * (b / a) ** ((right - low) / (high - low))
                total += (right - left) * mean_of(first, last / first)
        return total / (end - start)


def _ratio(mean: float) -> float:
    """The ratio for which `mean_of(1, ratio)` is `mean` (>= 1)."""
    low, high = 1.0, 2.0
    while mean_of(1.0, high) < mean:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(1.0, middle) < mean else (low, middle)
    return (low + high) / 2


def mean_of(low: float, ratio: float) -> float:
    """The mean of low x ratio**u for u even in 0..1."""
    return low if ratio <= 1.0 + 1e-9 else low * (ratio - 1) / math.log(ratio)


def deal(rng: random.Random, cards: list[T]) -> Iterator[T]:
    """The cards without end, each once before any comes again, in a new order each time. Heavy
    tails then keep their mean in samples that are much smaller than chance would need."""
    while True:
        rng.shuffle(cards)
        yield from cards
