"""What a function for a code returns, and what it gets of a reason within its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

Clauses = Union[str, "tuple[str, ...]"]
"""A sentence without its full stop, or its clauses: the first one says what happened and for whom,
the others what was kept and what comes next."""


@dataclass(frozen=True)
class Said:
    """A reason in English."""

    clauses: tuple[str, ...]
    named: str = ""
    """What is enough to name what a person did or wants; "": its first clause."""

    def __str__(self) -> str:
        return self.text

    @property
    def head(self) -> str:
        """Its first clause."""
        return self.clauses[0]

    @property
    def brief(self) -> str:
        """What happened, of what a person did no more than who did it."""
        return self.named or self.head

    @property
    def text(self) -> str:
        """All of it."""
        return "; ".join(self.clauses)
