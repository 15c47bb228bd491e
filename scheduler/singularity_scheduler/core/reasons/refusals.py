"""Refusals, as data: what cannot be done, and why as a code with its arguments. Pure.

Nothing here has a sentence: `text.refusals.in_words` turns what the core refuses into the typed
error with a sentence that people get; whoever calls the core for them does so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, cast

from singularity_proxy.errors import SingularityError

from .reason import Reason


class Refused(SingularityError):
    """Something that cannot be done. It is an instance of one of the typed errors as well (see
    `refuse`), so who catches it does so by that; `message` is for programmers."""

    why: Reason
    kind: type[SingularityError]


def refuse(kind: type[SingularityError], why: Reason, /, **fields: Any) -> Refused:
    """Make the refusal to raise: an instance of `kind` (`Conflict`, `NotFound`, ...) with a reason
    and the facts that programs get."""
    told = ", ".join(f"{name}={value!r}" for name, value in why.args)
    error = _typed(kind)(f"{why.code}({told})", **fields)
    error.why, error.kind = why, kind
    return error


_TYPES: dict[type[SingularityError], type[Refused]] = {}
"""kind -> refusals of that kind."""


def _typed(kind: type[SingularityError]) -> type[Refused]:
    if kind not in _TYPES:
        made = type(f"Refused{kind.__name__}", (Refused, kind), {"__module__": __name__})
        _TYPES[kind] = cast("type[Refused]", made)
    return _TYPES[kind]


def choices(word: str, names: Iterable[str]) -> dict[str, Any]:
    """Return what there is in place of a `word` that is none of `names`, as arguments of a reason:
    the nearest one, else all of them."""
    there = tuple(names)
    near = difflib.get_close_matches(word, there, n=1, cutoff=0.5)
    return {"word": word, "near": near[0] if near else None, "there": () if near else there}
