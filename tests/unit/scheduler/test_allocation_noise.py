"""Random events on small clusters, a hundred thousand of them in a full run, all invariants after
each of them; and two runs that must decide the same."""

from __future__ import annotations

import random

import pytest
from support import matrix
from support.allocation_noise import Noise

STEPS = 400
EVENTS = 100_000 if matrix.is_full() else 25_000


def test_many_events_break_nothing() -> None:
    events, seed, rules = 0, random.Random(4711), set[str]()
    while events < EVENTS:
        noise = Noise(seed.randrange(1 << 30))
        for _ in range(STEPS):
            noise.step()
        events += noise.events
        rules |= {line[3] for line in noise.lines}
    assert events >= EVENTS, f"{events} events"
    assert len(rules) >= 14, f"only {sorted(rules)} fired"


@pytest.mark.parametrize("seed", range(3))
def test_the_same_events_have_the_same_answers(seed: int) -> None:
    one, two = Noise(seed), Noise(seed)
    for _ in range(STEPS):
        one.step()
        two.step()
    assert one.lines == two.lines != []
