"""`jupyter singularity history`: what happened to a session, and why."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from traitlets import Integer, TraitError, validate

from singularity_scheduler.cli.sessions.choosing import SessionApp

from .views import history_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

MOST = 1000
"""Changes that the service gives at once."""


class HistoryApp(SessionApp):
    name = "jupyter-singularity-history"
    description = """Show what happened to a session, oldest first: each state, the rule that led
    to it and the reason. SESSION is an id, the beginning of one, or the name of an active
    session. With --json: an array of changes."""
    examples = """
        jupyter singularity history 3f9c --limit 5
    """
    offers_ended = True

    limit = Integer(20, config=True, help=f"How many changes, the newest; at most {MOST}.")
    aliases = {("n", "limit"): "HistoryApp.limit", **SessionApp.aliases}

    @validate("limit")  # type: ignore[untyped-decorator]
    def _check_limit(self, proposal: Any) -> int:
        if not 1 <= int(proposal["value"]) <= MOST:
            raise TraitError(f"--limit must be a number of changes from 1 to {MOST}")
        return int(proposal["value"])

    async def work(self, client: ServiceClient) -> None:
        changes = await client.history(await self.session(client), self.limit)
        self.show(changes, lambda: history_table(changes, datetime.now(timezone.utc)))


main = HistoryApp.launch
