"""How much of what its tier promises each session got: the fraction of the service of dedicated
devices, in windows of an hour.

Within a window a session wants service while it has work, and gets it at the rate of what it has
(devices over world size; 0 while it waits, or is on its way). The promise is kept in a window when
what it got is at least the tier's fraction of what it wanted. Queueing, restores, moves and
shrinking all count against it; time in which the session itself is idle does not count at all
(Singularity, arXiv 2202.07848, section 2: ideal over actual time, judged hourly).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .claims import Claim

ROUNDING = 1e-6
"""Seconds that sums of times may be off."""


class Account:
    """The windows of all sessions of a cluster, by tier rank."""

    def __init__(self, window_s: float, fractions: tuple[float, float, float]) -> None:
        self.window_s = window_s
        self.fractions = fractions
        self.windows = [0, 0, 0]
        self.kept = [0, 0, 0]
        self.wanted = [0, 0, 0]
        """Thousandths of devices that sessions with work ask for now."""

    def use(
        self, window_s: float, fractions: tuple[float, float, float], claims: Iterable[Claim]
    ) -> None:
        """Judge by these from now on. When windows have another length, those of `claims` (all
        there are) that are open are judged as they are."""
        self.fractions = fractions
        if window_s == self.window_s:
            return
        self.window_s = window_s
        for claim in claims:
            self.close(claim)
            claim.sla_window = int(claim.mark // window_s)

    def advance(self, claim: Claim, now: float) -> None:
        """Account what a claim had since it was accounted last; called before it changes."""
        since = claim.mark
        if now <= since:
            return
        claim.mark = now
        count = claim.count
        if count:
            claim.attained += (now - since) * count
        if not claim.sla_on:
            return
        wants = claim.share_milli / 1000
        rate = count / claim.devices
        served = claim.serves_from
        window = self.window_s
        last = int(now // window)
        if claim.sla_window != last:
            edge = (claim.sla_window + 1) * window
            claim.sla_wanted += (edge - since) * wants
            if edge > served:
                claim.sla_got += (edge - max(since, served)) * rate
            self.close(claim)
            claim.sla_window += 1
            if served > edge and last > claim.sla_window:  # rare: it comes back for a whole window
                self._one_by_one(claim, edge, last, rate, wants)
            elif last > claim.sla_window:
                between = last - claim.sla_window
                self.windows[claim.tier] += between
                if rate >= self.fractions[claim.tier] * wants - ROUNDING:
                    self.kept[claim.tier] += between
            claim.sla_window = last
            since = last * window
        claim.sla_wanted += (now - since) * wants
        if now > served:
            claim.sla_got += (now - max(since, served)) * rate

    def _one_by_one(self, claim: Claim, since: float, last: int, rate: float, wants: float) -> None:
        """The whole windows from `since` up to window `last`, of a claim that is served later."""
        while claim.sla_window < last and since < claim.serves_from:
            edge = since + self.window_s
            claim.sla_wanted = self.window_s * wants
            claim.sla_got = max(0.0, edge - claim.serves_from) * rate
            self.close(claim)
            claim.sla_window += 1
            since = edge
        between = last - claim.sla_window
        self.windows[claim.tier] += between
        if rate >= self.fractions[claim.tier] * wants - ROUNDING:
            self.kept[claim.tier] += between

    def close(self, claim: Claim) -> None:
        """Judge the window that the claim is in, and begin the next."""
        if claim.sla_wanted > 0:
            self.windows[claim.tier] += 1
            promised = self.fractions[claim.tier] * claim.sla_wanted
            if claim.sla_got >= promised - ROUNDING:
                self.kept[claim.tier] += 1
        claim.sla_wanted = claim.sla_got = 0.0

    def begin(self, claim: Claim, now: float) -> None:
        """It has work from now on."""
        self.advance(claim, now)
        window = int(now // self.window_s)
        if claim.sla_window != window:
            self.close(claim)
            claim.sla_window = window
        if not claim.sla_on:
            self.wanted[claim.tier] += claim.wanted_milli
        claim.mark, claim.sla_on = now, True

    def pause(self, claim: Claim, now: float) -> None:
        """It has no work for now: accounted until here."""
        self.advance(claim, now)
        if claim.sla_on:
            self.wanted[claim.tier] -= claim.wanted_milli
        claim.sla_on = False

    def end(self, claim: Claim, now: float) -> None:
        """It is over."""
        self.pause(claim, now)
        self.close(claim)

    def patience_s(self, tier: int) -> float:
        """How long one of this tier may wait until its guarantee is at risk; inf: there is none."""
        fraction = self.fractions[tier]
        return (1.0 - fraction) * self.window_s if fraction > 0.0 else math.inf

    def feasible(self, capacity: int) -> bool:
        """Whether what is promised to all who want something now can be kept with `capacity`
        devices. If it cannot, taking turns for it would only make everybody late."""
        promised = 0.0  # added up one by one: Python's `sum` of floats differs among its versions
        for fraction, wanted in zip(self.fractions, self.wanted, strict=True):
            promised += fraction * wanted
        return promised <= 1000 * capacity

    def behind(self, claim: Claim) -> bool:
        """Whether it has got less than promised in this window so far."""
        return claim.sla_got < self.fractions[claim.tier] * claim.sla_wanted - ROUNDING
