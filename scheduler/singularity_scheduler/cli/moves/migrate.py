"""`jupyter singularity migrate`: let a session go on with another device, node or cluster."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest
from traitlets import Unicode

from singularity_scheduler.cli.sessions.verbs import WHICH

from .moving import MovingApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class MigrateApp(MovingApp):
    name = "jupyter-singularity-migrate"
    description = f"""Let a session go on with another device, or with --node on another node or
    with --cluster in another cluster: then all of it travels through the store. Running code waits
    meanwhile and loses nothing.
    {WHICH}"""
    examples = """
        jupyter singularity migrate train.ipynb --device cpu:1
        jupyter singularity migrate 3f9c --device cpu:2,cpu:3
        jupyter singularity migrate 3f9c --node node-2
        jupyter singularity migrate 3f9c --cluster west-1
    """

    device = Unicode(
        config=True,
        help="""Where to: a device's number or name ("cpu:1", see `nodes`), with several virtual
        devices one name for each, separated by commas. Empty: any other device.""",
    )
    node = Unicode(
        config=True,
        help="Name of the node to go to, see `nodes`; not together with --device.",
    )
    cluster = Unicode(
        config=True,
        help="""Name of the cluster to go to, see `clusters`: to the best node there; not together
        with --device or --node.""",
    )
    aliases = {
        "device": "MigrateApp.device",
        "node": "MigrateApp.node",
        "cluster": "MigrateApp.cluster",
        **MovingApp.aliases,
    }

    def call(self, client: ServiceClient, session: str) -> Awaitable[dict[str, Any]]:
        given = [n for n in ("device", "node", "cluster") if getattr(self, n)]
        if len(given) > 1:
            words = " and ".join(f"--{name}" for name in given)
            raise BadRequest(f"{words} cannot be given together; nothing was moved")
        if self.node or self.cluster:
            self.asks_for_loss = True
            return client.migrate(session, **{given[0]: getattr(self, given[0])})
        return client.migrate(session, target(self.device))

    def reached(self, session: dict[str, Any]) -> bool:
        if not (self.node or self.cluster) or session.get("called_back"):
            return True
        there = session.get("node") == self.node or session.get("cluster") == self.cluster
        return there and session.get("process_state") == "live"


def target(text: str) -> str | int | list[str] | None:
    """--device as the API wants it."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if len(names) > 1:
        return names
    if not names:
        return None
    return int(names[0]) if names[0].isdecimal() else names[0]


main = MigrateApp.launch
