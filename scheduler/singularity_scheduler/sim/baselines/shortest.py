"""Shortest first: with an oracle that knows lengths, and with what can be known.

Notebooks are ranked by the busy time of their cells and keep their devices once they have them.
"""

from __future__ import annotations

from singularity_scheduler.core.allocation.claims import Claim, Stage
from singularity_scheduler.core.allocation.pool import Pool

from .base import Baseline, Rank
from .preemptive import Preemptive


class Sjf(Baseline):
    """Shortest job first, told the lengths; nobody overtakes, nobody is preempted."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.lengths: dict[Claim, float] = {}

    def prepare(self, claim: Claim, work_s: float) -> None:
        self.lengths[claim] = work_s

    def rank(self, claim: Claim, now: float) -> Rank:
        return (self.lengths[claim], claim.order)

    def over(self, claim: Claim, now: float) -> None:
        del self.lengths[claim]


class Srtf(Preemptive):
    """Shortest remaining time first, told the lengths: the bound that no scheduler without an
    oracle is expected to reach. One who waits takes devices from those who have longer to go, even
    when the time that it takes them to leave and to come back is added to its own."""

    rule = "preempt.shorter"

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.lengths: dict[Claim, float] = {}
        self.away_s = 0.0
        """What a preemption costs."""

    def prepare(self, claim: Claim, work_s: float) -> None:
        self.lengths[claim] = work_s
        self.away_s = claim.costs[0] + claim.costs[2]

    def rank(self, claim: Claim, now: float) -> Rank:
        return (self.lengths[claim] - self.served.get(claim, 0.0), claim.order)

    def stands(self, claim: Claim, now: float) -> Rank:
        """When it ends, which does not change while it runs."""
        return (claim.serves_from + self.rank(claim, now)[0], claim.order)

    def beats(self, rank: Rank, stands: Rank, now: float) -> bool:
        return rank[0] + self.away_s < stands[0] - now

    def over(self, claim: Claim, now: float) -> None:
        super().over(claim, now)
        del self.lengths[claim]


LEAST_S = 300.0


class Estimates:
    """Lengths to be expected of jobs, from those that ended: the mean of the same virtual cluster
    and number of devices, or of the same number of devices, or of all; `unknown_s` before any."""

    def __init__(self, unknown_s: float = 3600.0) -> None:
        self.unknown_s = unknown_s
        self._seen: dict[tuple[str | None, int], list[float]] = {}

    def learn(self, claim: Claim, length_s: float) -> None:
        for key in self._keys(claim):
            seen = self._seen.setdefault(key, [0.0, 0.0])
            seen[0] += length_s
            seen[1] += 1

    def of(self, claim: Claim) -> float:
        for key in self._keys(claim):
            if (seen := self._seen.get(key)) is not None:
                return seen[0] / seen[1]
        return self.unknown_s

    @staticmethod
    def _keys(claim: Claim) -> tuple[tuple[str | None, int], ...]:
        return ((claim.virtual_cluster, claim.devices), (None, claim.devices), (None, 0))


class SrtfEstimated(Srtf):
    """Shortest remaining time first by what can be known: the history of finished jobs, in the
    manner of QSSF (Hu et al., "Characterization and Prediction of Deep Learning Workloads in
    Large-Scale GPU Datacenters", SC 2021), with the virtual cluster in place of the user, whom the
    traces do not name. A job that has worked as long as was expected is expected to take twice as
    long, again and again; nothing less than `LEAST_S` is expected."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.estimates = Estimates()

    def prepare(self, claim: Claim, work_s: float) -> None:
        self.lengths[claim] = max(LEAST_S, self.estimates.of(claim))
        self.away_s = claim.costs[0] + claim.costs[2]

    def held_now(self, pool: Pool, claim: Claim, now: float) -> None:
        super().held_now(pool, claim, now)
        if claim in self.entries:
            self.state.timer(self.entries[claim][0][0], 0, claim, claim.epoch)

    def look(self, claim: Claim | None, mark: float, now: float) -> None:
        """It takes longer than expected."""
        if claim is None or claim.epoch != mark or claim.stage is not Stage.HELD:
            return
        self.lengths[claim] *= 2
        self.held_now(self.state.pool_of(claim), claim, now)
        self.state.stirred = True

    def over(self, claim: Claim, now: float) -> None:
        if claim.kind != "interactive":
            self.estimates.learn(claim, self.served.get(claim, 0.0))
        super().over(claim, now)
