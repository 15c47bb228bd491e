"""`jupyter singularity upgrade`: empty nodes, a few at a time, so that each can be upgraded."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Bool, Integer, Unicode

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import ServiceApp

from .views import upgrade_sentence, upgrade_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

_STEPS = {
    "pause": "Drain no further node for now.",
    "go-on": "Go on after a pause or a stop.",
    "cancel": "Give the upgrade up and use the nodes that are out again.",
    "done": "Say that NODE, which is out, is upgraded.",
}


class UpgradeApp(ServiceApp):
    name = "jupyter-singularity-upgrade"
    synopsis = "[NODE...]"
    most: ClassVar[int | None] = None
    description = """Show the upgrade of nodes; with --begin start one of these nodes (none: of
    all): some at a time are drained, are out until their agent comes back with another version or
    somebody says --done, and are used again. It stops, with the reason, when the sessions of a node
    would have no room elsewhere. For administrators. With --json: the upgrade's document."""
    examples = """
        jupyter singularity upgrade --begin --at-once 2 --reason "driver 580"
        jupyter singularity upgrade
        jupyter singularity upgrade --done gpu-07
        jupyter singularity upgrade --pause
    """
    begin = Bool(False, config=True, help="Begin one, of the nodes given or of all.")
    step = Unicode("", config=True, help=f"One of {', '.join(_STEPS)}.")
    at_once = Integer(1, config=True, help="How many nodes may be out at the same time.")
    wait = Bool(
        False,
        config=True,
        help="Let sessions that have no room elsewhere wait in the store instead of stopping.",
    )
    reason = Unicode("", config=True, help="Why, for everybody to read.")
    aliases = {
        "at-once": "UpgradeApp.at_once",
        "reason": "UpgradeApp.reason",
        **ServiceApp.aliases,
    }
    flags = {
        "begin": ({"UpgradeApp": {"begin": True}}, "Begin an upgrade."),
        "wait": ({"UpgradeApp": {"wait": True}}, "Sessions without room wait in the store."),
        **{name: ({"UpgradeApp": {"step": name}}, text) for name, text in _STEPS.items()},
        **ServiceApp.flags,
    }

    async def work(self, client: ServiceClient) -> None:
        words, step = self.words, self.step
        if step and step not in _STEPS:
            raise BadRequest(f"there is no step '{step}' of an upgrade: {', '.join(_STEPS)}")
        if bool(words) != (step == "done") and not self.begin:
            raise BadRequest("nodes are named with --begin, and one with --done")
        if self.begin:
            found = await client.begin_upgrade(words, self.at_once, self.reason, self.wait)
        elif step == "done":
            for node in words:
                found = await client.upgraded(node)
        elif step == "cancel":
            found = await client.cancel_upgrade()
        elif step:
            state = "paused" if step == "pause" else "running"
            found = await client.change_upgrade(state, True if self.wait else None)
        else:
            found = await client.upgrade()
        self.show(found, lambda: upgrade_table(found))
        if not self.json and found.get("nodes"):
            output.note(upgrade_sentence(found))


main = UpgradeApp.launch
