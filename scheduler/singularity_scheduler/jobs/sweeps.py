"""Sweeps: values that names are to have, one after the other, and their combinations. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.requests.group_spec import MAX_MEMBERS

Space = Mapping[str, Sequence[Any]]
"""Name -> its values."""


@dataclass(frozen=True)
class Sweep:
    """What is run for several values, and what holds for all those runs together. Without a name
    in its space it is no sweep, and false."""

    space: Space = field(default_factory=dict)
    most: int | None = None
    """Only the first so many combinations; None: all."""
    max_parallel: int | None = None
    timeout_s: int | None = None
    """Of all of them together, from when they are submitted."""
    stop_on_failure: bool = False
    stop_when: str | None = None
    """A condition on recorded values, see `requests.goals`."""
    objective: dict[str, str] | None = None
    """Which run is the best: ``{"primary_metric", "goal"}``."""

    def __bool__(self) -> bool:
        return bool(self.space)

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """What is run, in this order; the last name varies fastest."""
        found = itertools.product(*self.space.values())
        chosen = itertools.islice(found, self.most)
        return [dict(zip(self.space, values, strict=True)) for values in chosen]

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Few combinations that have each value of each name that is run: what is checked before
        all of them are sent."""
        if self.most is not None and self.most < self._size:
            return self._telling()

        def value(values: Sequence[Any], number: int) -> Any:
            return values[min(number, len(values) - 1)]

        most = max(map(len, self.space.values()), default=0)
        return [{name: value(v, n) for name, v in self.space.items()} for n in range(most)]

    @property
    def _size(self) -> int:
        return math.prod(map(len, self.space.values()))

    def _telling(self) -> list[dict[str, Any]]:
        """Of the first `most` combinations those with a value that none before has."""
        seen: set[tuple[str, int]] = set()
        found = []
        of_names = (enumerate(values) for values in self.space.values())
        for places in itertools.islice(itertools.product(*of_names), self.most):
            own = {(name, place) for name, (place, _) in zip(self.space, places, strict=True)}
            if not own <= seen:
                seen |= own
                found.append({n: v for n, (_, v) in zip(self.space, places, strict=True)})
        return found

    def refuse_too_many(self) -> None:
        """`BadRequest` for more runs than a group may have."""
        runs = self._size
        if min(runs, self.most or runs) > MAX_MEMBERS:
            raise BadRequest(
                f"the sweep has {runs} combinations, and a group may have {MAX_MEMBERS}; nothing "
                "was started: give fewer values, or split it",
                members=runs,
            )


def refuse_twice(values: Sequence[Any], where: str) -> None:
    """`BadRequest` for a value that is there twice; 1 and true are two values."""
    seen = set()
    for value in values:
        key = (isinstance(value, bool), value)
        if key in seen:
            raise BadRequest(f"{where} has {value} twice; nothing was started: once is enough")
        seen.add(key)
