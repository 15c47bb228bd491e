"""`jupyter singularity return`: let sessions have a drained device again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .base import ServiceApp
from .drain import WHICH, place
from .views import device_sentence

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ReturnApp(ServiceApp):
    name = "jupyter-singularity-return"
    synopsis = "[NODE/]DEVICE"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = f"""Let sessions have a drained device again. What it was drained for is
    acknowledged: the same fault does not drain it again, a new one does. {WHICH}"""
    examples = """
        jupyter singularity return cuda:3
    """

    async def work(self, client: ServiceClient) -> None:
        node, device = await place(client, self.words[0])
        done = await client.return_device(node, device)
        self.show(done, lambda: device_sentence(done))


main = ReturnApp.launch
