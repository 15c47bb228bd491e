"""`jupyter singularity changes`: who changed parameters, nodes and quotas."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from traitlets import Integer, TraitError, validate

from singularity_scheduler.cli.framework.base import ServiceApp

from .views import log_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

MOST = 1000
"""Lines that the service gives at once."""


class ChangesApp(ServiceApp):
    name = "jupyter-singularity-changes"
    synopsis = "[SUBJECT]"
    most: ClassVar[int | None] = 1
    description = """Show who changed what of the policy and the nodes, newest first: from what, to
    what, and why. SUBJECT is a parameter, a node or a virtual cluster. For administrators. With
    --json: an array of changes."""
    examples = """
        jupyter singularity changes
        jupyter singularity changes gpu-07
    """
    limit = Integer(20, config=True, help=f"How many, the newest; at most {MOST}.")
    aliases = {("n", "limit"): "ChangesApp.limit", **ServiceApp.aliases}

    @validate("limit")  # type: ignore[untyped-decorator]
    def _check_limit(self, proposal: Any) -> int:
        if not 1 <= int(proposal["value"]) <= MOST:
            raise TraitError(f"--limit must be a number of changes from 1 to {MOST}")
        return int(proposal["value"])

    async def work(self, client: ServiceClient) -> None:
        subject = self.words[0] if self.words else None
        lines = await client.admin_log(subject, self.limit)
        self.show(lines, lambda: log_table(lines, datetime.now(timezone.utc)))


main = ChangesApp.launch
