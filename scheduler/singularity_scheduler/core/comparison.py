"""Comparisons of a recorded value with a constant, such as ``loss < 0.1``. Pure; nothing of them is
ever run as code."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import BadRequest

MAX_LENGTH = 200
"""Characters of a comparison."""

_WORDS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(<=|>=|==|!=|<|>)\s*(\S.*?)\s*", re.ASCII)
_USAGE = "write NAME, one of < <= > >= == !=, and a number (or, with == and !=, a text)"


@dataclass(frozen=True)
class Comparison:
    """``name word constant``."""

    name: str
    word: str
    constant: float | bool | str

    def __str__(self) -> str:
        return f"{self.name} {self.word} {json.dumps(self.constant)}"

    def holds(self, name: str, value: object) -> bool:
        """Whether the recorded `value` of this `name` fulfils it; values of another kind than the
        constant are only ever different."""
        if name != self.name:
            return False
        if _kind(value) is not _kind(self.constant):
            return self.word == "!="
        return _WORDS[self.word](value, self.constant)


def _kind(value: object) -> type | None:
    """Numbers are of one kind, and truth values are no numbers."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    return str if isinstance(value, str) else None


def parse_comparison(text: object) -> Comparison:
    """The comparison that `text` says; raises `BadRequest`."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise BadRequest(f"a comparison is text of at most {MAX_LENGTH} characters: {_USAGE}")
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise BadRequest(f"'{text}' is no comparison of a recorded value: {_USAGE}")
    name, word, said = found.groups()
    constant = _constant(said)
    if word not in ("==", "!=") and _kind(constant) is not float:
        raise BadRequest(f"'{text}': only numbers are compared with {word}: {_USAGE}")
    return Comparison(name, word, constant)


def _constant(said: str) -> float | bool | str:
    if said.lower() in ("true", "false"):
        return said.lower() == "true"
    if len(said) > 1 and said[0] == said[-1] and said[0] in "'\"":
        return said[1:-1]
    try:
        number = float(said) if "_" not in said else None
    except ValueError:
        number = None
    if number is None:
        return said
    if not math.isfinite(number):
        raise BadRequest(f"{said} is no number that values can be compared with: {_USAGE}")
    return number
