"""What batch jobs are like: sizes and run times of two published clusters, as cards of a deck.

`philly`: the sizes and, for each of them, the quantiles of the run times of the 82,247 jobs of
Philly (Jeon et al., ATC 2019, CC-BY-4.0): median 19 minutes, 11.9 device-hours a job on average,
93 % of the jobs on one device, half of the device time on eight. The rare sizes above 32 are
log-normal.
`acme`: shorter and larger jobs, as in Seren of Acme (Hu et al., NSDI 2024, CC-BY-4.0): median 122
seconds, median size 1, largest 1,024. How the sizes are spread between these and how long the tail
is (log-normal, sigma 2.3) are assumptions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .curves import Curve, mean_of

LONGEST_S = 53 * 86_400.0
"""The longest job of Philly."""

_AT = (0.0, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Shares of the jobs of one size in Philly that the run times of `_philly` are given for."""


def _philly(*run_times: float) -> Curve:
    return Curve(tuple(zip(_AT, run_times, strict=True)))


STYLES: dict[str, tuple[tuple[int, float, Curve], ...]] = {
    "philly": (
        (
            1,
            0.93167,
            _philly(
                10,
                62,
                122,
                600,
                1_117,
                1_728,
                2_716,
                3_754,
                8_512,
                19_137,
                135_386,
                863_786,
                3_256_045,
            ),
        ),
        (
            2,
            0.02210,
            _philly(2, 11, 16, 19, 21, 25, 76, 148, 72_361, 197_004, 510_066, 1_463_703, 2_582_803),
        ),
        (
            4,
            0.02274,
            _philly(
                3,
                136,
                772,
                7_457,
                17_388,
                36_253,
                89_311,
                106_275,
                184_426,
                273_515,
                906_798,
                2_416_865,
                2_750_674,
            ),
        ),
        (
            8,
            0.01998,
            _philly(
                1,
                216,
                1_871,
                12_351,
                23_683,
                64_753,
                173_209,
                202_915,
                350_272,
                525_503,
                1_051_666,
                2_655_194,
                4_628_226,
            ),
        ),
        (
            16,
            0.00259,
            _philly(
                2,
                51,
                380,
                10_607,
                52_548,
                78_055,
                163_599,
                187_899,
                340_881,
                505_681,
                1_152_387,
                1_369_876,
                1_710_643,
            ),
        ),
        (
            32,
            0.00081,
            _philly(
                2,
                812,
                1_182,
                2_510,
                14_262,
                46_892,
                53_117,
                54_698,
                59_941,
                71_514,
                121_661,
                121_661,
                128_924,
            ),
        ),
        (64, 0.00007, Curve.lognormal(1_862, 1.52, highest=LONGEST_S)),
        (128, 0.00004, Curve.lognormal(4_322, 1.52, highest=LONGEST_S)),
    ),
    "acme": tuple(
        (1 << power, share, Curve.lognormal(122, 2.3, highest=LONGEST_S))
        for power, share in enumerate(
            (0.56, 0.06, 0.06, 0.22, 0.045, 0.025, 0.015, 0.008, 0.004, 0.002, 0.001)
        )
    ),
}
"""style -> (devices, share of jobs, run time)."""

FRACTIONS = (
    *((810, 1078), (470, 750), (320, 328), (650, 253), (230, 140), (460, 128), (590, 75)),
    *((160, 74), (550, 72), (220, 62), (370, 47)),
)
"""(thousandths of a device, pods) of the fractional pods of openb (Apache-2.0)."""


@dataclass(frozen=True, slots=True)
class Card:
    """A slice of the batch jobs: a run takes `low` x `ratio`**u seconds, u even in 0..1."""

    devices: int
    low: float
    ratio: float

    @property
    def device_seconds(self) -> float:
        """On average."""
        return self.devices * mean_of(self.low, self.ratio)


@cache
def cards(style: str, largest: int, size: int) -> tuple[Card, ...]:
    """A deck of about `size` cards of a style, without jobs on more than `largest` devices."""
    sizes = [entry for entry in STYLES[style] if entry[0] <= largest]
    total = sum(share for _, share, _ in sizes)
    deck: list[Card] = []
    due = 0.0
    for devices, share, curve in reversed(sizes):
        due += share / total * size
        count = round(due) - len(deck)
        deck += [Card(devices, low, ratio) for low, ratio in curve.strata(count)] if count else []
    return tuple(deck)


def mean(deck: Sequence[Card], one: float = 1.0) -> float:
    """Device-seconds of a job of `deck`; jobs on one device count `one` times."""
    return sum(c.device_seconds * (one if c.devices == 1 else 1) for c in deck) / len(deck)


def fraction_pool(rng: random.Random) -> list[int]:
    """Shares to draw from."""
    return rng.choices([s for s, _ in FRACTIONS], [n for _, n in FRACTIONS], k=4096)


def mean_fraction() -> float:
    """Of a device."""
    return sum(s * n for s, n in FRACTIONS) / sum(n for _, n in FRACTIONS) / 1000
