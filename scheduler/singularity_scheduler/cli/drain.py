"""`jupyter singularity drain`: give a device to no session any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Unicode

from .base import ServiceApp
from .views import device_sentence

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

WHICH = """DEVICE is one of `jupyter singularity nodes`; with several nodes it is NODE/DEVICE.
    For administrators. With --json: the device's document."""


class DrainApp(ServiceApp):
    name = "jupyter-singularity-drain"
    synopsis = "[NODE/]DEVICE"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = f"""Drain a device: no session gets it any more, and those on it leave; nothing is
    lost, they come back on another device. `return` undoes it. {WHICH}"""
    examples = """
        jupyter singularity drain cuda:3 --reason "new fan on Monday"
        jupyter singularity drain gpu-07/cuda:3
    """
    reason = Unicode("", config=True, help="Why, for everybody to read.")
    aliases = {"reason": "DrainApp.reason", **ServiceApp.aliases}

    async def work(self, client: ServiceClient) -> None:
        node, device = await place(client, self.words[0])
        done = await client.drain(node, device, self.reason)
        self.show(done, lambda: device_sentence(done))


async def place(client: ServiceClient, word: str) -> tuple[str, str]:
    """Node and device of ``NODE/DEVICE`` or, when only one node has it, ``DEVICE``."""
    node, slash, device = word.rpartition("/")
    if slash:
        return node, device
    found = [d for d in (await client.cluster())["devices"] if d["id"] == device]
    if len(found) != 1:
        where = ", ".join(f"{d['node']}/{d['id']}" for d in found)
        raise BadRequest(
            f"several nodes have a device {device}; say which: {where}"
            if found
            else f"there is no device {device}; jupyter singularity nodes shows them"
        )
    return str(found[0]["node"]), device


main = DrainApp.launch
