"""Whether calls reach the devices of a session: the evidence on which idle ones are taken. Pure.

`pulse` looks several times a second; the scheduler is told when calls stop and when they come
again.
"""

from __future__ import annotations

from dataclasses import dataclass

QUIET_S = 5.0
"""Devices that no call reached for this long are told to the scheduler as quiet."""


@dataclass
class UseWatch:
    """One per session that holds devices; a new one for each time that it gets some."""

    published: int | None = None
    """Bytes of requests in all its rings when they were looked at last; None: never."""
    since: float = 0.0
    """When the last call was seen."""
    told: bool | None = None
    """What the scheduler was told last: True for quiet; None: nothing."""

    def look(self, now: float, published: int, working: bool) -> float | None:
        """One look: what the rings have had, and whether a device works on something. Seconds
        without a call when that is to be told; 0.0: calls come (again)."""
        first = self.published is None
        if first or working or published != self.published:
            self.published, self.since = published, now
            if self.told is False or (first and not working):
                return None
            self.told = False
            return 0.0
        if self.told or now - self.since < QUIET_S:
            return None
        self.told = True
        return now - self.since

    def quiet_s(self, now: float) -> float | None:
        """What was told, for a scheduler that comes back; None: nothing yet."""
        if self.told is None:
            return None
        return now - self.since if self.told else 0.0
