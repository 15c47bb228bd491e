"""Which clusters there are, where they lie, and the sums that the levels above know of them. Pure.

A node belongs to the cluster that its agent names, a cluster to the region that the service is
configured with; one without a region is a region of its own name. `ClusterState` holds one
`Geography` and keeps its sums as it takes over decisions, so that nothing above a cluster looks at
its nodes. Each update costs what the touched nodes have of devices.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from singularity_proxy.errors import BadRequest, NotFound

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import choices, refuse
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from .routing import Places, Summary

if TYPE_CHECKING:
    from singularity_scheduler.core.state.cluster import ClusterState, Load, Node
    from singularity_scheduler.core.state.decision import Decision

HOME = "local"
"""Name of the embedded cluster, unless the service is configured with another one."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What clusters and regions may be called."""

_RANKS = len(Tier)

Figures = tuple[int, ...]
"""Of one node: nodes that answer (0 or 1), its devices, those of them that sessions are placed on,
the free ones among these, and those that each rank of tier holds."""


@dataclass
class Cluster:
    """The sums of one cluster."""

    name: str
    nodes: dict[str, Figures] = field(default_factory=dict)
    """Those that have said that they belong to it, also when they do not answer now."""
    total: list[int] = field(default_factory=lambda: [0] * (4 + _RANKS))
    """The sum of `nodes`."""
    sizes: dict[int, int] = field(default_factory=dict)
    """devices that sessions are placed on -> nodes with so many"""
    free: dict[int, dict[str, None]] = field(default_factory=dict)
    """free devices -> the nodes with so many that sessions are placed on"""
    loads: dict[int, list[Load]] = field(default_factory=dict)
    """devices that are not drained -> the nodes with so many that sessions are placed on, sorted"""
    load_of: dict[str, tuple[int, Load]] = field(default_factory=dict)
    """node -> where it is in `loads`"""
    sessions: int = 0
    """Those that have not ended; suspended ones are in the cluster that they come back to first."""
    waiting_milli: list[int] = field(default_factory=lambda: [0] * _RANKS)
    """rank of a tier -> thousandths of devices that those who wait ask for"""
    promised_milli: int = 0
    """The same of those that are here and may ask for them at any moment."""

    @property
    def largest(self) -> int:
        """The most devices that a session can have on one node."""
        return max(self.sizes, default=0)

    @property
    def waiting(self) -> tuple[int, int, int]:
        """rank of a tier -> devices that those who wait ask for"""
        basic, standard, premium = map(_devices, self.waiting_milli)
        return basic, standard, premium

    @property
    def room(self) -> int:
        """The most free devices of a node."""
        return max(self.free, default=0)

    def summary(self) -> Summary:
        """What is told to the levels above."""
        _, _, capacity, free, *held = self.total
        left = free - _devices(self.promised_milli)
        return Summary(
            capacity=capacity,
            largest=self.largest,
            free=left,
            room=self.room,
            within=(left, left + held[0], left + held[0] + held[1]),
            waiting=self.waiting,
        )

    def put(self, node: str, figures: Figures | None) -> None:
        """A node is like this now; None: it is of another cluster."""
        for one, sign in ((self.nodes.pop(node, None), -1), (figures, 1)):
            if one is None:
                continue
            self.total = [a + sign * b for a, b in zip(self.total, one, strict=True)]
            self.sizes[one[2]] = self.sizes.get(one[2], 0) + sign
            if not self.sizes[one[2]]:
                del self.sizes[one[2]]
            self._put_free(node, one[3], sign > 0)
        if figures is not None:
            self.nodes[node] = figures

    def _put_free(self, node: str, number: int, there: bool) -> None:
        bucket = self.free.setdefault(number, {})
        if there:
            bucket[node] = None
        else:
            del bucket[node]
        if not bucket:
            del self.free[number]

    def put_load(self, node: str, where: tuple[int, Load] | None) -> None:
        """So loaded is a node now; None: no session is placed on it."""
        before = self.load_of.pop(node, None)
        if before is not None:
            row = self.loads[before[0]]
            del row[bisect_left(row, before[1])]
            if not row:
                del self.loads[before[0]]
        if where is not None:
            self.load_of[node] = where
            insort(self.loads.setdefault(where[0], []), where[1])

    def least_loaded(self, devices: int) -> str | None:
        """The node for a new session, as `placement.choose_node` finds it by looking at all; None:
        none has so many devices that are not drained."""
        firsts = (row[0] for usable, row in self.loads.items() if usable >= devices)
        best = min(firsts, default=None)
        return best[1] if best else None

    def with_free(self, devices: int) -> Iterator[str]:
        """Nodes with so many free devices, those with the fewest more first."""
        for number in sorted(number for number in self.free if number >= devices):
            yield from self.free[number]


