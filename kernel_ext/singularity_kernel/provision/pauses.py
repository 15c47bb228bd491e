"""How long to wait before a scheduler that did not answer is asked again."""

from __future__ import annotations

from collections.abc import Iterator

FIRST_S, LONGEST_S = 0.5, 10.0


def pauses() -> Iterator[float]:
    """Seconds before each new try: the first half a second, each twice the one before, 10 s at
    most; without end."""
    pause = FIRST_S
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_S)
