"""``${{inputs.x}}``, ``${{outputs.x}}`` and ``${{search_space.x}}``: what they stand for, with
cycles found. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .errors import nearest, shown, yaml_word

MAX_TEXT = 64 << 10
"""Longest text after everything is filled in: inputs that double each other end there."""

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"(inputs|outputs|search_space)\.([A-Za-z_][A-Za-z0-9_]*)")


class BadExpression(ValueError):
    """An expression that stands for nothing; the text is the sentence."""


class Values:
    """What the names of one job stand for; each is resolved once, when it is first wanted.

    `sources` maps "inputs.x" to its value as written, and `finish` makes of a resolved one what
    stands in its place (a path becomes absolute). It is called with the name and the value.
    """

    def __init__(
        self, sources: dict[str, Any], finish: Callable[[str, Any], Any] = lambda _, value: value
    ) -> None:
        self._sources = sources
        self._finish = finish
        self._known: dict[str, Any] = {}
        self._doing: list[str] = []
        self.used: set[str] = set()
        """The names that stood in what was filled in so far."""

    def of(self, name: str) -> Any:
        """The value of "inputs.x"; raises `BadExpression`."""
        if name not in self._known:
            if name in self._doing:
                circle = " -> ".join([*self._doing[self._doing.index(name) :], name])
                raise BadExpression(f"these stand for each other in a circle: {circle}")
            self._doing.append(name)
            self._known[name] = self._finish(name, self.filled(self._sources[name]))
            self._doing.pop()
        return self._known[name]

    def filled(self, value: Any) -> Any:
        """`value` with the expressions in its texts filled in. One that is the whole text keeps
        the type of what it stands for; between other characters it becomes text."""
        if isinstance(value, dict):
            return {key: self.filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self.filled(part) for part in value]
        if not isinstance(value, str) or "${{" not in value:
            return value
        whole = _EXPRESSION.fullmatch(value.strip())
        if whole and "${{" not in whole[1]:
            return self._meant(whole[1])
        filled, last = "", 0
        for match in _EXPRESSION.finditer(value):
            filled += value[last : match.start()] + yaml_word(self._meant(match[1]))
            last = match.end()
            if len(filled) > MAX_TEXT:
                raise BadExpression(f"it becomes longer than {MAX_TEXT >> 10} KiB when filled in")
        rest = value[last:]
        if "${{" in rest:
            raise BadExpression(f"{shown(rest[rest.index('${{') :])} has no end: write '}}}}'")
        return filled + rest

    def _meant(self, inside: str) -> Any:
        word = inside.strip()
        if word.startswith("parent."):
            alone = word.removeprefix("parent.")
            hint = f", write ${{{{{alone}}}}}" if alone in self._sources else ""
            raise BadExpression(
                f"${{{{{word}}}}} speaks of a pipeline, and one file describes one job{hint}"
            )
        if not _NAME.fullmatch(word):
            raise BadExpression(
                f"${{{{{word[:60]}}}}} means nothing here: write ${{{{inputs.NAME}}}}, "
                "${{outputs.NAME}} or, in a sweep, ${{search_space.NAME}}"
            )
        if word not in self._sources:
            raise BadExpression(
                f"${{{{{word[:60]}}}}} stands for nothing: {nearest(word, self._sources)}"
            )
        self.used.add(word)
        return self.of(word)
