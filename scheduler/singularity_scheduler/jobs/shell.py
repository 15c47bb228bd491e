"""Puts values into a command of bash so that bash reads them as they are meant, wherever in the
command they stand: plain, in quotes of either kind, in a here-document. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

_PLAIN, _SINGLE, _DOUBLE, _ANSI, _SUB, _BACK, _COMMENT = "", "'", '"', "$'", "(", "`", "#"
_SUM = "(("
"""Arithmetic, in which << is no here-document."""
_HERE = re.compile(r"<<(-?)[ \t]*((?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s;&|()<>`'\"\\])+)")
_STARTS_COMMENT = " \t\n;|&("


@dataclass(frozen=True)
class _Here:
    """A here-document: its last line, whether values in it expand, whether it is one of `<<-`, from
    whose lines tabs are taken."""

    end: str
    expands: bool
    tabs: bool

    def ends_with(self, line: str) -> bool:
        """Whether `line`, without its end, is its last one."""
        return (line.lstrip("\t") if self.tabs else line) == self.end


class UnevenValue(ValueError):
    """A value that would not arrive as it is, or the rest of the command not; says why."""


class OpenValue(UnevenValue):
    """A value that is put in as it is, and with which bash would go on to look for the end of
    something: a quote, say. In quotes it would arrive."""

    def __init__(self) -> None:
        super().__init__("bash would read the rest of the command as part of it")


class Command:
    """A command that is put together from its start: `add` what is written in it, `put` the values
    that stand between."""

    def __init__(self) -> None:
        self.text = ""
        self._at = 0
        """`text` is read up to here; beyond its end by one behind a backslash."""
        self._inside: list[str] = []
        """What has begun and not ended, outermost first."""
        self._here: list[_Here] = []
        """The here-documents whose text begins with the next line."""
        self._body: _Here | None = None
        """The here-document that `text` ends in."""

    def add(self, written: str) -> None:
        """Add `written`, a piece of the command as somebody wrote it."""
        self.text += written
        while self._at < len(self.text):
            self._at = self._read(self._at)

    def put(self, value: str, whole: bool) -> None:
        """Add `value`: in quotes it is that text, character by character. Outside of them it is one
        word if it is a `whole` (a path, say), and else goes in as it is, as several words maybe.

        Raises UnevenValue when it, or the rest of the command, would be read as something else."""
        if self._at > len(self.text):
            raise UnevenValue("the backslash before it would change it: leave that out")
        top = self._inside[-1] if self._inside else _PLAIN
        if self._body is not None:
            self._put_in_body(value)
        elif top == _SINGLE:
            self._put_read(value.replace("'", "'\\''"))
        elif top == _ANSI:
            self._put_read(_escaped(value, "\\'"))
        elif top == _DOUBLE:
            self._put_read(_escaped(value, '\\$`"'))
        elif whole:
            self._put_read(shlex.quote(value))
        else:
            before = list(self._inside), list(self._here), self._body
            self.add(value)
            if (self._inside, self._here, self._body) != before or self._at > len(self.text):
                raise OpenValue

    def _put_in_body(self, value: str) -> None:
        """Add `value` to the here-document that `text` ends in."""
        assert self._body is not None
        first = self.text[self.text.rfind("\n") + 1 :]
        if any(self._body.ends_with(line) for line in (first + value).split("\n")):
            raise UnevenValue(
                "one of its lines would end the here-document: let that end with another word"
            )
        self._put_read(_escaped(value, "\\$`") if self._body.expands else value)

    def _put_read(self, text: str) -> None:
        """Add `text`, which leaves what has begun and not ended as it is."""
        self.text += text
        self._at = len(self.text)

    def _read(self, at: int) -> int:
        """Read on from `at`; where to go on."""
        if self._body is not None:
            return self._read_body(at)
        text, top = self.text, self._inside[-1] if self._inside else _PLAIN
        one, two = text[at], text[at : at + 2]
        if top in (_SINGLE, _COMMENT):
            if one == ("'" if top == _SINGLE else "\n"):
                self._inside.pop()
                return at if one == "\n" else at + 1
        elif one == "\\":
            return at + 2
        elif top == _ANSI:
            if one == "'":
                self._inside.pop()
        elif two == "$(":
            arithmetic = text.startswith("((", at + 1)
            self._inside.append(_SUM if arithmetic else _SUB)
            return at + (3 if arithmetic else 2)
        elif one == "`":
            self._begin_or_end(_BACK)
        elif one == '"':
            self._begin_or_end(_DOUBLE)
        elif top != _DOUBLE:
            return self._read_plain(at, top)
        return at + 1

    def _read_plain(self, at: int, top: str) -> int:
        """Read on from `at`, outside of quotes and with nothing there that quotes have too."""
        text, one = self.text, self.text[at]
        if text[at : at + 2] == "$'":
            self._inside.append(_ANSI)
            return at + 2
        if text.startswith("((", at):
            self._inside.append(_SUM)
            return at + 2
        if one in ("'", "("):
            self._inside.append(one)
        elif one == ")" and top == _SUM:
            self._inside.pop()
            if text.startswith("))", at):
                return at + 2
            self._inside.append(_SUB)  # it was a group within another one
        elif one == ")" and top == _SUB:
            self._inside.pop()
        elif one == "#" and (at == 0 or text[at - 1] in _STARTS_COMMENT):
            self._inside.append(_COMMENT)
        elif text.startswith("<<<", at):
            return at + 3
        elif _SUM not in self._inside and (here := _HERE.match(text, at)):  # 1 << n
            expands = not any(mark in here[2] for mark in "'\"\\")
            [end] = shlex.split(here[2])
            self._here.append(_Here(end, expands, bool(here[1])))
            return here.end()
        elif one == "\n" and self._here:
            self._body = self._here.pop(0)
        return at + 1

    def _read_body(self, at: int) -> int:
        """Read the line of a here-document that `at` is in; where the next one begins."""
        assert self._body is not None
        end = self.text.find("\n", at)
        start = self.text.rfind("\n", 0, at) + 1
        if end < 0:
            return len(self.text)
        if self._body.ends_with(self.text[start:end]):
            self._body = self._here.pop(0) if self._here else None
        return end + 1

    def _begin_or_end(self, mark: str) -> None:
        if self._inside and self._inside[-1] == mark:
            self._inside.pop()
        else:
            self._inside.append(mark)


def _escaped(value: str, special: str) -> str:
    """`value` with a backslash before each of the `special` characters."""
    return "".join(f"\\{one}" if one in special else one for one in value)
