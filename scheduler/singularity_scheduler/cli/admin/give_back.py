"""`jupyter singularity return`: let sessions have a drained node or device again."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar

from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.look.views import device_sentence

from .drain import WHICH, is_device, place
from .views import node_sentence

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ReturnApp(ServiceApp):
    name = "jupyter-singularity-return"
    synopsis = "NODE|[NODE/]DEVICE"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = f"""Let sessions have a drained node or device again. What a device was drained
    for is acknowledged: the same fault does not drain it again, a new one does. {WHICH}"""
    examples = """
        jupyter singularity return gpu-07
        jupyter singularity return cuda:3
    """

    async def work(self, client: ServiceClient) -> None:
        if not is_device(self.words[0]):
            node_again = await client.undrain_node(self.words[0])
            now = datetime.now(timezone.utc)
            self.show(node_again, lambda: node_sentence(node_again, now))
            return
        node, device = await place(client, self.words[0])
        done = await client.return_device(node, device)
        self.show(done, lambda: device_sentence(done))


main = ReturnApp.launch
