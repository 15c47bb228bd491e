"""The schedule of a seed: which fault or verb, when, on whom. Pure, so that a seed replays.

Targets are numbers that are resolved when their time comes, against lists in a fixed order (the
sessions of the campaign that can do it, the nodes, the users): which of them has which process at
that moment is the platform's affair.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FAULTS: Mapping[str, int] = {
    "proxy.kill": 5,
    "proxy.stop": 2,
    "proxy.replacement": 3,
    "proxy.warm": 1,
    "template.kill": 1,
    "template.stop": 1,
    "agent.kill": 3,
    "agent.stop": 2,
    "agent.twice": 2,
    "service.kill": 3,
    "service.stop": 2,
    "service.twice": 1,
    "hub.kill": 2,
    "hub.stop": 1,
    "chp.kill": 2,
    "chp.stop": 1,
    "relay.kill": 3,
    "relay.stop": 1,
    "server.kill": 2,
    "server.stop": 1,
    "criu.kill": 3,
    "holder.kill": 1,
    "node.off": 1,
    "node.wiped": 1,
    "store.full": 1,
    "store.frozen": 1,
    "store.readonly": 1,
    "link.cut": 3,
    "chunk.flip": 1,
    "files.swap": 1,
    "up.kill": 1,
    "clock.step": 1,
}
"""Fault -> how many of it are in one deck. A deck is shuffled and dealt to its end, so that each
fault comes as often as it should in every campaign that is long enough."""

VERBS: Mapping[str, int] = {
    "park": 3,
    "suspend": 5,
    "migrate.node": 4,
    "migrate.device": 2,
    "checkpoint": 4,
    "restore": 2,
    "fork": 2,
    "preempt": 2,
    "keep": 1,
    "tier": 1,
    "resize": 2,
    "visit": 5,
    "close": 2,
    "drain.node": 1,
    "drain.device": 1,
    "upgrade": 1,
    "server.restart": 1,
    "reopen": 1,
    "platform.restart": 1,
}
"""Verb -> how many of it are in one deck."""

CALM_S: Mapping[str, float] = {
    "upgrade": 200.0,
    "drain.node": 120.0,
    "suspend": 90.0,
    "preempt": 90.0,
    "platform.restart": 300.0,
    "reopen": 120.0,
    "visit": 240.0,
}
"""Verb -> how many calm seconds it may take, where it is more than one thing; 60 for the others."""

FAULTS_PER_MINUTE = 15.5
VERBS_PER_MINUTE = 9.0

TOGETHER = 0.15
"""Share of the faults that come with another one at the same moment."""

IN_REPAIR = 0.25
"""Share of the faults that are followed by another one of the same kind of process while the first
is being repaired."""

WARM_UP_S = 3.0
"""Nothing happens in the first seconds after everybody is at work."""


@dataclass(frozen=True)
class Step:
    """One thing that happens. `at`: seconds after everybody is at work; `target` and `dice` are
    read by what carries it out."""

    number: int
    at: float
    kind: str
    name: str
    target: int
    dice: int

    def __str__(self) -> str:
        return f"#{self.number} {self.kind} {self.name} (target {self.target})"

    def rng(self) -> random.Random:
        """Random numbers of this step alone."""
        return random.Random(self.dice)


def _deal(rng: random.Random, deck: Mapping[str, int]) -> Iterator[str]:
    while True:
        cards = [name for name, count in deck.items() for _ in range(count)]
        rng.shuffle(cards)
        yield from cards


def _moments(rng: random.Random, per_minute: float, seconds: float) -> Iterator[float]:
    at = WARM_UP_S
    while (at := at + rng.expovariate(per_minute / 60.0)) < seconds:
        yield at


def draw(
    seed: int,
    seconds: float,
    faults: Mapping[str, int] = FAULTS,
    verbs: Mapping[str, int] = VERBS,
) -> list[Step]:
    """The steps of `seed` in `seconds`, by time. A longer schedule of a seed begins as a shorter
    one."""
    drawn: list[tuple[float, str, str, int, int]] = []
    rng = random.Random(f"{seed}/faults")
    deck = _deal(rng, faults)
    mean = FAULTS_PER_MINUTE / (1.0 + TOGETHER + IN_REPAIR)
    for at in _moments(rng, mean, seconds) if faults else ():
        name = next(deck)
        drawn.append((at, "fault", name, rng.randrange(1 << 16), rng.getrandbits(32)))
        kind, gap = rng.random(), rng.random()
        other, target, dice = next(deck), rng.randrange(1 << 16), rng.getrandbits(32)
        if kind < TOGETHER:
            drawn.append((at + 0.2 * gap, "fault", other, target, dice))
        elif kind < TOGETHER + IN_REPAIR:
            target = drawn[-1][3]
            drawn.append((at + 0.05 + 2.0 * gap * gap, "fault", name, target, dice))
    rng = random.Random(f"{seed}/verbs")
    deck = _deal(rng, verbs)
    for at in _moments(rng, VERBS_PER_MINUTE, seconds) if verbs else ():
        drawn.append((at, "verb", next(deck), rng.randrange(1 << 16), rng.getrandbits(32)))
    drawn = sorted(step for step in drawn if step[0] < seconds)
    return [Step(number, *step) for number, step in enumerate(drawn, start=1)]
