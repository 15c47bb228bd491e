"""Tiresias: discretised two-dimensional least attained service (Gu et al., NSDI 2019)."""

from __future__ import annotations

from singularity_scheduler.core.allocation.claims import Claim, Stage
from singularity_scheduler.core.allocation.pool import Pool

from .base import Rank
from .preemptive import Preemptive

LIMITS_DEVICE_S = (3250.0, 7200.0)
"""Attained device-seconds at which a job goes to the second and third queue: the defaults of the
authors' simulator, which has three queues."""


class Tiresias(Preemptive):
    """Queues by attained device-seconds; inside a queue in the order in which jobs came to it. One
    of a better queue takes devices from those of worse ones as soon as it comes, and from those of
    its own that came later. It is told no lengths.

    `promote`: a waiting job goes back to the first queue after this many times the time for which
    it has been served; 0, the default of the authors' simulator: never.
    """

    def __init__(
        self,
        name: str = "",
        limits_device_s: tuple[float, ...] = LIMITS_DEVICE_S,
        promote: float = 0.0,
    ) -> None:
        super().__init__(name)
        self.limits_device_s = limits_device_s
        self.promote = promote
        self.came: dict[Claim, tuple[int, float]] = {}
        """(queue, when it came to it)"""
        self.forgiven: dict[Claim, float] = {}
        """Attained service that counts no more, since the last promotion."""

    def queue_of(self, claim: Claim) -> int:
        attained = claim.attained - self.forgiven.get(claim, 0.0) + 1e-6
        return sum(1 for limit in self.limits_device_s if attained >= limit)

    def rank(self, claim: Claim, now: float) -> Rank:
        queue = self.queue_of(claim)
        came = self.came.get(claim)
        if came is None or came[0] != queue:
            came = self.came[claim] = (queue, now)
        return came

    def wait(self, claim: Claim, now: float) -> None:
        super().wait(claim, now)
        if self.promote and self.queue_of(claim):
            served_s = (claim.attained - self.forgiven.get(claim, 0.0)) / claim.devices
            self.state.timer(now + self.promote * served_s, 0, claim, claim.token)

    def held_now(self, pool: Pool, claim: Claim, now: float) -> None:
        super().held_now(pool, claim, now)
        self._until_next(claim, now)

    def _until_next(self, claim: Claim, now: float) -> None:
        queue = self.queue_of(claim)
        if queue < len(self.limits_device_s) and claim in self.entries:
            attained = claim.attained - self.forgiven.get(claim, 0.0)
            left = self.limits_device_s[queue] - attained
            self.state.timer(now + left / claim.devices, 0, claim, claim.token)

    def look(self, claim: Claim | None, mark: float, now: float) -> None:
        if claim is None or claim.token != mark:
            return
        if claim.stage is Stage.HELD:
            self.state.account.advance(claim, now)
            self.stand(self.state.pool_of(claim), claim, self.rank(claim, now))
            self._until_next(claim, now)
        elif claim.stage is Stage.WAITING:
            self.forgiven[claim] = claim.attained
            self.enter(claim, self.rank(claim, now))
        self.state.stirred = True

    def over(self, claim: Claim, now: float) -> None:
        super().over(claim, now)
        self.came.pop(claim, None)
        self.forgiven.pop(claim, None)
