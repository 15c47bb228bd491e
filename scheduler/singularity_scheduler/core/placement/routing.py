"""Above the clusters: which region, and which cluster in it, a session goes to. Pure.

Clusters decide by themselves; regions know nothing of them but a `Summary`, the global level
nothing of regions but the sum of theirs. A summary may be some seconds old: what was routed since
is taken off it, so that a burst does not all go to the cluster that was emptiest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from singularity_proxy.errors import BadRequest, Conflict

from singularity_scheduler.core.allocation.claims import TIERS, Claim
from singularity_scheduler.core.allocation.harm import SLOTS, tier_base
from singularity_scheduler.core.allocation.state import Allocation
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import choices, refuse

FRESH_S = 10.0
"""How old a summary may be before its cluster is asked for a new one."""

_FURTHEST = tuple(
    max(slot for slot, threshold in enumerate(SLOTS) if threshold < tier_base(tier + 1))
    for tier in range(len(TIERS))
)
"""rank of a tier -> slot of harm of those of it that may take most from others."""


Ranks = tuple[int, int, int]
"""One number for each rank of a tier."""


@dataclass(slots=True)
class Summary:
    """What a level above knows of a cluster, or of a region, for one type of device."""

    capacity: int = 0
    """Devices there are."""
    largest: int = 0
    """The most devices that a node has."""
    free: int = 0
    room: int = 0
    """The most free devices on one node."""
    within: Ranks = (0, 0, 0)
    """rank of a tier -> devices that one of this tier may have, others giving way."""
    waiting: Ranks = (0, 0, 0)
    """rank of a tier -> devices that those who wait ask for."""

    def fits(self, devices: int) -> bool:
        """Whether so many are free, on one node if a node has so many."""
        return self.free >= devices and (devices > self.largest or self.room >= devices)

    def promised(self, devices: int, tier: int) -> None:
        """A session was sent there: it is counted until the next summary."""
        self.free -= devices
        basic, standard, premium = self.within
        self.within = (basic - devices, standard - devices, premium - devices)
        if self.free < 0:
            waits = list(self.waiting)
            waits[tier] += devices
            self.waiting = (waits[0], waits[1], waits[2])


def summarise(state: Allocation, device_type: str = "") -> Summary:
    """What `state` tells those above it; costs nothing that grows with its sessions or nodes."""
    pool = state.pools.get(device_type) if device_type else next(iter(state.pools.values()), None)
    if pool is None:
        return Summary()
    buckets, total = pool.free_buckets, pool.total
    basic, standard, premium = _FURTHEST
    waiting = state.queue.devices
    return Summary(
        capacity=pool.capacity,
        largest=pool.largest,
        free=pool.free,
        room=next((n for n in range(len(buckets) - 1, 0, -1) if buckets[n]), 0),
        within=(total[basic], total[standard], total[premium]),
        waiting=(waiting[0], waiting[1], waiting[2]),
    )


def _added(one: Ranks, other: Ranks) -> Ranks:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def joined(summaries: Iterable[Summary]) -> Summary:
    """The summary of a region from those of its clusters."""
    total = Summary()
    for one in summaries:
        total.capacity += one.capacity
        total.largest = max(total.largest, one.largest)
        total.free += max(0, one.free)
        total.room = max(total.room, one.room)
        total.within = _added(total.within, one.within)
        total.waiting = _added(total.waiting, one.waiting)
    return total


FREE, YIELDED, TAKEN = 0, 1, 2
"""First part of a score: enough is free; lower tiers would give way; it has to wait."""

Score = tuple[int, float]


def score(summary: Summary, devices: int, tier: int) -> Score | None:
    """How well a session would be off there, smaller is better; None: it could never run there.

    First where enough is free, the fuller the better, so that others stay empty for gangs; then
    where lower tiers would give way; then where least is waited for, for its size.
    """
    if devices > summary.capacity:
        return None
    ahead = sum(summary.waiting[tier:])
    if summary.fits(devices) and not ahead:
        return (FREE, summary.free / max(1, summary.capacity))
    spare = summary.within[tier] - ahead - devices
    if spare >= 0:
        return (YIELDED, -spare / summary.capacity)
    return (TAKEN, (ahead + devices - summary.within[tier]) / summary.capacity)


# -- where sessions may go ------------------------------------------------------------------


class Places:
    """The tree of places: clusters in regions, regions in wider ones, by name."""

    def __init__(self, parents: Mapping[str, str]) -> None:
        """`parents`: name -> the place it lies in, "" for the widest; raises `BadRequest` for a
        place that lies in itself, or in one that there is not."""
        self.parents = dict(parents)
        self._within: dict[str, tuple[str, ...]] = {}
        for name in self.parents:
            self._within[name] = tuple(self._chain(name))

    def _chain(self, name: str) -> Iterator[str]:
        seen = [name]
        at = name
        while at:
            yield at
            parent = self.parents[at]
            if parent in seen:
                circle = because("places_in_a_circle", places=(*seen, parent))
                raise refuse(BadRequest, circle, location=name)
            if parent and parent not in self.parents:
                nowhere = because("place_lies_nowhere", place=at, parent=parent)
                raise refuse(BadRequest, nowhere, location=at)
            seen.append(parent)
            at = parent

    def known(self, name: str) -> str:
        """`name`, or `BadRequest` with the nearest one that there is."""
        if name not in self.parents:
            raise refuse(
                BadRequest,
                because("no_such_location", **choices(name, self.parents)),
                location=name,
            )
        return name

    def allows(self, locations: tuple[str, ...], place: str) -> bool:
        """Whether a session with these locations may be at `place`; (): anywhere."""
        if not locations:
            return True
        return any(name in self._within[place] for name in locations)

    def leads(self, locations: tuple[str, ...], place: str) -> bool:
        """Whether `place` may hold it, or has a place inside that may."""
        if self.allows(locations, place):
            return True
        return any(place in self._within[name] for name in locations)


# -- levels -----------------------------------------------------------------------------------


@dataclass
class Region:
    """One region: its clusters' summaries."""

    name: str
    clusters: dict[str, Summary] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    """cluster -> when its summary was made."""

    def learn(self, cluster: str, summary: Summary, now: float) -> None:
        """A cluster has told how it is."""
        self.clusters[cluster] = summary
        self.at[cluster] = now

    def stale(self, now: float) -> list[str]:
        """Clusters whose summary is too old to route by."""
        return [name for name, at in self.at.items() if now - at > FRESH_S]

    def choose(
        self,
        devices: int,
        tier: int,
        locations: tuple[str, ...],
        places: Places,
        worst: int = TAKEN,
    ) -> str | None:
        """The cluster for a session; None: none of them could ever run it, or only with a score
        beyond `worst`."""
        best: tuple[Score, str] | None = None
        for name, summary in self.clusters.items():
            if not places.allows(locations, name):
                continue
            found = score(summary, devices, tier)
            if found is None or found[0] > worst:
                continue
            if best is None or found < best[0]:
                best = (found, name)
        if best is None:
            return None
        self.clusters[best[1]].promised(devices, tier)
        return best[1]

    def summary(self) -> Summary:
        return joined(self.clusters.values())


