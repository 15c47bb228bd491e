"""`jupyter singularity resume`: let a session take devices now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .verbs import WHICH, VerbApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ResumeApp(VerbApp):
    name = "jupyter-singularity-resume"
    description = f"""Ask for a session's devices now instead of at its next device call, and
    hold it back no longer if it was preempted; it waits in the queue like every other. {WHICH}"""
    examples = """
        jupyter singularity resume 3f9c
    """

    async def act(self, client: ServiceClient, session: str) -> dict[str, Any]:
        return await client.resume(session)


main = ResumeApp.launch
