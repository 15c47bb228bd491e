"""`jupyter singularity groups`: the groups of runs, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singularity_scheduler.cli.framework.base import ServiceApp

from .group_views import groups_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class GroupsApp(ServiceApp):
    name = "jupyter-singularity-groups"
    description = """List the groups of runs that were submitted together, newest first: how many
    runs each has and how they are. With --json: an array of groups."""
    examples = "jupyter singularity groups"

    async def work(self, client: ServiceClient) -> None:
        found = await client.groups()
        self.show(found, lambda: groups_table(found))


main = GroupsApp.launch
