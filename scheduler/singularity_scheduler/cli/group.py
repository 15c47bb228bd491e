"""`jupyter singularity group`: what can be done with runs that were submitted together."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Unicode

from .base import ServiceApp
from .exits import FAILED_RUN
from .group_views import ended_group, members_table, tally

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

VERBS = {
    "show": "its runs, by their numbers",
    "wait": "wait until all have ended; the exit code is 1 unless all completed",
    "stop": "end all that have not ended; those that are queued are not started",
}


class GroupApp(ServiceApp):
    name = "jupyter-singularity-group"
    synopsis = "show|wait|stop GROUP"
    fewest = 2
    most: ClassVar[int | None] = 2
    description = """Show, wait for or stop runs that were submitted together, such as those of a
    sweep. GROUP is the id that `submit --sweep` printed, see `jupyter singularity groups`. With
    --json: the group with its sessions."""
    examples = """
        jupyter singularity group show 5e1f0c3a9b2d
        jupyter singularity group wait 5e1f0c3a9b2d
        jupyter singularity group stop 5e1f0c3a9b2d --reason "good enough"
    """
    reason = Unicode("", config=True, help="Why it is stopped, for the histories.")
    aliases = {"reason": "GroupApp.reason", **ServiceApp.aliases}

    async def work(self, client: ServiceClient) -> int | None:
        verb, group = self.words
        if verb not in VERBS:
            near = difflib.get_close_matches(verb, VERBS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"pick {', '.join(VERBS)}"
            raise BadRequest(f"'{verb}' is nothing that can be done with a group: {hint}")
        if verb == "stop":
            found = await client.cancel_group(group, self.reason)
        elif verb == "wait":
            found = await ended_group(client, group)
        else:
            found = await client.get_group(group)
        self._tell(verb, found)
        return FAILED_RUN if verb == "wait" and found["state"] != "completed" else None

    def _tell(self, verb: str, group: dict[str, Any]) -> None:
        if verb == "show":
            self.show(group, lambda: members_table(group))
            return
        if self.json:
            self.show(group, str)
        print(f"group {group['id']} {group['state']}: {tally(group)}", file=sys.stderr)


main = GroupApp.launch
