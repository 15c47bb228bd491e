"""The operations on clusters and regions, by the sums that new sessions are routed by."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.placement.geography import Cluster
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.vocabulary import (
    COUNT,
    TEXT,
    Schema,
    listed,
    nullable,
    record,
)

from .table import Reply, operation

Json = dict[str, Any]

_SUMS: dict[str, Schema] = {
    "nodes": COUNT,
    "connected": {**COUNT, "description": "Nodes that answer."},
    "devices": {**COUNT, "description": "Devices of the nodes that answer."},
    "free": {
        **COUNT,
        "description": "Devices that nobody has and that sessions may be placed on.",
    },
    "largest": {**COUNT, "description": "The most devices that one session can have."},
    "sessions": {
        **COUNT,
        "description": "Those that have not ended; suspended ones count where they were.",
    },
    "waiting": {
        **record({tier.value: COUNT for tier in Tier}),
        "description": "Devices that those who wait ask for.",
    },
}

schemas.COMPONENTS |= {
    "Clusters": record(
        {
            "home": {
                **TEXT,
                "description": "The cluster of the nodes whose agents name none.",
            },
            "locations": {
                **listed(TEXT),
                "description": "What sessions may name: clusters, regions, and what those lie in.",
            },
            "regions": listed(
                record(
                    {
                        "name": TEXT,
                        "within": {
                            **nullable(TEXT),
                            "description": "The wider place that it lies in.",
                        },
                        "clusters": listed(TEXT),
                        **_SUMS,
                    }
                )
            ),
            "clusters": listed(record({"name": TEXT, "region": TEXT, **_SUMS})),
        }
    )
}


@operation(
    "GET",
    "clusters",
    "The clusters and their regions, by the sums that new sessions are routed by.",
    answer="Clusters",
)
async def list_clusters(call: Endpoint) -> Reply:
    return Reply(clusters_document(call.controller.state))


def clusters_document(state: ClusterState) -> Json:
    """All clusters and regions, by name."""
    geography = state.geography
    clusters = [geography.clusters[name] for name in sorted(geography.clusters)]
    regions: dict[str, list[Cluster]] = {}
    for cluster in clusters:
        regions.setdefault(geography.region(cluster.name), []).append(cluster)
    return {
        "home": geography.home,
        "locations": sorted(geography.places.parents),
        "regions": [
            {
                "name": name,
                "within": geography.places.parents.get(name) or None,
                "clusters": [cluster.name for cluster in inside],
                **_sums(inside),
            }
            for name, inside in sorted(regions.items())
        ],
        "clusters": [
            {"name": c.name, "region": geography.region(c.name), **_sums([c])} for c in clusters
        ],
    }


def _sums(clusters: list[Cluster]) -> Json:
    connected, devices, _, free, *_ = map(sum, zip(*(c.total for c in clusters), strict=True))
    return {
        "nodes": sum(len(c.nodes) for c in clusters),
        "connected": connected,
        "devices": devices,
        "free": free,
        "largest": max(c.largest for c in clusters),
        "sessions": sum(c.sessions for c in clusters),
        "waiting": {tier.value: sum(c.waiting[tier.rank] for c in clusters) for tier in Tier},
    }
