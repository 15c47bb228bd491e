"""`jupyter singularity checkpoint`: store a session's device state."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from .texts import label
from .verbs import WHICH, VerbApp
from .views import checkpoint_text

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class CheckpointApp(VerbApp):
    name = "jupyter-singularity-checkpoint"
    synopsis = "SESSION [NAME]"
    most: ClassVar[int | None] = 2
    description = f"""Store a session's device state, under NAME if one is given; execution goes
    on. {WHICH}"""
    examples = """
        jupyter singularity checkpoint train.ipynb before-fine-tuning
    """

    async def act(self, client: ServiceClient, session: str) -> dict[str, Any]:
        return await client.checkpoint(session, self.words[1] if len(self.words) > 1 else None)

    def done(self, session: dict[str, Any]) -> str:
        stored = checkpoint_text(session, datetime.now(timezone.utc))
        return f"{label(session)}: checkpoint stored: {stored or 'there is no device state yet'}"


main = CheckpointApp.launch
