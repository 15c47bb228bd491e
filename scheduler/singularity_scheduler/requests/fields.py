"""What refusals of bad input have in common: a value in few characters, the nearest name. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.text.errors import bad_request


def refuse_unknown(value: Mapping[str, object], known: Iterable[str], where: str = "") -> None:
    """`BadRequest` for a key that is not among `known`, with the nearest one."""
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1)
            raise bad_request(
                because(
                    "unknown_key",
                    given=shown(f"{where}.{key}" if where else key),
                    near=near[0] if near else None,
                    known=tuple(known),
                ),
                key=key,
            )


def parse_number(request: Mapping[str, Any], key: str) -> float | None:
    """The number in `request` under `key`, 0 or more; None when there is none."""
    value = request.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
        raise bad_request(because("not_a_number", key=key, given=shown(value)))
    return value


def shown(value: object) -> str:
    """`value` for a sentence."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
