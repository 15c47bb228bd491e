"""Which values a session may record, and which are kept. Pure.

The notebook that records them, its node agent and the scheduler (`core.recorded`) go by the same
rules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

MAX_NAME = 64
"""Characters of a name."""
MAX_VALUE = 1024
"""Characters of one value, as JSON."""
MAX_ALL = 8 << 10
"""Characters of all names and values of a session, as JSON."""
MAX_NAMES = MAX_ALL // len('"a": 0, ')
"""More names have no room in that."""

Values = Mapping[str, Any]
"""Name -> value."""


def kept(before: Values, new: Values) -> tuple[dict[str, Any], dict[str, str]]:
    """(`before` with what may be kept of `new`, a sentence for each name that may not). Of more
    names than could be kept the last are not looked at; "" has the sentence about them."""
    found, refused = dict(before), dict[str, str]()
    sizes = {name: _size(name, json.dumps(value)) for name, value in before.items()}
    used = sum(sizes.values())
    for name, value in islice(new.items(), MAX_NAMES):
        text, told = _checked(name, value)
        size = _size(name, text)
        more = size - sizes.get(name, 0)
        if not told and used + more > MAX_ALL:
            told = _no_room(repr(name))
        if told:
            refused[name] = told
            continue
        found[name], sizes[name] = plain(value), size
        used += more
    if len(new) > MAX_NAMES:
        refused[""] = _no_room(f"{len(new) - MAX_NAMES} more values")
    return found, refused


def _size(name: str, text: str) -> int:
    """Characters that a value takes among all of them."""
    return len(json.dumps(name)) + len(text) + len(": , ")


def _no_room(what: str) -> str:
    return (
        f"there is no room for {what}: the recorded values of a session have at most "
        f"{MAX_ALL >> 10} KiB"
    )


def _checked(name: str, value: Any) -> tuple[str, str]:
    """(the value as JSON, why it cannot be kept: "" when it can)."""
    said = repr(name[:MAX_NAME])
    try:
        text = json.dumps(plain(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "", f"the value of {said} cannot be kept: JSON has no such value"
    if not name or len(name) > MAX_NAME or not name.isprintable():
        return text, (
            f"{said} cannot be the name of a recorded value: it has 1 to {MAX_NAME} printable "
            "characters"
        )
    if len(text) > MAX_VALUE:
        return text, (
            f"the value of {said} has {len(text)} characters, and one that is kept with the "
            f"session has at most {MAX_VALUE}: it is in the output alone"
        )
    return text, ""


def plain(value: Any) -> Any:
    """`value`; numbers that JSON does not have as text: "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value
