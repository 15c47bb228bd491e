"""Memory and descriptors of agents and service over the campaign: do they grow?

Each of them is killed again and again, each holds more while more sessions live, and what its first
checkpoints took stays with its allocator. So a process is looked at from `SETTLED_S` after its
start on, the agents of all nodes together, and what counts is how their floor at some number of
live sessions differs late in their life from early: what is taken for a checkpoint and given back
is no growth, and what leaks raises the floor. Different processes are never compared, and few grow
old enough between two kills: a campaign of verbs alone (`--only`), in which each lives to the end,
shows what one collects.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import processes
from .processes import Found

ROLES = ("agent", "service")
WHAT = ("rss", "fd")

SETTLED_S = 100.0
"""Age from which on a process is looked at: it has loaded what it needs and made checkpoints."""

LEAST_S = 200.0
"""Shorter thirds of a life say nothing: the first checkpoint of an agent weighs more."""

LEAST_SAMPLES = 5
"""So many at one number of sessions have a floor."""

Sample = tuple[float, int, float]
"""(time in seconds, live sessions, value)"""


@dataclass
class Growth:
    """Samples by role and quantity, of all processes of a role together: one list for each set of
    processes that lived at a time. `nodes`: how many agents there are when all of them live."""

    nodes: int
    samples: dict[tuple[str, str], list[list[Sample]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _born: dict[tuple[int, int], float] = field(default_factory=dict)
    _last: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def look(self, now: float, found: Sequence[Found], live: int) -> None:
        """Take a sample of the agents and of the service, while `live` sessions live."""
        for role in ROLES:
            settled = sorted(
                (one.pid, one.process.started)
                for one in found
                if one.role == role and self._is_settled(now, one)
            )
            if len(settled) != (self.nodes if role == "agent" else 1):
                continue
            others = settled != self._last.get(role)
            self._last[role] = settled
            for what, of in zip(WHAT, (processes.rss, processes.fds), strict=True):
                lives = self.samples[role, what]
                if others:
                    lives.append([])
                values = [of(pid) for pid, _ in settled]
                if all(values):
                    lives[-1].append((now, live, float(sum(values))))

    def _is_settled(self, now: float, one: Found) -> bool:
        return now - self._born.setdefault((one.pid, one.process.started), now) >= SETTLED_S

    def write(self, path: Path) -> None:
        """Write all samples down, for who wants to see where something grew."""
        rows = [
            {"role": role, "what": what, "lives": lives}
            for (role, what), lives in self.samples.items()
        ]
        path.write_text(json.dumps(rows))

    def of(self, role: str, what: str) -> float | None:
        """The growth of the processes that lived longest, as a share; None when it cannot be said,
        as when all of them died young."""
        lives = [found for found in self.samples[role, what] if found]
        return grown_by(max(lives, key=lambda found: found[-1][0] - found[0][0], default=[]))

    def worst(self, what: str) -> float | None:
        """The larger growth of agents and service."""
        found = [value for role in ROLES if (value := self.of(role, what)) is not None]
        return max(found) if found else None


def grown_by(found: Sequence[Sample]) -> float | None:
    """How much higher the floor (25th percentile) of the last third of the time is than that of the
    first, at equal numbers of sessions; None when a third is shorter than `LEAST_S` or no number of
    sessions has enough samples in both."""
    begin, end = (found[0][0], found[-1][0]) if found else (0.0, 0.0)
    third = (end - begin) / 3
    if third < LEAST_S:
        return None
    early, late = defaultdict(list), defaultdict(list)
    for time, live, value in found:
        if time <= begin + third:
            early[live].append(value)
        elif time >= end - third:
            late[live].append(value)
    total, weight = 0.0, 0
    for live in early.keys() & late.keys():
        count = min(len(early[live]), len(late[live]))
        if count >= LEAST_SAMPLES:
            total += count * (_floor(late[live]) / _floor(early[live]) - 1.0)
            weight += count
    return total / weight if weight else None


def _floor(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]
