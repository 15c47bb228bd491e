"""Puts values into a command of bash so that bash reads them as they are meant, wherever in the
command they stand: plain, in quotes of either kind, in a here-document. Pure."""

from __future__ import annotations

import re
import shlex

_PLAIN, _SINGLE, _DOUBLE, _ANSI, _SUB, _BACK, _COMMENT = "", "'", '"', "$'", "(", "`", "#"
_HERE = re.compile(r"<<-?[ \t]*(\\?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_STARTS_COMMENT = " \t\n;|&("


class UnevenValue(ValueError):
    """A value that is put in as it is, and with which bash would go on to look for the end of
    something: a quote, say."""


class Command:
    """A command that is put together from its start: `add` what is written in it, `put` the values
    that stand between."""

    def __init__(self) -> None:
        self.text = ""
        self._at = 0
        """`text` is read up to here; beyond its end by one behind a backslash."""
        self._inside: list[str] = []
        """What has begun and not ended, outermost first."""
        self._here: list[tuple[str, bool]] = []
        """The here-documents whose text begins with the next line: (last line, values expand)."""
        self._body: tuple[str, bool] | None = None
        """The here-document that `text` ends in."""

    def add(self, written: str) -> None:
        """Add `written`, a piece of the command as somebody wrote it."""
        self.text += written
        while self._at < len(self.text):
            self._at = self._read(self._at)

    def put(self, value: str, whole: bool) -> None:
        """Add `value`: in quotes it is that text, character by character. Outside of them it is one
        word if it is a `whole` (a path, say), and else goes in as it is, as several words maybe.

        Raises UnevenValue when the rest of the command would then be read as something else."""
        top = self._inside[-1] if self._inside else _PLAIN
        if self._body is not None:
            self._put_read(_escaped(value, "\\$`") if self._body[1] else value)
        elif top == _SINGLE:
            self._put_read(value.replace("'", "'\\''"))
        elif top == _ANSI:
            self._put_read(_escaped(value, "\\'"))
        elif top == _DOUBLE:
            self._put_read(_escaped(value, '\\$`"'))
        elif whole:
            self._put_read(shlex.quote(value))
        else:
            before = list(self._inside), list(self._here)
            self.add(value)
            if (self._inside, self._here) != before or self._at > len(self.text):
                raise UnevenValue(value)

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
            self._inside.append(_SUB)
            return at + 2
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
        if one in ("'", "("):
            self._inside.append(one)
        elif one == ")" and top == _SUB:
            self._inside.pop()
        elif one == "#" and (at == 0 or text[at - 1] in _STARTS_COMMENT):
            self._inside.append(_COMMENT)
        elif text.startswith("<<<", at):
            return at + 3
        elif self._inside[-2:] != [_SUB, _SUB] and (here := _HERE.match(text, at)):  # 1 << n
            self._here.append((here[3], not here[1] and not here[2]))
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
        if self.text[start:end].strip("\t") == self._body[0]:
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
