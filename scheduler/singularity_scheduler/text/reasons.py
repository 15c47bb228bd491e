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

_PARAMETERS = {code: set(inspect.signature(said).parameters) for code, said in CODES.items()}

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


def is_known(reason: Reason) -> bool:
    """Return whether there is such a code, with these arguments: another version of this program
    may have had it, and written it down."""
    names = {name for name, _ in reason.args}
    return _PARAMETERS.get(reason.code) == names and all(
        _is_known(value) for _, value in reason.args
    )


def _is_known(value: Value) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_known, value))
    return not isinstance(value, Reason) or is_known(value)


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
