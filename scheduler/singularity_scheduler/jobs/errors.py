"""What is wrong with a job file, with the place in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from singularity_proxy.errors import BadRequest

LONGEST = 60
"""Characters of somebody's text in a sentence."""


class BadJob(BadRequest):
    """A job file that cannot be taken: ``job.yml, line 3: ...``. Fields: `file`, and `line` from 1
    where one is known."""

    def __init__(self, what: str, file: str, line: int | None = None) -> None:
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {what}", file=file, line=line)


def shown(value: object) -> str:
    """`value` in a sentence, not too long and without line ends."""
    text = repr(value) if isinstance(value, str) else yaml_word(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def yaml_word(value: object) -> str:
    """A value as a job file has it."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that somebody may have meant, as the end of a sentence; else all of them."""
    words = list(known)
    if near := difflib.get_close_matches(word, words, n=1):
        return f"did you mean '{near[0]}'?"
    return f"known are {', '.join(words)}" if words else "nothing is known there"
