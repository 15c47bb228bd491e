"""Which cluster a session goes to, by the sums of `geography` alone; nodes are looked at only
inside the one that was chosen (`choice`). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from singularity_scheduler.core.allocation.claims import Claim
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons.reason import Reason
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import SessionSpec

from . import routing

_NOT_THERE: routing.Score = (9, 0.0)


def cluster_for(state: ClusterState, session: str, spec: SessionSpec, now: float) -> str | None:
    """The cluster of a new session: first the region, then the cluster in it. None: no cluster that
    it may be in has a node that could ever take it. `BadRequest` for locations that there are not.
    """
    geography = state.geography
    geography.check(spec.locations)
    # All devices of a session are on one node.
    able = [
        cluster
        for cluster in geography.clusters.values()
        if cluster.largest >= spec.needs and geography.allows(spec.locations, cluster.name)
    ]
    if len(able) < 2:
        return able[0].name if able else None
    regions: dict[str, routing.Region] = {}
    for cluster in able:
        name = geography.region(cluster.name)
        region = regions.setdefault(name, routing.Region(name))
        region.learn(cluster.name, cluster.summary(), now)
    planet = routing.Planet(geography.places, regions.values())
    claim = Claim(session, spec.needs, tier=spec.tier.rank)
    return planet.choose(claim, spec.locations, now)[1]


def nodes_of(state: ClusterState, clusters: Iterable[str]) -> list[str]:
    """The nodes of these clusters."""
    known = state.geography.clusters
    return [node for name in clusters if name in known for node in known[name].nodes]


def allowed(state: ClusterState, locations: tuple[str, ...]) -> list[str]:
    """The clusters that these locations allow."""
    geography = state.geography
    return [name for name in geography.clusters if geography.allows(locations, name)]


def order(state: ClusterState, view: SessionView) -> list[str]:
    """Where a session that needs another node may go: its own cluster first, then those of its
    region, then the others, and among these where it would be off best."""
    geography = state.geography
    own = view.cluster or geography.home
    region = geography.region(own)

    def key(name: str) -> tuple[bool, bool, routing.Score, str]:
        told = geography.clusters[name].summary()
        rank = view.tier.rank
        score = routing.score(told, view.needs, rank) if told.capacity else None
        return name != own, geography.region(name) != region, score or _NOT_THERE, name

    return sorted(allowed(state, view.locations), key=key)


def forbidden(draft: Draft, view: SessionView, node_id: str) -> Reason | None:
    """Why its locations keep the session from this node; None: they do not."""
    if not view.locations:
        return None
    cluster, geography = draft.node(node_id).abilities.cluster, draft.state.geography
    if geography.allows(view.locations, cluster):
        return None
    region = geography.region(cluster)
    return obstacles.not_allowed_there(node_id, cluster, region, view.locations)
