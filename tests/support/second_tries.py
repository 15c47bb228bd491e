"""Tests that may fail once: `QUARANTINE` names each with its cause; no other gets a second try.

A second try hides a race. One that is known but not mended yet stands here; a test of tier 'faults'
never does, because what fails there now and then is what those tests look for. A run with more than
`LIMIT` second tries fails, and its report counts them by test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

LIMIT = 3
"""Second tries in one run above which it fails."""

QUARANTINE: Mapping[str, str] = {}
"""Test, without its parameters -> why it fails now and then, in one sentence."""


def is_quarantined(nodeid: str) -> bool:
    """Whether that test, or case of a test, may be tried twice."""
    return nodeid.partition("[")[0] in QUARANTINE


def count_second_tries(nodeids: Iterable[str]) -> list[tuple[str, int]]:
    """How often each test was tried again, the most frequent first."""
    return sorted(Counter(nodeids).items(), key=lambda pair: (-pair[1], pair[0]))


def say_too_many(tries: list[tuple[str, int]]) -> str | None:
    """The sentence that fails a run, None where it has few enough second tries."""
    total = sum(count for _, count in tries)
    if total <= LIMIT:
        return None
    listed = ", ".join(f"{nodeid} ({count})" for nodeid, count in tries)
    return f"{total} second tries, and a run may have {LIMIT}: {listed}"
