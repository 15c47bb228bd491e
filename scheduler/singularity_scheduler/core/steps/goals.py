"""What a group is after: when it has found enough, and which of its members is the best. Pure.

Both look at the values that members recorded (see `recorded`), as they are now: a condition is
looked at whenever a member records a value, not only when one ends. A value that is no number, and
one that nobody recorded, meets no condition and is not the best.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
_CONDITION = re.compile(
    rf"\s*(?P<name>[A-Za-z_][A-Za-z0-9_./-]{{0,63}})\s*"
    rf"(?P<compare>{'|'.join(_COMPARE)})\s*(?P<number>{_NUMBER})\s*",
    re.ASCII,
)
GOALS = ("minimize", "maximize")


@dataclass(frozen=True)
class Condition:
    """``loss<0.01``: a name, a comparison, a number, and nothing else."""

    name: str
    compare: str
    number: float

    def met(self, values: Mapping[str, Any]) -> bool:
        value: Any = values.get(self.name)
        return is_number(value) and _COMPARE[self.compare](value, self.number)

    def __str__(self) -> str:
        short = f"{self.number:g}"
        exact = short if float(short) == self.number else repr(self.number)
        return f"{self.name}{self.compare}{exact}"


@lru_cache(256)
def condition_of(text: str) -> Condition | None:
    """The condition in `text`; None for anything else."""
    found = _CONDITION.fullmatch(text)
    if found is None or math.isinf(float(found["number"])):
        return None
    return Condition(found["name"], found["compare"], float(found["number"]))


@dataclass(frozen=True)
class Objective:
    """Which recorded value is to be as small, or as large, as it can be."""

    metric: str
    goal: str
    """One of `GOALS`."""

    def best(self, found: Iterable[tuple[str, Mapping[str, Any]]]) -> str | None:
        """The id that has the best value, of (id, its values); the first of equal ones."""
        sign = 1 if self.goal == "minimize" else -1
        numbers = [(sid, values[self.metric]) for sid, values in found if self.metric in values]
        known = [
            (sign * value, n, sid) for n, (sid, value) in enumerate(numbers) if is_number(value)
        ]
        return min(known)[2] if known else None

    def __str__(self) -> str:
        return f"{self.goal} {self.metric}"


def objective_of(text: str) -> Objective | None:
    """The objective that `str` made `text` of; None for ""."""
    goal, _, metric = text.partition(" ")
    return Objective(metric, goal) if metric else None


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
