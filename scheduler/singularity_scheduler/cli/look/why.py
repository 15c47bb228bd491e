"""`jupyter singularity why`: why a session is in its state, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.sessions.choosing import SessionApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class WhyApp(SessionApp):
    name = "jupyter-singularity-why"
    description = """Say why a session is in its state and what it waits for. SESSION is an id,
    the beginning of one, or the name of an active session. With --json: {"sentence", "facts"}."""
    examples = """
        jupyter singularity why 3f9c
    """
    offers_ended = True

    async def work(self, client: ServiceClient) -> None:
        answer = await client.why(await self.session(client))
        self.show(answer, lambda: texts.clean(answer["sentence"]))


main = WhyApp.launch
