"""English of reasons (`core.reason`): the only place where a code becomes a sentence. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType

from singularity_scheduler.core.reason import Reason, Value

from . import devices, moves, obstacles, runs
from .said import Clauses, Said


def _functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Clauses]]]:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            yield name, function


CODES: dict[str, Callable[..., Clauses]] = {
    code: function
    for module in (devices, moves, obstacles, runs)
    for code, function in _functions(module)
}
"""code -> what makes its sentence; its parameters are the arguments of the code."""

_BRIEF = {
    "parked_by": "parked by {by}",
    "preempted": "preempted by {by}",
    "held_back": "held back by {by}",
    "suspending": "suspended by {by}",
    "hibernating": "{sentence}",
}
"""Codes of what a person did or wants, and what of it is enough to name it."""


def say(reason: Reason) -> Said:
    """Return the clauses of a reason. Raises `KeyError` for a code that there is not, `TypeError`
    for arguments that the code has not."""
    clauses = CODES[reason.code](**{name: _argument(value) for name, value in reason.args})
    return Said((clauses,) if isinstance(clauses, str) else clauses)


def _argument(value: Value) -> object:
    if isinstance(value, tuple):
        return tuple(map(_argument, value))
    return say(value) if isinstance(value, Reason) else value


def render(reason: Reason) -> str:
    """Return the sentence of a reason, without its full stop."""
    return say(reason).text


def render_first(reason: Reason) -> str:
    """Return its first clause: what happened, and for whom."""
    return say(reason).head


def render_briefly(reason: Reason) -> str:
    """Return what happened, of what a person did no more than who did it."""
    brief = _BRIEF.get(reason.code)
    return brief.format(**dict(reason.args)) if brief else render_first(reason)
