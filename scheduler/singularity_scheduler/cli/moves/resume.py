"""`jupyter singularity resume`: bring a suspended session back; let one take devices now."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from traitlets import Unicode

from singularity_scheduler.cli.sessions.verbs import WHICH

from .moving import MovingApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ResumeApp(MovingApp):
    name = "jupyter-singularity-resume"
    description = f"""Bring a suspended session back: from its newest checkpoint and where it was,
    else where there is room, or as the options say; it waits in the queue like every other. Of one
    that is not suspended: ask for its devices now instead of at its next device call, and hold it
    back no longer if it was preempted. {WHICH}"""
    examples = """
        jupyter singularity resume 3f9c
        jupyter singularity resume train.ipynb --from "before fine tuning" --on node-2
    """

    checkpoint = Unicode(
        config=True,
        help="""Id or name of the checkpoint to come back from, see `checkpoints`. What the session
        did after it is undone. Empty: the newest, which undoes nothing.""",
    )
    node = Unicode(
        config=True,
        help="Name of the node to come back to, see `nodes`. Empty: any.",
    )
    aliases = {
        "from": "ResumeApp.checkpoint",
        "on": "ResumeApp.node",
        **MovingApp.aliases,
    }
    asks_for_loss = True

    def call(self, client: ServiceClient, session: str) -> Awaitable[dict[str, Any]]:
        asked = {"checkpoint": self.checkpoint, "node": self.node}
        return client.resume(session, **{k: v for k, v in asked.items() if v})

    async def until_done(
        self, client: ServiceClient, session: str, watched: bool
    ) -> dict[str, Any]:
        if not (self.checkpoint or self.node):
            before = await client.get_session(session)
            self.asks_for_loss = before.get("process_state") == "suspended"
        return await super().until_done(client, session, watched)

    def reached(self, session: dict[str, Any]) -> bool:
        away = session.get("process_state") == "suspended"
        return not away or bool(session.get("called_back"))


main = ResumeApp.launch
