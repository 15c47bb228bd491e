"""Many clusters in a replay: every cluster with its own policy, regions and a global level above
them that know summaries only (`core.routing`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from singularity_proxy.errors import BadRequest, Conflict

from singularity_scheduler.core.allocation.claims import TIERS, Claim, Stage
from singularity_scheduler.core.allocation.events import Id, NodeUp
from singularity_scheduler.core.allocation.pool import ANY
from singularity_scheduler.core.placement import routing
from singularity_scheduler.core.values.parameters import Parameters

from .record import Record
from .replay import Costs, Replay
from .schedulers import Policy
from .traces.records import Job

_RANK = {name: rank for rank, name in enumerate(TIERS)} | {"": 1}

LOOKED_AT = 64
"""Most of those who wait in one cluster that are looked at in one go."""

Locations = Callable[[Id], tuple[str, ...]]
"""Where a session may be; (): anywhere."""

MAX_NODES = 1000
"""Of one cluster: what a cluster's scheduler is made for."""


@dataclass(frozen=True)
class Shape:
    """A fleet of equal clusters. Devices that do not fill a node are left out."""

    devices: int
    per_node: int = 8
    clusters: int = 1
    regions: int = 1
    per_rack: int = 16
    """Nodes in a rack."""
    islands: int = 2
    """Groups of devices with a fast link among them, of one node."""

    def __post_init__(self) -> None:
        for name in ("devices", "per_node", "clusters", "regions", "per_rack", "islands"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.clusters < self.regions:
            raise BadRequest(
                f"{self.clusters} clusters cannot be in {self.regions} regions: each needs one"
            )
        if self.nodes < 1:
            raise BadRequest(
                f"{self.devices} devices in {self.clusters} clusters do not fill one node of "
                f"{self.per_node} in each: ask for more devices, or fewer per node"
            )
        if self.nodes > MAX_NODES:
            raise BadRequest(
                f"a cluster would have {self.nodes} nodes, and {MAX_NODES} are the most: ask for "
                f"at least {-(-self.devices // (MAX_NODES * self.per_node))} clusters"
            )

    @property
    def nodes(self) -> int:
        """Nodes of each cluster."""
        return self.devices // (self.clusters * self.per_node)

    @property
    def capacity(self) -> int:
        """Devices that there are after rounding."""
        return self.nodes * self.per_node * self.clusters

    def of_cluster(self, name: str) -> Iterator[NodeUp]:
        """The nodes of one cluster."""
        part = max(1, self.per_node // self.islands)
        full = (1 << self.per_node) - 1
        masks = tuple(((1 << part) - 1) << at & full for at in range(0, self.per_node, part))
        for number in range(self.nodes):
            rack = f"{name}-rack{number // self.per_rack}"
            yield NodeUp(f"{name}-n{number}", self.per_node, rack, masks)


@dataclass
class Fleet:
    """The clusters of a shape, and the way to them."""

    shape: Shape
    parameters: Parameters
    policies: list[Policy] = field(default_factory=list)
    routed: int = 0
    refused: str = ""
    """Why the last job that no cluster could ever run was refused."""

    def __post_init__(self) -> None:
        shape = self.shape
        parents = {f"region{r}": "" for r in range(shape.regions)}
        regions = [routing.Region(f"region{r}") for r in range(shape.regions)]
        self._region_of: list[routing.Region] = []
        self._number: dict[str, int] = {}
        for number in range(shape.clusters):
            region = regions[number * shape.regions // shape.clusters]
            name = f"{region.name}-cluster{number}"
            parents[name] = region.name
            self._number[name] = number
            self._region_of.append(region)
            self.policies.append(Policy(self.parameters, name))
        self.places = routing.Places(parents)
        self.planet = routing.Planet(self.places, regions)

    def replay(self, costs: Costs, record: Record) -> Replay:
        """A replay in which all nodes are up and every region knows its clusters."""
        run = Replay(list(self.policies), costs, record, route=self.route, relocate=self.relocate)
        for number, policy in enumerate(self.policies):
            run.nodes(number, self.shape.of_cluster(policy.state.name))
        self.ask_all(0.0)
        return run

    def ask_all(self, now: float) -> None:
        """Every cluster tells its region how it is."""
        for policy, region in zip(self.policies, self._region_of, strict=True):
            region.learn(policy.state.name, routing.summarise(policy.state), now)

    def _refresh(self, now: float) -> None:
        for region in self.planet.regions.values():
            for name in region.stale(now):
                state = self.policies[self._number[name]].state
                region.learn(name, routing.summarise(state), now)

    def route(self, job: Job, now: float) -> int:
        """The number of the cluster for a job; -1: none could ever run it, see `refused`."""
        self.routed += 1
        if self.shape.clusters == 1:
            fits = (job.min_devices or job.devices) <= self.shape.capacity
            if not fits:
                self.refused = f"the cluster has {self.shape.capacity} devices"
            return 0 if fits else -1
        self._refresh(now)
        claim = Claim(job.id, job.devices, tier=_RANK[job.tier], minimum=job.min_devices)
        try:
            _, cluster = self.planet.choose(claim, job.locations, now)
        except Conflict as error:
            self.refused = str(error)
            return -1
        return self._number[cluster]

    def relocate(self, now: float, locations: Locations) -> Iterator[tuple[Id, int]]:
        """Sessions that have waited for long while another cluster has devices free for them, and
        the number of that one; those that came first before others. Each is to be told to both
        clusters before the next one is asked for."""
        patience_s = self.parameters.relocate_after_s
        if not patience_s or self.shape.clusters == 1:
            return
        self._refresh(now)
        failed: dict[tuple[str, int, tuple[str, ...]], int] = {}
        for number, policy in enumerate(self.policies):
            if not policy.state.queue.waiting:
                continue
            own = self._region_of[number].name
            for claim in list(islice(policy.state.queue.waiting, LOOKED_AT)):
                since = claim.waiting_since
                if since is None or now - since < patience_s:
                    continue
                may = (own, claim.tier, locations(claim.id))
                if claim.minimum >= failed.get(may, ANY) or claim.stage is not Stage.WAITING:
                    continue
                found = self.planet.free(claim, may[2], own, now)
                if found is None:
                    failed[may] = claim.minimum
                elif (other := self._number[found[1]]) != number:
                    yield claim.id, other
