"""`jupyter singularity nodes`: the machines, their devices and who has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import ServiceApp

from .views import cannot_store, device_table, not_open, summary

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class NodesApp(ServiceApp):
    name = "jupyter-singularity-nodes"
    description = """Show the nodes, their devices and which session has each; "(taken)" is a
    session of somebody else. With --json: the cluster document, with nodes, devices, tiers and
    how many sessions wait."""
    examples = """
        jupyter singularity nodes
        jupyter singularity nodes --json | jq '.waiting'
    """

    async def work(self, client: ServiceClient) -> None:
        cluster = await client.cluster()
        self.show(cluster, lambda: device_table(cluster))
        if not self.json:
            output.note("\n".join([summary(cluster), *not_open(cluster), *cannot_store(cluster)]))


main = NodesApp.launch
