"""`jupyter singularity suspend`: put a whole session into the store and free its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .verbs import WHICH, VerbApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class SuspendApp(VerbApp):
    name = "jupyter-singularity-suspend"
    description = f"""Put a session with its processes into the store and free its node. The
    service says when it cannot do that; `park` and `preempt` free the devices. {WHICH}"""
    examples = """
        jupyter singularity suspend 3f9c
    """

    async def act(self, client: ServiceClient, session: str) -> dict[str, Any]:
        return await client.suspend(session)


main = SuspendApp.launch
