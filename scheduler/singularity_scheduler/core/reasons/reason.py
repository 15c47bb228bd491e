"""Why something is as it is, as data: a code and its arguments. `text.reasons` makes English of it.

No code reads a sentence: who took a device, for which tier, what came before are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

Value = Union[str, int, float, bool, None, "Reason", "tuple[Value, ...]"]


Words = Union[str, "Reason"]
"""Why something was done: in the words of whoever did it, or as the scheduler's own reason."""


@dataclass(frozen=True)
class Reason:
    """One reason: `args` in the order of their names, so that equal ones are equal values.

    Arguments that mean the same whatever the code is: `by` (who did it: the label of a session, or
    a person), `tier` (of the session that devices were taken for, where tiers decided), `after`
    (the reason that this one goes on from: its sentence begins with that one) and `of` (the reason
    of another part of the gang).
    """

    code: str
    args: tuple[tuple[str, Value], ...] = ()

    def find(self, name: str) -> Value:
        """Return the argument `name`, None if there is no such one."""
        return next((value for key, value in self.args if key == name), None)

    def chain(self) -> Iterator[Reason]:
        """Yield this reason and those that it goes on from, the newest first."""
        here: Value = self
        while isinstance(here, Reason):
            yield here
            here = here.find("after")

    @property
    def root(self) -> Reason:
        """The reason that everything else in this one goes on from."""
        return list(self.chain())[-1]

    @property
    def by(self) -> str | None:
        """Who did it: the label of a session, or a person; None: the scheduler by itself."""
        return self._find_first("by")

    @property
    def tier(self) -> str | None:
        """The tier that devices were taken for; None: tiers did not decide."""
        return self._find_first("tier")

    def _find_first(self, name: str) -> str | None:
        for one in self.chain():
            found = one.find(name)
            if isinstance(found, str):
                return found
            of = one.find("of")
            if isinstance(of, Reason) and (found := of._find_first(name)) is not None:
                return found
        return None


def because(code: str, /, **args: Value) -> Reason:
    """Make the reason `code` with these arguments; `text.reasons` knows which ones it has."""
    return Reason(code, tuple(sorted(args.items())))


NONE = Reason("none")
"""Of a session for which nothing was decided yet."""


def to_json(reason: Reason) -> dict[str, Any]:
    """Return ``{"code", "args"}``, of which `from_json` makes an equal reason."""
    return {"code": reason.code, "args": {name: _to_json(value) for name, value in reason.args}}


def from_json(code: str, args: dict[str, Any]) -> Reason:
    """Return the reason that `to_json` was made of."""
    return because(code, **{name: _from_json(value) for name, value in args.items()})


def _to_json(value: Value) -> Any:
    if isinstance(value, Reason):
        return to_json(value)
    return [_to_json(one) for one in value] if isinstance(value, tuple) else value


def _from_json(value: Any) -> Value:
    if isinstance(value, dict):
        return from_json(value["code"], value["args"])
    return tuple(_from_json(one) for one in value) if isinstance(value, list) else value
