"""Max-min fairness in rounds, as of Gavel on devices of one type (Narayanan et al., OSDI 2020).

Its optimisation has a closed form there: with `s` the devices of a job, the least share of devices
that a job has on average over time is largest when each has the fraction min(1, c / s) of the time,
with one `c` for all, such that all devices are used.
"""

from __future__ import annotations

from math import floor, inf

from singularity_scheduler.core.allocation.claims import Claim, Stage
from singularity_scheduler.core.allocation.pool import Pool

from .base import Rank
from .preemptive import Entry, Preemptive

ROUND_S = 360.0
"""The paper's round."""


class MaxMin(Preemptive):
    """At the end of a round jobs are ranked by the fraction of the time that they should have over
    the fraction they had since they came; the first that fit run in the next round, a job that was
    never served before all others. Who is not among them loses devices that another one needs. A
    job that fits on free devices need not wait for the round (Gavel lets it wait)."""

    def __init__(self, name: str = "", round_s: float = ROUND_S) -> None:
        super().__init__(name)
        self.round_s = round_s
        self._next = -1.0
        """End of the round in progress, when somebody waits; else in the past."""
        self._ending = False
        self._came: dict[Claim, float] = {}

    def rank(self, claim: Claim, now: float) -> Rank:
        """Until the round ends."""
        self._came.setdefault(claim, now)
        if self._next <= now:
            self._next = (floor(now / self.round_s) + 1) * self.round_s
            self.state.timer(self._next, 0)
        return (-inf if not claim.started else 0.0, claim.order)

    def stands(self, claim: Claim, now: float) -> Rank:
        """Who has just begun stays until the round ends."""
        return (-inf, claim.order)

    def beats(self, rank: Rank, stands: Rank, now: float) -> bool:
        """Only who is to run in the next round is placed while one ends."""
        return self._ending and stands[0] >= 0

    def look(self, claim: Claim | None, mark: float, now: float) -> None:
        """A round ends."""
        if not self.ranks:
            return
        for pool in list(self.running):
            chosen = self._plan(pool, now)
            self._ending = True
            for waiting in chosen:
                self._place(pool, waiting, now)
            self._ending = False
        self.state.stirred = True
        self._next = now + self.round_s
        self.state.timer(self._next, 0)

    def _plan(self, pool: Pool, now: float) -> list[Claim]:
        """Who of those that wait is to run in the next round, in order. Those who run and are not
        to do so any more stand behind all others: at 1 and more, the first ones last."""
        running = [claim for _, _, claim in self.running[pool]]
        waiting = [claim for claim in self.ranks if self.state.pool_of(claim) is pool]
        room = pool.free + sum(claim.count for claim in running)
        level = fill(sorted(claim.devices for claim in (*running, *waiting)), room)
        order: list[tuple[float, int, Claim]] = []
        for claim in (*running, *waiting):
            had = claim.attained + (now - claim.mark) * claim.count
            wanted = (now - self._came[claim]) * min(float(claim.devices), level)
            order.append((-wanted / had if had else -inf, claim.order, claim))
        order.sort()
        chosen: list[Claim] = []
        entries: list[Entry] = []
        for place, (_, number, claim) in enumerate(order):
            runs = claim.devices <= room
            if runs:
                room -= claim.devices
            if claim.stage is Stage.HELD:
                stands = -inf if runs else float(place)
                entries.append(((stands, number), number, claim))
                self.entries[claim] = entries[-1]
            elif runs:
                chosen.append(claim)
        self.running[pool] = sorted(entries)
        return chosen

    def over(self, claim: Claim, now: float) -> None:
        super().over(claim, now)
        self._came.pop(claim, None)


def fill(demands: list[int], room: float) -> float:
    """The level `c` at which the sum of min(demand, c) is `room`; `demands` ascend."""
    for number, demand in enumerate(demands):
        left = len(demands) - number
        if demand * left >= room:
            return room / left
        room -= demand
    return float(demands[-1]) if demands else 0.0
