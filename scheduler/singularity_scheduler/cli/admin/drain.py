"""`jupyter singularity drain`: empty a node, or give a device to no session any more."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Bool, Float, Unicode

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.look.views import device_sentence
from singularity_scheduler.client.words import plural

from .views import node_sentence

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

WHICH = """NODE and DEVICE are as in `jupyter singularity nodes`; with several nodes a device is
    NODE/DEVICE. For administrators. With --json: the document of the node or device."""

_DEVICE = re.compile(r"(.+/)?[a-z]{1,16}:[0-9]{1,4}")


POLL_S = 0.5
"""Pause between two looks at a node that is waited for."""


class DrainApp(ServiceApp):
    name = "jupyter-singularity-drain"
    synopsis = "NODE|[NODE/]DEVICE"
    fewest = 1
    most: ClassVar[int | None] = 1
    description = f"""Drain a node: nothing is placed there any more, and its sessions go on
    elsewhere, or wait in the store until there is room; what cannot be stored is parked and stays.
    Drain a device: no session gets it any more, and those on it come back on another one. Nothing
    is lost. `return` undoes it. {WHICH}"""
    examples = """
        jupyter singularity drain gpu-07 --reason "new kernel" --wait
        jupyter singularity drain gpu-07 --deadline 600 --force
        jupyter singularity drain spot-3 --notice 30
        jupyter singularity drain gpu-07/cuda:3 --reason "new fan on Monday"
    """
    reason = Unicode("", config=True, help="Why, for everybody to read.")
    deadline = Float(
        None,
        allow_none=True,
        config=True,
        help="Seconds in which a node is to be empty. None: whenever it is.",
    )
    notice = Float(
        None,
        allow_none=True,
        config=True,
        help="Seconds after which the machine goes away (a spot machine). None: it stays.",
    )
    force = Bool(
        False,
        config=True,
        help="""End what can neither move nor be stored, at the deadline if there is one; its
        history says so.""",
    )
    store = Bool(
        False,
        config=True,
        help="""Drain a node although no other one could take some of its sessions: they wait in the
        store until it is back.""",
    )
    wait = Bool(False, config=True, help="Wait until the node is empty, and say what is left.")
    aliases = {
        "reason": "DrainApp.reason",
        "deadline": "DrainApp.deadline",
        "notice": "DrainApp.notice",
        **ServiceApp.aliases,
    }
    flags = {
        "force": ({"DrainApp": {"force": True}}, "End what cannot be stored."),
        "store": ({"DrainApp": {"store": True}}, "Sessions may wait in the store."),
        "wait": ({"DrainApp": {"wait": True}}, "Wait until the node is empty."),
        **ServiceApp.flags,
    }

    async def work(self, client: ServiceClient) -> None:
        if not is_device(self.words[0]):
            await self._drain_node(client, self.words[0])
            return
        flags = self.wait or self.force or self.store
        if flags or self.deadline is not None or self.notice is not None:
            raise BadRequest("--wait, --force, --store, --deadline and --notice are for nodes")
        node, device = await place(client, self.words[0])
        done = await client.drain(node, device, self.reason)
        self.show(done, lambda: device_sentence(done))

    async def _drain_node(self, client: ServiceClient, node: str) -> None:
        if self.notice is not None:
            if self.force or self.store or self.deadline is not None:
                raise BadRequest(
                    "--notice says when the machine goes: no --deadline, --force or --store"
                )
            done = await client.notice(node, self.notice, self.reason)
        else:
            done = await client.drain_node(node, self.reason, self.deadline, self.force, self.store)
        told = -1
        while self.wait and done["duty"] == "draining":
            if len(done["sessions"]) != told:
                told = len(done["sessions"])
                output.note(f"{plural(told, 'session')} left on {node}")
            await asyncio.sleep(POLL_S)
            done = next(n for n in await client.nodes() if n["id"] == node)
        self.show(done, lambda: node_sentence(done, datetime.now(timezone.utc)))


def is_device(word: str) -> bool:
    """Whether a word names a device and not a node."""
    return _DEVICE.fullmatch(word) is not None


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
