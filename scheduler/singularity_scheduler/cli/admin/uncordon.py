"""`jupyter singularity uncordon`: place sessions on a cordoned node again."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar

from singularity_scheduler.cli.framework.base import ServiceApp

from .views import node_sentence

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class UncordonApp(ServiceApp):
    name = "jupyter-singularity-uncordon"
    synopsis = "NODE"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = """Place sessions on a cordoned node again. For administrators. With --json: the
    node's document."""
    examples = """
        jupyter singularity uncordon gpu-07
    """

    async def work(self, client: ServiceClient) -> None:
        done = await client.uncordon(self.words[0])
        self.show(done, lambda: node_sentence(done, datetime.now(timezone.utc)))


main = UncordonApp.launch
