"""`jupyter singularity cordon`: place nothing new on a node."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar

from traitlets import Unicode

from singularity_scheduler.cli.framework.base import ServiceApp

from .views import node_sentence

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class CordonApp(ServiceApp):
    name = "jupyter-singularity-cordon"
    synopsis = "NODE"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = """Place nothing new on a node; what is there goes on. `uncordon` undoes it,
    `drain` empties the node. For administrators. With --json: the node's document."""
    examples = """
        jupyter singularity cordon gpu-07 --reason "new disks on Monday"
    """
    reason = Unicode("", config=True, help="Why, for everybody to read.")
    aliases = {"reason": "CordonApp.reason", **ServiceApp.aliases}

    async def work(self, client: ServiceClient) -> None:
        done = await client.cordon(self.words[0], self.reason)
        self.show(done, lambda: node_sentence(done, datetime.now(timezone.utc)))


main = CordonApp.launch
