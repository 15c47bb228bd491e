"""Seeded synthetic workloads: batch jobs and notebooks for a cluster of any size.

The parts are fitted to published statistics and say so: `batch` (run times and sizes), `arrivals`
(daily rhythm and bursts), `notebooks` (sessions). Jobs are made one at a time in order of
submission, so a workload of millions takes no memory; the same parameters give the same jobs.

The load is the device time asked for, by the whole devices' capacity over the time of submissions:
the work of batch jobs (fractions count as such) and the *busy* time of notebooks. Reserved for
whole sessions, notebooks ask for four times as much.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TypeVar

from singularity_proxy.errors import BadRequest

from . import arrivals, batch
from .curves import deal
from .notebooks import SIZES, Sessions
from .records import Job, Trace
from .tiers import PREMIUM_CAP, SHARES, Tiers

SESSION_BUSY_S = 298_000.0
"""Mean busy seconds of a session of `notebooks.Sessions`."""
T = TypeVar("T")

_DECK = 8192
_POOL = 4096


@dataclass(frozen=True)
class Workload:
    """What is asked of a cluster. Give `days` or `jobs`; the load decides the other."""

    devices: int
    load: float = 0.9
    days: float | None = None
    jobs: int | None = None
    seed: int = 0
    style: str = "philly"
    """Batch jobs like those of philly or acme (see `batch`)."""
    notebook_share: float = 0.01
    """Share of the submissions that are notebooks; at 1 % they are a quarter of the load."""
    elastic_share: float = 0.3
    """Share of the batch jobs on 2 or more devices that may run on fewer: any power of two from a
    quarter of what they ask for."""
    scale_interval_s: float = 600.0
    """Of elastic jobs."""
    fraction_share: float = 0.0
    """Share of the batch jobs on one device that need only a part of it, as in openb."""
    regions: tuple[str, ...] = ()
    """Names for `Job.locations`; earlier ones are asked for more."""
    anywhere_share: float = 0.8
    """With regions: share of the jobs that may run in any; the others name 1 to 3 of them."""
    virtual_clusters: int = 15
    users: int = 300
    tier_shares: tuple[float, float, float] | None = SHARES
    """Shares of premium, standard and basic, drawn; premium is limited as in `tiers.Tiers`. None:
    jobs have no tier."""
    premium_cap: float = PREMIUM_CAP

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise _bad("devices", self.devices, "1 or more")
        if not 0 < self.load <= 100:
            raise _bad("load", self.load, "above 0 and at most 100")
        if (self.days is None) == (self.jobs is None):
            raise BadRequest("give either days or jobs of a workload: the load decides the other")
        if self.days is not None and not 0.01 <= self.days <= 3650:
            raise _bad("days", self.days, "from 0.01 to 3650")
        if self.jobs is not None and not 1 <= self.jobs <= 10**9:
            raise _bad("jobs", self.jobs, "from 1 to 1,000,000,000")
        if self.style not in batch.STYLES:
            raise _bad("style", repr(self.style), " or ".join(batch.STYLES))
        for name in ("notebook_share", "elastic_share", "fraction_share", "anywhere_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise _bad(name, getattr(self, name), "from 0 to 1")
        if not 0 <= self.scale_interval_s < math.inf:
            raise _bad("scale_interval_s", self.scale_interval_s, "0 or more")
        if self.virtual_clusters < 1 or self.users < 1:
            raise BadRequest("a workload has at least 1 virtual cluster and 1 user")
        if self.tier_shares is not None:
            Tiers(0, self.tier_shares, devices=self.devices, premium_cap=self.premium_cap)

    @cached_property
    def device_seconds(self) -> float:
        """What one job asks for on average."""
        part = 1 - self.fraction_share * (1 - batch.mean_fraction())
        each = batch.mean(batch.cards(self.style, self.devices, _DECK), part)
        sizes = self._notebook_sizes
        notebook = SESSION_BUSY_S * sum(n * share for n, share in sizes)
        notebook /= sum(share for _, share in sizes)
        return (1 - self.notebook_share) * each + self.notebook_share * notebook

    @property
    def count(self) -> int:
        """Jobs."""
        if self.jobs is not None:
            return self.jobs
        assert self.days is not None
        return max(1, round(self._rate * self.days * 86_400))

    @property
    def span_s(self) -> float:
        """About how long jobs are submitted."""
        return self.days * 86_400 if self.days is not None else self.count / self._rate

    @property
    def _rate(self) -> float:
        """Jobs per second."""
        return self.load * self.devices / self.device_seconds

    @property
    def _notebook_sizes(self) -> list[tuple[int, float]]:
        return [(n, share) for n, share in SIZES if n <= self.devices]


def synthetic(workload: Workload) -> Trace:
    """The trace of `workload`; each pass makes its jobs anew."""
    return Trace(
        name="synthetic",
        jobs=partial(generate, workload),
        devices=workload.devices,
        count=workload.count,
        facts={"format": "synthetic", **asdict(workload)},
    )


def generate(workload: Workload) -> Iterator[Job]:
    """The jobs of `workload` in order of submission."""
    rng = random.Random(f"{workload.seed}/jobs")
    draw = rng.random
    deck = batch.cards(workload.style, workload.devices, min(_DECK, max(256, workload.count)))
    # A small deck cannot hold the rare sizes in their exact shares: the work makes up for it.
    full = batch.mean(batch.cards(workload.style, workload.devices, _DECK))
    unit = full / batch.mean(deck)
    dealt = deal(rng, [(card.devices, card.low * unit, card.ratio) for card in deck])
    expected = workload.count * workload.notebook_share
    sessions = Sessions(rng, deck=max(8, min(1024, round(expected))))
    sizes, shares = zip(*workload._notebook_sizes, strict=True)
    notebook_sizes = rng.choices(sizes, shares, k=_POOL)
    fractions = batch.fraction_pool(rng)
    owners = _owners(rng, workload)
    places = _locations(rng, workload)
    elastic = {n: _counts(n) for n in {card.devices for card in deck} if n > 1}
    tiers = None
    if workload.tier_shares is not None:
        tiers = Tiers(
            workload.seed,
            workload.tier_shares,
            devices=workload.devices,
            premium_cap=workload.premium_cap,
        )
    notebook_share, elastic_share = workload.notebook_share, workload.elastic_share
    fraction_share, interval_s = workload.fraction_share, workload.scale_interval_s
    moments = arrivals.times(
        random.Random(f"{workload.seed}/arrivals"), workload.count, workload.span_s
    )
    for number, at in enumerate(moments):
        user, cluster = owners[int(draw() * _POOL)]
        if draw() < notebook_share:
            cells, linger_s = sessions.next()
            job = Job(
                number,
                f"notebook-{number}",
                at,
                sum([busy for _, busy in cells]),
                notebook_sizes[int(draw() * _POOL)],
                cells=cells,
                linger_s=linger_s,
            )
        else:
            devices, low, ratio = next(dealt)
            job = Job(number, f"job-{number}", at, low * ratio ** draw(), devices)
            if devices == 1:
                if fraction_share and draw() < fraction_share:
                    job.share_milli = fractions[int(draw() * _POOL)]
            elif draw() < elastic_share:
                job.counts = elastic[devices]
                job.min_devices = job.counts[0]
                job.scale_interval_s = interval_s
        job.user = user
        job.virtual_cluster = cluster
        if places:
            job.locations = places[int(draw() * _POOL)]
        if tiers is not None:
            job.tier = tiers.drawn(job, draw())
        yield job


def _counts(devices: int) -> tuple[int, ...]:
    """The powers of two from a quarter of `devices` up to it."""
    least = max(1, devices // 4)
    return tuple(least << i for i in range(3) if least << i <= devices)


def _owners(rng: random.Random, workload: Workload) -> list[tuple[str, str]]:
    """(user, virtual cluster) to draw from: a few own most, each user has one virtual cluster."""
    clusters = _skewed(rng, [f"vc-{i}" for i in range(workload.virtual_clusters)], 1.5)
    users = [(f"user-{i}", clusters[i % _POOL]) for i in range(workload.users)]
    return _skewed(rng, users, 1.0)


def _locations(rng: random.Random, workload: Workload) -> list[tuple[str, ...]]:
    if not workload.regions:
        return []
    pool: list[tuple[str, ...]] = []
    for region in _skewed(rng, list(workload.regions), 1.0):
        more = rng.sample(workload.regions, min(len(workload.regions), rng.choice((0, 0, 1, 2))))
        named = (region, *(other for other in more if other != region))
        pool.append(() if rng.random() < workload.anywhere_share else named)
    return pool


def _skewed(rng: random.Random, items: list[T], exponent: float) -> list[T]:
    """A pool in which the n-th item comes in proportion to n ** -exponent."""
    weights = [(n + 1) ** -exponent for n in range(len(items))]
    return rng.choices(items, weights, k=_POOL)


def _bad(name: str, value: object, wanted: str) -> BadRequest:
    return BadRequest(f"{name} of a workload is {value}: it must be {wanted}", name=name)
