"""What happened when, and what should not have: the campaign's record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One line: seconds since the campaign began, what kind, what."""

    at: float
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:8.2f}  {self.kind:9}  {self.text}"


@dataclass(frozen=True)
class Violation:
    """A promise that did not hold. `rule` is the promise, `subject` whose."""

    at: float
    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:8.2f}  VIOLATION  [{self.rule}] {self.subject}: {self.text}"


@dataclass
class Timeline:
    """All entries and violations; `say` is called with each line that people should see at once."""

    say: Callable[[str], None] = print
    file: Path | None = None
    """Each line is also written there as it comes, so that a campaign can be followed."""
    began: float = field(default_factory=time.monotonic)
    entries: list[Entry] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often: "fault NAME", "verb NAME", "refused NAME", "skipped NAME", "told loss" ..."""
    lost_checkpoints: int = 0
    """Checkpoints that were called stored and are gone."""
    _known: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def now(self) -> float:
        """Seconds since the campaign began."""
        return time.monotonic() - self.began

    def add(self, kind: str, text: str) -> None:
        """Record one line."""
        self._append(Entry(self.now, kind, text))

    def count(self, what: str) -> None:
        """Count one of `what`."""
        self.counts[what] += 1

    def violate(self, rule: str, subject: str, text: str, key: str = "") -> None:
        """Record that `rule` did not hold for `subject`; the same `key` counts once."""
        known = (rule, subject, key or text)
        text = " ".join(text.split())[:500]
        if known in self._known:
            return
        self._known.add(known)
        found = Violation(self.now, rule, subject, text)
        self.violations.append(found)
        self._append(Entry(found.at, "VIOLATION", f"[{rule}] {subject}: {text}"))
        self.say(str(found))

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(f"{entry}\n")

    def around(self, at: float, before: float = 30.0, after: float = 5.0) -> list[Entry]:
        """The entries from `before` seconds before `at` to `after` seconds after it."""
        return [e for e in self.entries if at - before <= e.at <= at + after]
