"""A measured figure: its values, the one that is quoted, and the spread beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figure:
    """Values of one key; empty with a `note` when this run does not measure it. `quote`: which one
    stands for all, the median of a measurement and the worst of what may never happen."""

    values: list[float] = field(default_factory=list)
    note: str = ""
    quote: Callable[[list[float]], float] = statistics.median

    @property
    def quoted(self) -> float | None:
        return self.quote(self.values) if self.values else None

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def spread(self) -> dict[str, Any]:
        """For the report: smallest, largest, number of values; or why there are none."""
        if not self.values:
            return {"note": self.note}
        return {"min": self.low, "max": self.high, "runs": len(self.values)}
