"""`jupyter singularity group`: what can be done with runs that were submitted together."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Bool, Unicode

from singularity_scheduler.cli.framework import output
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.framework.exits import FAILED_RUN

from .group_views import (
    ended_group,
    members_table,
    outcome,
    results_csv,
    results_table,
    succeeded,
)

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

VERBS = {
    "show": "its runs, by their numbers",
    "results": "what they were given and what they recorded",
    "wait": "wait until all have ended; the exit code is 1 unless all completed, or one completed "
    "that met the group's --stop-when and none failed",
    "stop": "end all that have not ended; those that are queued are not started",
}


class GroupApp(ServiceApp):
    name = "jupyter-singularity-group"
    synopsis = "show|results|wait|stop GROUP"
    fewest = 2
    most: ClassVar[int | None] = 2
    description = """Show, wait for or stop runs that were submitted together, such as those of a
    sweep. GROUP is the id that `submit --sweep` printed, see `jupyter singularity groups`. With
    --json: the group with its sessions. `results` is the table of what each run was given and what
    it recorded; a * is at the best one by the group's objective. `wait` ends with exit code 1
    unless all completed, or one completed that met the group's --stop-when and none failed."""
    examples = """
        jupyter singularity group show 5e1f0c3a9b2d
        jupyter singularity group wait 5e1f0c3a9b2d
        jupyter singularity group results 5e1f0c3a9b2d --csv > results.csv
        jupyter singularity group stop 5e1f0c3a9b2d --reason "good enough"
    """
    reason = Unicode("", config=True, help="Why it is stopped, for the histories.")
    csv = Bool(False, config=True, help="Print `results` as CSV.")
    flags = {
        "csv": ({"GroupApp": {"csv": True}}, "Print `results` as CSV."),
        **ServiceApp.flags,
    }
    aliases = {"reason": "GroupApp.reason", **ServiceApp.aliases}

    async def work(self, client: ServiceClient) -> int | None:
        verb, group = self.words
        if verb not in VERBS:
            near = difflib.get_close_matches(verb, VERBS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"pick {', '.join(VERBS)}"
            raise BadRequest(f"'{verb}' is nothing that can be done with a group: {hint}")
        if self.csv and (verb != "results" or self.json):
            raise BadRequest("--csv is a form of `group results`, and --json is another one")
        if verb == "results":
            results = await client.group_results(group)
            if self.csv:
                output.emit(results_csv(results), end="")
            else:
                self.show(results, lambda: results_table(results))
            return None
        if verb == "stop":
            found = await client.cancel_group(group, self.reason)
        elif verb == "wait":
            found = await ended_group(client, group)
        else:
            found = await client.get_group(group)
        self._tell(verb, found)
        return FAILED_RUN if verb == "wait" and not succeeded(found) else None

    def _tell(self, verb: str, group: dict[str, Any]) -> None:
        if verb == "show":
            self.show(group, lambda: members_table(group))
            return
        if self.json:
            self.show(group, str)
        print(outcome(group), file=sys.stderr)


main = GroupApp.launch
