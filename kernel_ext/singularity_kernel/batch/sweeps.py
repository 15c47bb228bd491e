"""Sweeps: the values that parameters are to have, one after the other. Pure functions."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.group_spec import MAX_MEMBERS

from .values import value_of

Sweep = dict[str, list[Any]]
"""Parameter -> its values."""

_RANGE = re.compile(r"([+-]?\d+):([+-]?\d+)(?::([+-]?\d+))?", re.ASCII)
_USAGE = "write NAME=VALUE,VALUE,... or NAME=FROM:TO[:STEP], as in lr=0.1,0.01 or seed=0:4"


def parse_sweep(words: Iterable[str]) -> Sweep:
    """What several ``NAME=VALUES`` say; raises `BadRequest`."""
    found: Sweep = {}
    for word in words:
        name, equals, said = word.partition("=")
        if not equals or not name or not said:
            raise BadRequest(f"--sweep {word} names no values; nothing was started: {_USAGE}")
        if name in found:
            raise BadRequest(f"--sweep names {name} twice; nothing was started: name it once")
        found[name] = values_of(said)
    refuse_too_many(found)
    return found


def values_of(said: str) -> list[Any]:
    """The values behind ``NAME=``: a range of whole numbers, or values as -p reads them."""
    if bounds := _RANGE.fullmatch(said):
        first, last, step = (int(part) if part else 1 for part in bounds.groups())
        if step == 0:
            raise BadRequest(f"the step of {said} is 0; nothing was started: {_USAGE}")
        numbers = range(first, last, step)
        if not numbers:
            raise BadRequest(f"there is no number in {said}: the end is not part of a range")
        if len(numbers) > MAX_MEMBERS:
            raise _too_many(len(numbers))
        return list(numbers)
    parts = said.split(",")
    if not all(parts):
        raise BadRequest(f"'{said}' has an empty value; nothing was started: {_USAGE}")
    values = [value_of(part) for part in parts]
    for number, value in enumerate(values):
        if value in values[:number]:
            raise BadRequest(f"'{said}' has {value} twice; nothing was started: once is enough")
    return values


def refuse_too_many(sweep: Sweep) -> None:
    """`BadRequest` for more combinations than a group may have."""
    members = math.prod(len(values) for values in sweep.values())
    if members > MAX_MEMBERS:
        raise _too_many(members)


def _too_many(members: int) -> BadRequest:
    return BadRequest(
        f"the sweep has {members} combinations, and a group may have {MAX_MEMBERS}; nothing was "
        "started: give fewer values, or split it",
        members=members,
    )


def grid(sweep: Sweep) -> list[dict[str, Any]]:
    """All combinations; the last name varies fastest."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def each_once(sweep: Sweep) -> list[dict[str, Any]]:
    """As few combinations as have each value of each parameter: what is checked before all of
    them are sent."""

    def value(values: Sequence[Any], number: int) -> Any:
        return values[min(number, len(values) - 1)]

    most = max(map(len, sweep.values()))
    return [{name: value(v, number) for name, v in sweep.items()} for number in range(most)]
