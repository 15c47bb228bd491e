"""`jupyter singularity fork`: begin a second session where a checkpoint of another one is."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar

from traitlets import Unicode

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.sessions.verbs import WHICH

from .moving import CheckpointWordApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ForkApp(CheckpointWordApp):
    name = "jupyter-singularity-fork"
    synopsis = "SESSION [CHECKPOINT]"
    most: ClassVar[int | None] = 2
    description = f"""Begin a second session where a checkpoint of a session is (its id or name;
    without one its newest), with an id of its own; the first goes on and notices nothing. The
    server of a notebook opens a copy of it, with the name of the new session, beside the first one.
    The checkpoint may be of a session that has ended: then SESSION is its id. {WHICH}"""
    examples = """
        jupyter singularity fork train.ipynb "before fine tuning" --called train-b
    """
    offers_ended = True

    called = Unicode(config=True, help="Name of the new session. Empty: that of the first one.")
    aliases = {
        "called": "ForkApp.called",
        "name": "ForkApp.called",  # as `submit` has it
        **CheckpointWordApp.aliases,
    }
    asks_for_loss = True

    def call(self, client: ServiceClient, session: str) -> Awaitable[dict[str, Any]]:
        checkpoint = self.words[1] if len(self.words) > 1 else None
        return client.fork(session, checkpoint, self.called or None)

    def done(self, session: dict[str, Any]) -> str:
        return f"forked as {texts.label(session)}, which is {texts.outcome(session)}"

    def reached(self, session: dict[str, Any]) -> bool:
        return session.get("process_state") == "live" or bool(session.get("called_back"))


main = ForkApp.launch
