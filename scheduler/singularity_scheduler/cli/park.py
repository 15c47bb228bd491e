"""`jupyter singularity park`: free a session's devices, keep its process and state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .verbs import WHICH, VerbApp

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ParkApp(VerbApp):
    name = "jupyter-singularity-park"
    description = f"""Free a session's devices: variables and tensors stay, and its next device
    call takes devices again. {WHICH}"""
    examples = """
        jupyter singularity park train.ipynb
    """

    async def act(self, client: ServiceClient, session: str) -> dict[str, Any]:
        return await client.park(session)


main = ParkApp.launch
