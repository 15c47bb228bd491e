"""When jobs are submitted: a day's rhythm with bursts, as in Philly.

Fitted to Philly's submissions per hour over its whole span: the 99th percentile is about 12 times
the mean, the largest hour 33 times (Jeon et al., ATC 2019). Hours are log-normal around a daily
cycle, cut at 33 times the mean; inside an hour submissions are spread evenly at random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from .curves import Curve

SIGMA = 1.75
LARGEST = 33.0
DAY = 0.5
"""Half the difference of the best and the worst time of day, in means."""


def weights(rng: random.Random, hours: int) -> list[float]:
    """What each hour gets of the mean of all hours; the mean of the list is 1."""
    curve = Curve.lognormal(math.exp(-SIGMA * SIGMA / 2), SIGMA, lowest=0.0)
    bursts = [min(value, LARGEST) for value in curve.table(hours)]
    rng.shuffle(bursts)
    cycle = (1 + DAY * math.sin(math.tau * hour / 24) for hour in range(hours))
    found = [burst * part for burst, part in zip(bursts, cycle, strict=True)]
    total = sum(found)
    return [min(weight * hours / total, LARGEST) for weight in found]


def times(rng: random.Random, jobs: int, span_s: float) -> Iterator[float]:
    """`jobs` moments of submission in order, the first at 0."""
    hours = max(1, math.ceil(span_s / 3600))
    step = span_s / hours
    parts = weights(rng, hours)
    unit = jobs / sum(parts)
    done, due, first = 0, 0.0, None
    for hour, weight in enumerate(parts):
        due += weight * unit
        count = (jobs if hour == hours - 1 else round(due)) - done
        start = hour * step
        for at in sorted([start + step * rng.random() for _ in range(count)]):
            if first is None:
                first = at
            yield at - first
        done += count
