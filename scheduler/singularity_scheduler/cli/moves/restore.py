"""`jupyter singularity restore`: go back to an older checkpoint of a session."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar

from traitlets import Bool

from singularity_scheduler.cli.sessions.verbs import WHICH

from .moving import CheckpointWordApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class RestoreApp(CheckpointWordApp):
    name = "jupyter-singularity-restore"
    synopsis = "SESSION CHECKPOINT"
    fewest = 2
    most: ClassVar[int | None] = 2
    description = f"""Undo: let a session go back to a checkpoint of its own, given by its id or its
    name. Its present state is stored first, so that this can be undone too. A checkpoint of device
    state alone puts the contents of tensors back; Python variables stay as they are. {WHICH}"""
    examples = """
        jupyter singularity restore train.ipynb "before fine tuning"
    """

    discard = Bool(
        False,
        config=True,
        help="Give the present state up instead of storing it first.",
    )
    flags = {
        "discard": (
            {"RestoreApp": {"discard": True}},
            "Give the present state up instead of storing it first.",
        ),
        **CheckpointWordApp.flags,
    }
    asks_for_loss = True

    def call(self, client: ServiceClient, session: str) -> Awaitable[dict[str, Any]]:
        return client.restore(session, self.words[1], self.discard)

    def reached(self, session: dict[str, Any]) -> bool:
        loss = session.get("loss") or {}
        older = bool(loss.get("rolled_back")) or loss.get("level") == "device"
        back = session.get("process_state") == "live" and older
        return back or bool(session.get("called_back"))


main = RestoreApp.launch
