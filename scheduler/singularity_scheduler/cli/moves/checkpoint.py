"""`jupyter singularity checkpoint`: store a session as it is now."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Enum

from singularity_scheduler.cli.framework.texts import label
from singularity_scheduler.cli.look.views import checkpoint_text
from singularity_scheduler.cli.sessions.verbs import WHICH

from .moving import MovingApp

LEVELS = ("best", "device", "process")


class CheckpointApp(MovingApp):
    name = "jupyter-singularity-checkpoint"
    synopsis = "SESSION [NAME]"
    most: ClassVar[int | None] = 2
    description = f"""Store a session as it is now, under NAME if one is given; execution goes on.
    Its processes, device state and files where its node can do that, else its device state alone;
    the answer says which. `restore` goes back to it. {WHICH}"""
    examples = """
        jupyter singularity checkpoint train.ipynb before-fine-tuning
    """

    level = Enum(
        LEVELS,
        "best",
        config=True,
        help="""What to store: "device" (device state alone), "process" (everything; refused where
        its node cannot do that), or "best": the most that its node can do.""",
    )
    aliases = {"level": "CheckpointApp.level", **MovingApp.aliases}

    def details(self) -> tuple[str | None, ...]:
        name = self.words[1] if len(self.words) > 1 else None
        if name is not None and not name.strip():
            raise BadRequest("the checkpoint's name is empty: leave it out, or give one")
        return (name,) if self.level == "best" else (name, self.level)

    def done(self, session: dict[str, Any]) -> str:
        stored = checkpoint_text(session, datetime.now(timezone.utc))
        return f"{label(session)}: checkpoint stored: {stored or 'there is no device state yet'}"


main = CheckpointApp.launch
