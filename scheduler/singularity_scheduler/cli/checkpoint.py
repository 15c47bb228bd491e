"""`jupyter singularity checkpoint`: store a session's device state."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, ClassVar

from .texts import label
from .verbs import WHICH, VerbApp
from .views import checkpoint_text


class CheckpointApp(VerbApp):
    name = "jupyter-singularity-checkpoint"
    synopsis = "SESSION [NAME]"
    most: ClassVar[int | None] = 2
    description = f"""Store a session's device state, under NAME if one is given; execution goes
    on. {WHICH}"""
    examples = """
        jupyter singularity checkpoint train.ipynb before-fine-tuning
    """

    def details(self) -> tuple[str | None]:
        return (self.words[1] if len(self.words) > 1 else None,)

    def done(self, session: dict[str, Any]) -> str:
        stored = checkpoint_text(session, datetime.now(timezone.utc))
        return f"{label(session)}: checkpoint stored: {stored or 'there is no device state yet'}"


main = CheckpointApp.launch
