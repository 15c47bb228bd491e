"""``${{inputs.x}}``, ``${{outputs.x}}`` and ``${{search_space.x}}``: what they stand for, with
cycles found. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from .errors import nearest, shown, yaml_word
from .shell import Command, OpenValue, UnevenValue

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
            return self.of(self._name(whole[1]))
        filled = ""
        for written, name in self._pieces(value):
            filled += written + (yaml_word(self.of(name)) if name else "")
            _refuse_too_long(filled)
        return filled

    def filled_command(self, text: str) -> str:
        """The command of bash `text` with its expressions filled in: a path is one word, and in
        quotes each value is the text that it is."""
        if "$[[" in text:
            raise BadExpression(
                "$[[ ]] leaves out in a pipeline what has no value, and one file describes one "
                "job: write what shall be there without $[[ and ]]"
            )
        if "${{" not in text:
            return text
        command = Command()
        for written, name in self._pieces(text):
            command.add(written)
            if name:
                self._put(command, name)
            _refuse_too_long(command.text)
        return command.text

    def _put(self, command: Command, name: str) -> None:
        """Put what `name` stands for into `command`."""
        value = yaml_word(self.of(name))
        try:
            command.put(value, whole=self._is_path(name))
        except UnevenValue as error:
            hint = (
                f': write it in quotes, "${{{{{name}}}}}"' if isinstance(error, OpenValue) else ""
            )
            raise BadExpression(f"{name} is {shown(value)}, and {error}{hint}") from None

    def _is_path(self, name: str) -> bool:
        """Whether `name`, whose value is known, is a path or stands for nothing but one."""
        source = self._sources[name]
        if isinstance(source, str) and (alone := _EXPRESSION.fullmatch(source.strip())):
            return "${{" not in alone[1] and self._is_path(self._name(alone[1]))
        return name.startswith("outputs.") or isinstance(source, dict)

    def _pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """`text` in pieces: what is written up to an expression, and the name in that; behind the
        last one what is left, and ""."""
        last = 0
        for match in _EXPRESSION.finditer(text):
            yield text[last : match.start()], self._name(match[1])
            last = match.end()
        rest = text[last:]
        if "${{" in rest:
            raise BadExpression(f"{shown(rest[rest.index('${{') :])} has no end: write '}}}}'")
        yield rest, ""

    def _name(self, inside: str) -> str:
        """The name that stands in an expression, which is known then."""
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
        return word


def _refuse_too_long(filled: str) -> None:
    if len(filled) > MAX_TEXT:
        raise BadExpression(f"it becomes longer than {MAX_TEXT >> 10} KiB when filled in")
