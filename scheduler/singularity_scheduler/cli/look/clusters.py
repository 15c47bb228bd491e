"""`jupyter singularity clusters`: the clusters, their regions, and how full they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singularity_scheduler.cli.framework import output, texts
from singularity_scheduler.cli.framework.base import ServiceApp

from .views import cluster_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ClustersApp(ServiceApp):
    name = "jupyter-singularity-clusters"
    description = """Show the clusters and in which region each lies: nodes, devices, sessions and
    who waits. Sessions are routed by these sums. With --json: one object with clusters, regions
    and the locations that sessions may name."""
    examples = """
        jupyter singularity clusters
        jupyter singularity clusters --json | jq -r '.locations[]'
    """

    async def work(self, client: ServiceClient) -> None:
        found = await client.clusters()
        self.show(found, lambda: cluster_table(found))
        if not self.json:
            places = ", ".join(map(texts.clean, found.get("locations") or ()))
            output.note(f"sessions may name as locations: {places}")


main = ClustersApp.launch
