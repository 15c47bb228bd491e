"""A seeded slice of a large matrix by default, all of it with `./dev test --full`.

    @pytest.mark.parametrize("case", some_of(ALL_CASES, 20))

The slice is the same on every run of a seed, so a failure can be repeated; the seed stands in the
header of the test run and is set with SINGULARITY_TEST_SEED.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

FULL = "SINGULARITY_TEST_FULL"
SEED = "SINGULARITY_TEST_SEED"


def is_full() -> bool:
    """Whether this is a `--full` run; known before tests are collected."""
    return os.environ.get(FULL) == "1"


def seed() -> int:
    """The seed of every slice of this run (default 0)."""
    return int(os.environ.get(SEED, "0"))


def some_of(cases: Iterable[T], count: int) -> list[T]:
    """`count` of `cases` in their own order, or all of them in a full run."""
    everything = list(cases)
    if is_full() or count >= len(everything):
        return everything
    chosen = random.Random(f"{seed()}/{len(everything)}/{count}").sample(
        range(len(everything)), count
    )
    return [everything[i] for i in sorted(chosen)]
