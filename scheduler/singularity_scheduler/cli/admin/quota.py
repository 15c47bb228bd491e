"""`jupyter singularity quota`: virtual clusters and how many devices belong to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Bool, Unicode

from singularity_scheduler.cli.framework.base import ServiceApp

from .views import quota_table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient


class QuotaApp(ServiceApp):
    name = "jupyter-singularity-quota"
    synopsis = "[NAME DEVICES]"
    most: ClassVar[int | None] = 2
    description = """Show the virtual clusters: how many devices belong to each, how many its
    sessions hold and how many of them are borrowed. With NAME and DEVICES: make one or give it
    another quota. For administrators. With --json: an array of virtual clusters."""
    examples = """
        jupyter singularity quota
        jupyter singularity quota vision 8
        jupyter singularity quota guests 2 --no-borrow
        jupyter singularity quota guests --remove
    """
    no_borrow = Bool(False, config=True, help="Its sessions never get more than the quota.")
    remove = Bool(False, config=True, help="Remove a virtual cluster that has no sessions.")
    reason = Unicode("", config=True, help="Why, for the log.")
    aliases = {"reason": "QuotaApp.reason", **ServiceApp.aliases}
    flags = {
        "no-borrow": ({"QuotaApp": {"no_borrow": True}}, "Never more than the quota."),
        "remove": ({"QuotaApp": {"remove": True}}, "Remove it; it must have no sessions."),
        **ServiceApp.flags,
    }

    async def work(self, client: ServiceClient) -> None:
        words = self.words
        if self.remove:
            if len(words) != 1:
                raise BadRequest("--remove takes the name of one virtual cluster and nothing else")
            found = await client.remove_virtual_cluster(words[0])
        elif not words:
            found = await client.virtual_clusters()
        elif len(words) == 1:
            found = await client.virtual_clusters()
            found = [one for one in found if one["name"] == words[0]]
            if not found:
                raise BadRequest(
                    f"there is no virtual cluster '{words[0]}'; with a number of devices it is made"
                )
        else:
            if not words[1].isdecimal():
                raise BadRequest(f"'{words[1]}' is no number of devices")
            may_borrow = not self.no_borrow
            found = await client.set_quota(words[0], int(words[1]), may_borrow, self.reason)
        self.show(found, lambda: quota_table(found))


main = QuotaApp.launch