class Planet:
    """The global level: routes to a region by the sums of its clusters' summaries."""

    def __init__(self, places: Places, regions: Iterable[Region]) -> None:
        self.places = places
        self.regions = {region.name: region for region in regions}
        self._sums: dict[str, tuple[float, Summary]] = {}

    def learn(self, region: str, now: float) -> Summary:
        """A region tells the sum of what it knows."""
        summary = self.regions[region].summary()
        self._sums[region] = (now, summary)
        return summary

    def _sum(self, region: str, now: float) -> Summary:
        at, summary = self._sums.get(region, (-1e18, Summary()))
        return summary if now - at <= FRESH_S else self.learn(region, now)

    def free(
        self, claim: Claim, locations: tuple[str, ...], own: str, now: float
    ) -> tuple[str, str] | None:
        """(region, cluster) with enough free devices for a session that waits in region `own`; of
        its own region if there is one, and of others by their sums. None: it may as well stay."""
        devices, tier = claim.minimum, claim.tier
        for name in sorted(self.regions, key=lambda name: name != own):
            if locations and not self.places.leads(locations, name):
                continue
            if name != own and not self._sum(name, now).fits(devices):
                continue  # none of its clusters can have them
            cluster = self.regions[name].choose(devices, tier, locations, self.places, FREE)
            if cluster is not None:
                self._sum(name, now).promised(devices, tier)
                return name, cluster
        return None

    def choose(self, claim: Claim, locations: tuple[str, ...], now: float) -> tuple[str, str]:
        """(region, cluster) for a session; `Conflict` when no place that it allows could ever run
        it."""
        for name in locations:
            self.places.known(name)
        devices, tier = claim.minimum, claim.tier
        ranked: list[tuple[Score, str]] = []
        for name, region in self.regions.items():
            if locations and not self.places.leads(locations, name):
                continue
            summary = self._sum(name, now)
            # The largest cluster bounds what a region can run: its sum is more than that.
            fits = any(cluster.capacity >= devices for cluster in region.clusters.values())
            found = score(summary, devices, tier) if fits else None
            if found is not None:
                ranked.append((found, name))
        for _, name in sorted(ranked):
            cluster = self.regions[name].choose(devices, tier, locations, self.places)
            if cluster is not None:
                self._sums[name][1].promised(devices, tier)
                return name, cluster
        raise refuse(
            Conflict,
            because("no_cluster_has_them", locations=locations, number=devices, session=claim.id),
            session=claim.id,
        )
