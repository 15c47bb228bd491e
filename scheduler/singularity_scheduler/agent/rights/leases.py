"""Leases of the agent's sessions: who may hold a device until when.

The clock is CLOCK_BOOTTIME, which goes on while the machine sleeps and is not set by anyone. The
agent counts a lease from the moment it *received* the grant or renewal, the service from the
moment it received the answer, so the agent lapses first. A lapsed lease stays lapsed until the
service grants a newer epoch: the agent fences the session by parking it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def boot_clock() -> float:
    """Seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class LeaseGrant:
    """The lease that a device command brings along."""

    epoch: int
    received: float
    """CLOCK_BOOTTIME of the command's arrival: the lease runs from there."""
    ttl_s: float
    reason: str
    """The scheduler's sentence for people."""


@dataclass
class Lease:
    epoch: int
    deadline: float
    """CLOCK_BOOTTIME seconds."""
    lapsed: bool = False


class LeaseTable:
    """Pure: every method takes `now`. One lease per session that holds devices."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def grant(self, session: str, epoch: int, ttl_s: float, now: float) -> None:
        """A device command of lease `epoch` arrived: the lease runs anew."""
        lease = self._leases.get(session)
        if lease is None or epoch >= lease.epoch:
            self._leases[session] = Lease(epoch, now + ttl_s)

    def renew(self, asked: Iterable[tuple[str, int]], ttl_s: float, now: float) -> list[str]:
        """Prolong what is held under exactly the epoch asked for; returns the sessions held."""
        held = []
        for session, epoch in asked:
            lease = self._leases.get(session)
            if lease is None or lease.epoch != epoch or lease.lapsed:
                continue
            if now >= lease.deadline:
                continue  # too late, even if nobody has looked yet
            lease.deadline = now + ttl_s
            held.append(session)
        return held

    def lapse(self, now: float) -> list[str]:
        """Sessions whose lease ran out since the last call; each is named once."""
        gone = [
            s for s, lease in self._leases.items() if not lease.lapsed and now >= lease.deadline
        ]
        for session in gone:
            self._leases[session].lapsed = True
        return gone

    def release(self, session: str) -> None:
        """The session gave its devices back."""
        self._leases.pop(session, None)

    def epoch(self, session: str) -> int | None:
        """The epoch held, None when the session holds no lease or it lapsed."""
        lease = self._leases.get(session)
        return None if lease is None or lease.lapsed else lease.epoch

    def next_deadline(self) -> float | None:
        """When `lapse` has something to say next."""
        return min((x.deadline for x in self._leases.values() if not x.lapsed), default=None)

    def to_json(self) -> dict[str, Any]:
        return {s: [x.epoch, x.deadline, x.lapsed] for s, x in self._leases.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LeaseTable:
        table = cls()
        table._leases = {s: Lease(*x) for s, x in data.items()}
        return table
