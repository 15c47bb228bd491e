"""Gives the jobs of a trace SLA tiers, by a seeded hash of their names.

Public traces do not say tiers. The hash makes the choice the same in every process and for every
subset of a trace. Premium is a guarantee, so what is asked for under it must fit: see `Tiers`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from heapq import heappop, heappush

from singularity_proxy.errors import BadRequest

from .records import Job

SHARES = (0.2, 0.4, 0.4)
"""Shares of premium, standard and basic jobs."""
PREMIUM_CAP = 0.6
"""Largest part of all devices that premium jobs may ask for at once."""


class Tiers:
    """Decides tiers for jobs that come in order of submission.

    A job whose hash says premium becomes standard if it and the premium jobs whose ideal interval
    (from submission, as long as they last when they never wait) covers its submission would ask
    for more than `premium_cap` of `devices`. `moved` counts those.
    """

    def __init__(
        self,
        seed: int,
        shares: tuple[float, float, float] = SHARES,
        *,
        devices: int,
        premium_cap: float = PREMIUM_CAP,
    ) -> None:
        if min(shares) < 0 or not math.isclose(sum(shares), 1):
            raise BadRequest(
                f"the shares of the tiers are {shares}: they must be 0 or more and sum to 1"
            )
        if devices < 1:
            raise BadRequest(f"the cluster has {devices} devices: give at least 1", devices=devices)
        if not 0 <= premium_cap <= 1:
            raise BadRequest(f"premium_cap is {premium_cap}: it must be from 0 to 1")
        self.moved = 0
        self._salt = f"{seed}/"
        self._premium = shares[0]
        self._standard = shares[0] + shares[1]
        self._limit = premium_cap * devices
        self._asked = 0.0
        self._ends: list[tuple[float, float]] = []

    def tier(self, job: Job) -> str:
        """The tier of the next job by the hash of its name; call once for each, in order."""
        digest = hashlib.blake2b((self._salt + job.name).encode(), digest_size=8).digest()
        return self.drawn(job, int.from_bytes(digest, "big") / 2**64)

    def drawn(self, job: Job, lot: float) -> str:
        """The tier of the next job by a given lot from 0 to 1."""
        if lot >= self._premium:
            return "standard" if lot < self._standard else "basic"
        while self._ends and self._ends[0][0] <= job.submit_s:
            self._asked -= heappop(self._ends)[1]
        asks = job.devices * job.share_milli / 1000
        if self._asked + asks > self._limit:
            self.moved += 1
            return "standard"
        self._asked += asks
        heappush(self._ends, (job.submit_s + ideal_s(job), asks))
        return "premium"


def ideal_s(job: Job) -> float:
    """Seconds from submission to end if it never waits: its work, for a notebook with the pauses of
    its user."""
    return job.work_s + job.linger_s + sum(idle for idle, _ in job.cells)


def assign_tiers(
    jobs: Iterable[Job],
    seed: int,
    shares: tuple[float, float, float] = SHARES,
    *,
    devices: int,
    premium_cap: float = PREMIUM_CAP,
) -> int:
    """Set the tier of every job, whatever it was; how many premium ones were moved to standard.

    `jobs` must hold its jobs, in order of submission: those of a generating `Trace` are made anew
    on each pass, and have tiers already.
    """
    tiers = Tiers(seed, shares, devices=devices, premium_cap=premium_cap)
    for job in jobs:
        job.tier = tiers.tier(job)
    return tiers.moved
