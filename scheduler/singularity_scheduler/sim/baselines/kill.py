"""Preemption by tier where the one preempted is killed, as cluster schedulers do it today."""

from __future__ import annotations

from math import inf

from singularity_scheduler.core.allocation.claims import Claim

from .base import Rank
from .preemptive import Preemptive


class Kill(Preemptive):
    """Higher tiers first, then first come; one of a higher tier takes devices from those of lower
    tiers, the lowest and latest first, notebooks too. A killed batch job begins again from its
    user's last checkpoint, which it writes after every `checkpoint_s` of work (inf: never, so from
    the start); a killed notebook has to run all its cells again."""

    rule = "preempt.tier"

    def __init__(self, name: str = "", checkpoint_s: float = inf) -> None:
        super().__init__(name)
        self.kills = checkpoint_s

    def rank(self, claim: Claim, now: float) -> Rank:
        return (-claim.tier, claim.order)

    def beats(self, rank: Rank, stands: Rank, now: float) -> bool:
        return rank[0] < stands[0]

    def takes_from(self, claim: Claim) -> bool:
        return True
