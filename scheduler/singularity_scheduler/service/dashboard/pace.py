"""How often pages are told of changes: each of those who look then asks for a page again, and the
making of pages must leave the service's one thread to its decisions."""

from __future__ import annotations

SHARE = 0.2
"""Part of the thread's time that pages which follow may take."""

GAP_S = 0.1
"""Changes that come so close together are told once, however few look."""

LONGEST_S = 30.0
"""A page is never older than this."""

NEWEST = 0.2
"""How much the newest page counts for what one takes."""


class Pace:
    """One per application."""

    def __init__(self) -> None:
        self.viewers = 0
        """Pages that follow."""
        self._page_s = 0.0

    def took(self, seconds: float) -> None:
        """So long the processor worked on a page."""
        self._page_s += NEWEST * (max(0.0, seconds) - self._page_s)

    @property
    def gap_s(self) -> float:
        """How long after one change the next one is told."""
        return min(LONGEST_S, max(GAP_S, self._page_s * self.viewers / SHARE))