class Geography:
    """All clusters; part of `ClusterState`."""

    def __init__(self, home: str = HOME, regions: Mapping[str, str] | None = None) -> None:
        """`home`: the cluster of nodes whose agents name none. `regions`: cluster -> region, or
        region -> the wider place that it lies in. Raises `BadRequest` for names that cannot be, and
        for places that lie in themselves."""
        parents: dict[str, str] = {}
        for name, place in (regions or {}).items():
            for word in (name, place):
                require_name(word)
            parents[name] = "" if place == name else place
        for place in list(parents.values()):
            if place:
                parents.setdefault(place, "")
        parents.setdefault(require_name(home), "")
        self.home = home
        self.places = Places(parents)
        self.clusters: dict[str, Cluster] = {}
        inner = set(parents.values())
        for name in parents:
            if name not in inner:
                self._meet(name)
        self._meet(home)
        self.of_node: dict[str, str] = {}
        """node -> its cluster, of those that have told since the service began."""

    @property
    def room(self) -> int:
        """The most free devices that a node of any cluster has."""
        return max(cluster.room for cluster in self.clusters.values())

    def region(self, cluster: str) -> str:
        """Where a cluster lies."""
        return self.places.parents.get(cluster) or cluster

    def named(self, word: str) -> str:
        """The cluster that somebody named; `NotFound` with those that there are."""
        if word not in self.clusters:
            raise refuse(
                NotFound,
                because("no_such_cluster", **choices(word, sorted(self.clusters))),
                cluster=word,
            )
        return word

    def check(self, locations: Iterable[str]) -> None:
        """`BadRequest` for a location that there is not."""
        for name in locations:
            if name not in self.places.parents:
                there = sorted(self.places.parents)
                raise refuse(
                    BadRequest,
                    because("no_such_place", word=name, there=tuple(there)),
                    location=name,
                    locations=there,
                )

    def allows(self, locations: tuple[str, ...], cluster: str) -> bool:
        """Whether a session with these locations may be there; (): anywhere. One that names no
        place that there is may be nowhere."""
        return not locations or (
            cluster in self.places.parents and self.places.allows(locations, cluster)
        )

    # -- sums -------------------------------------------------------------------------------

    def before(self, state: ClusterState, decision: Decision) -> set[str]:
        """`state` is about to take a decision over; the nodes to `look` at afterwards."""
        touched = {mark.node for mark in decision.marks}
        touched |= {mark.node for mark in decision.node_marks}
        if decision.node is not None:
            touched.add(decision.node)
        for view in decision.sessions:
            touched.add(view.node)
            if old := state.sessions.get(view.id):
                touched.add(old.node)
                self.count(old, -1)
            if not view.ended:
                self.count(view, 1)
        return touched

    def count(self, view: SessionView, sign: int = 1) -> None:
        """A session is there, or (-1) is no longer."""
        cluster = self._meet(view.cluster or self.home)
        cluster.sessions += sign
        if view.held_back or view.final:
            return
        if view.pending or view.device_state is DeviceState.WAITING:
            cluster.waiting_milli[view.tier.rank] += sign * view.wanted_milli
        elif view.process_state is not ProcessState.SUSPENDED and not view.leased:
            cluster.promised_milli += sign * view.wanted_milli

    def look(self, state: ClusterState, node: Node) -> None:
        """A node may have changed."""
        name = node.abilities.cluster
        before = self.of_node.get(node.id)
        if before and before != name:
            self.clusters[before].put(node.id, None)
            self.clusters[before].put_load(node.id, None)
            del self.of_node[node.id]
        if name:
            self.of_node[node.id] = name
            cluster = self._meet(name)
            cluster.put(node.id, figures(state, node))
            takes = node.connected and node.duty.duty is NodeDuty.OPEN
            cluster.put_load(node.id, (len(node.usable), node.load) if takes else None)

    def _meet(self, name: str) -> Cluster:
        if name not in self.clusters:
            self.clusters[name] = Cluster(name)
            if name not in self.places.parents:
                self.places = Places({**self.places.parents, name: ""})
        return self.clusters[name]


def figures(state: ClusterState, node: Node) -> Figures:
    """What a node adds to its cluster."""
    if not node.connected:
        return (0,) * (4 + _RANKS)
    open_ = node.duty.duty is NodeDuty.OPEN
    usable = node.usable
    held = [0] * _RANKS
    for device in usable:
        if (session := node.leases.get(device)) and open_:
            held[state.sessions[session].tier.rank] += 1
    size = len(node.devices)
    return (1, size, size * open_, (len(usable) - sum(held)) * open_, *held)


def _devices(milli: int) -> int:
    """So many devices are needed for it."""
    return -(-milli // 1000)


def require_name(word: object) -> str:
    """`word`, or `BadRequest` when no cluster or region can be called so."""
    if not isinstance(word, str) or not NAME.fullmatch(word):
        raise refuse(BadRequest, because("not_a_place_name", word=repr(word)))
    return word
