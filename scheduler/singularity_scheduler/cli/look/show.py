"""`jupyter singularity show`: everything about one session."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from singularity_scheduler.cli.sessions.choosing import SessionApp

from .views import session_card

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class ShowApp(SessionApp):
    name = "jupyter-singularity-show"
    description = """Show everything about one session: state and reason, devices, place in the
    queue, checkpoint, and of a notebook's run its files and parameters. SESSION is an id, the
    beginning of one, or the name of an active session. With --json: the session document."""
    examples = """
        jupyter singularity show 3f9c
        jupyter singularity show train.ipynb --json
    """
    offers_ended = True

    async def work(self, client: ServiceClient) -> None:
        session = await client.get_session(await self.session(client))
        if session.get("devices") and not self.json:
            told = await client.devices(session["id"])
            session = {**session, "figures": told["devices"]}
        self.show(session, lambda: session_card(session, datetime.now(timezone.utc)))


main = ShowApp.launch
