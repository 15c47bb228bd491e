"""First come, first served; and what hubs do today."""

from __future__ import annotations

from singularity_scheduler.core.allocation.claims import Claim

from .base import Baseline, Rank


class Fifo(Baseline):
    """In order of submission; nobody overtakes, nobody is preempted. Notebooks are reserved for."""


class Reserve(Baseline):
    """A hub beside a batch queue: a notebook has its devices from its first cell until it is
    closed, and goes before all batch jobs; these are served in order of submission."""

    def rank(self, claim: Claim, now: float) -> Rank:
        return (claim.kind != "interactive", claim.order)
