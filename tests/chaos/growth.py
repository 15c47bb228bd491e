"""Memory and descriptors of agents and service over the campaign: do they grow?

Each of them is killed again and again, so a process is looked at from `SETTLED_S` after its start
on, and what counts is how the values of later processes, and of one process later, differ from
earlier.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from . import processes
from .processes import Found

ROLES = ("agent", "service")

SETTLED_S = 25.0
"""Age from which on a process is looked at: it has loaded what it needs."""

LEAST_S = 200.0
"""Shorter thirds of a campaign say nothing: the first checkpoint of an agent weighs more."""


@dataclass
class Growth:
    """Samples of (time, value) by process and quantity."""

    samples: dict[tuple[str, str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _born: dict[tuple[int, int], float] = field(default_factory=dict)

    def look(self, now: float, found: list[Found]) -> None:
        """Take a sample of each agent and of the service."""
        for one in found:
            if one.role not in ROLES:
                continue
            identity = (one.pid, one.process.started)
            if now - self._born.setdefault(identity, now) < SETTLED_S:
                continue
            for what, value in (("rss", processes.rss(one.pid)), ("fd", processes.fds(one.pid))):
                if value:
                    self.samples[one.role, one.node, what].append((now, float(value)))

    def worst(self, what: str) -> float | None:
        """The larger growth of agents and service."""
        found = [value for role in ROLES if (value := self.of(role, what)) is not None]
        return max(found) if found else None

    def write(self, path: Path) -> None:
        """Write all samples down, for who wants to see where something grew."""
        rows = [
            {"role": role, "node": node, "what": what, "samples": found}
            for (role, node, what), found in self.samples.items()
        ]
        path.write_text(json.dumps(rows))

    def of(self, role: str, what: str) -> float | None:
        """The growth as a share; the worst of all nodes; None when it cannot be said."""
        grown = [
            value
            for (whose, _, quantity), found in self.samples.items()
            if (whose, quantity) == (role, what) and (value := grown_by(found)) is not None
        ]
        return max(grown) if grown else None


def grown_by(found: list[tuple[float, float]]) -> float | None:
    """How much higher the 90th percentile of the last third of the time is than that of the first;
    None when that is shorter than `LEAST_S`."""
    begin, end = (found[0][0], found[-1][0]) if found else (0.0, 0.0)
    third = (end - begin) / 3
    if third < LEAST_S:
        return None
    early = sorted(v for t, v in found if t <= begin + third)
    late = sorted(v for t, v in found if t >= end - third)
    if not early or not late:
        return None
    return late[int(0.9 * (len(late) - 1))] / early[int(0.9 * (len(early) - 1))] - 1.0
