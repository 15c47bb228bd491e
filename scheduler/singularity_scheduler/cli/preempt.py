"""`jupyter singularity preempt`: take a session's devices and hold it back until it is resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .verbs import WHICH, VerbApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class PreemptApp(VerbApp):
    name = "jupyter-singularity-preempt"
    description = f"""Take a session's devices and hold it back: nothing is lost, running code
    waits, a queued run does not start, until `resume` or `migrate`. {WHICH}"""
    examples = """
        jupyter singularity preempt 3f9c
        jupyter singularity resume 3f9c
    """

    async def act(self, client: ServiceClient, session: str) -> dict[str, Any]:
        return await client.preempt(session)


main = PreemptApp.launch
