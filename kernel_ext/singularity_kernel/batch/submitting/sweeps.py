"""What ``--sweep`` says: the values that names are to have, one after the other. Pure functions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from singularity_proxy.errors import BadRequest
from singularity_scheduler.jobs.sweeps import Sweep, refuse_twice

from .values import value_of

_RANGE = re.compile(r"([+-]?\d+):([+-]?\d+)(?::([+-]?\d+))?", re.ASCII)
_USAGE = "write NAME=VALUE,VALUE,... or NAME=FROM:TO[:STEP], as in lr=0.1,0.01 or seed=0:4"


def parse_sweep(words: Iterable[str]) -> dict[str, list[Any]]:
    """The space that several ``NAME=VALUES`` say; raises `BadRequest`."""
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, said = word.partition("=")
        if not equals or not name or not said:
            raise BadRequest(f"--sweep {word} names no values; nothing was started: {_USAGE}")
        if name in found:
            raise BadRequest(f"--sweep names {name} twice; nothing was started: name it once")
        found[name] = values_of(said)
    Sweep(found).refuse_too_many()
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
        if (last - first) // step > sys.maxsize:
            raise BadRequest(f"{said} are more numbers than can be counted; nothing was started")
        Sweep({"": numbers}).refuse_too_many()
        return list(numbers)
    parts = said.split(",")
    if not all(parts):
        raise BadRequest(f"'{said}' has an empty value; nothing was started: {_USAGE}")
    values = [value_of(part) for part in parts]
    refuse_twice(values, f"'{said}'")
    return values
