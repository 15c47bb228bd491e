"""Who waits, in which order they are served.

Claims of one tier, demand and virtual cluster are alike to placement: when the first of them finds
no place, none of them does. So each such group has a heap of its own, and a turn looks at the first
of each group. Order within a tier: virtual clusters within their quota, guarantees at risk, those
that waited too long, notebooks (somebody sits before them), attained service, priority, then first
come. Those that share devices go round instead of the last four: who has waited longest for its
turn is next, and they go before others that are no notebooks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from .claims import Claim, Stage

Key = tuple[bool, bool, bool, bool, int, int, int]


def key_of(claim: Claim) -> Key:
    """Sorts the claims of a tier. Those that share go round, whoever they are: behind notebooks
    that want whole devices, before others that do."""
    first = (not claim.at_risk, not claim.starves)
    if claim.shares:
        return (*first, True, False, 0, 0, claim.turn)
    notebook = claim.kind == "interactive"
    return (*first, not notebook, True, claim.level, -claim.priority, claim.order)


@dataclass(slots=True)
class Group:
    """Waiting claims that only their place in the queue tells apart."""

    tier: int
    devices: int
    minimum: int
    virtual_cluster: str
    pool: str
    shares: bool
    heap: list[tuple[Key, int, Claim]] = field(default_factory=list)
    """(key, token, claim); an entry with an old token means nothing."""
    head: Claim | None = None
    """Whom `key` and `reach` are of, as long as its token is `token`."""
    token: int = 0
    key: Key = (False, False, False, False, 0, 0, 0)
    reach: int = 0

    def first(self) -> Claim | None:
        """Who is served first."""
        heap = self.heap
        while heap:
            _, token, claim = heap[0]
            if claim.token == token and claim.stage is Stage.WAITING:
                return claim
            heappop(heap)
        return None


class Queue:
    """All that wait for devices of a cluster."""

    def __init__(self) -> None:
        self.groups: dict[tuple[int, int, int, str, str, bool], Group] = {}
        self.waiting: dict[Claim, None] = {}
        self.devices = [0, 0, 0]
        """rank of a tier -> devices that those who wait ask for."""

    def __len__(self) -> int:
        return len(self.waiting)

    def enter(self, claim: Claim, quota: str = "") -> None:
        """It waits from now on; again after anything that its order depends on has changed.
        `quota`: its virtual cluster, when that has one."""
        kind = (claim.tier, claim.devices, claim.minimum)
        where = (*kind, quota, claim.pool, claim.shares)
        group = self.groups.get(where)
        if group is None:
            group = self.groups[where] = Group(*where)
        claim.token += 1
        if claim not in self.waiting:
            self.waiting[claim] = None
            self.devices[claim.tier] += claim.devices
        heappush(group.heap, (key_of(claim), claim.token, claim))

    def leave(self, claim: Claim) -> None:
        if claim in self.waiting:
            del self.waiting[claim]
            self.devices[claim.tier] -= claim.devices
            claim.token += 1

    def of_tier(self, tier: int) -> list[Group]:
        """The groups of a tier in which somebody waits; empty ones are forgotten."""
        found, empty = [], []
        for where, group in self.groups.items():
            if where[0] != tier:
                continue
            if group.first() is None:
                empty.append(where)
            else:
                found.append(group)
        for where in empty:
            del self.groups[where]
        return found
