"""English of reasons (`core.reason`): the only place where a code becomes a sentence. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from singularity_scheduler.core.reasons.reason import Reason, Value, Words

from .codes import (
    administering,
    asked,
    devices,
    estimates,
    explained,
    faults,
    moves,
    obstacles,
    refusals,
    runs,
    simulated,
)
from .phrases import duty
from .said import Clauses, Said

if TYPE_CHECKING:
    from singularity_scheduler.core.values.administration import NodeMark
    from singularity_scheduler.core.values.model import Change


def _functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Clauses]]]:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            yield name, function


_MODULES = (
    administering,
    asked,
    devices,
    estimates,
    explained,
    faults,
    moves,
    obstacles,
    refusals,
    runs,
    simulated,
)

CODES: dict[str, Callable[..., Clauses]] = {
    code: function for module in _MODULES for code, function in _functions(module)
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
    args = {name: _argument(value) for name, value in reason.args}
    clauses = CODES[reason.code](**args)
    named = _BRIEF.get(reason.code, "").format(**args)
    return Said((clauses,) if isinstance(clauses, str) else clauses, named)


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


def render_change(change: Change) -> str:
    """Return what people read of a line of history."""
    return change.text or render(change.why)


def render_words(words: Words) -> str:
    """Return what a person said, or the sentence of the scheduler's own reason."""
    return words if isinstance(words, str) else render(words)


def render_duty(mark: NodeMark) -> str:
    """Return what a node is used for: "is being drained by root (new kernel)"."""
    return duty(mark.duty.value, mark.by or None, render_words(mark.reason))


def render_first(reason: Reason) -> str:
    """Return its first clause: what happened, and for whom."""
    return say(reason).head


def render_briefly(reason: Reason) -> str:
    """Return what happened, of what a person did no more than who did it."""
    return say(reason).brief
