"""`jupyter singularity fleet`: let other machines join, see who has, and withdraw them.

Works on the files of the scheduler service, on its machine and as its user; the service need not
run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from singularity_proxy.errors import BadRequest
from traitlets import Integer, Unicode

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.base import ReportApp
from singularity_scheduler.cli.framework.tables import Column, Table
from singularity_scheduler.client.words import duration
from singularity_scheduler.installed import default_state_dir

if TYPE_CHECKING:
    from singularity_scheduler.fleet.registry import Registry
from singularity_scheduler.fleet.settings import FleetSettings

VERBS = {"init": 1, "token": 2, "withdraw": 2}
"""Verb -> how many words it is, with what it is about."""


class FleetApp(ReportApp):
    name = "jupyter-singularity-fleet"
    synopsis = "[init | token NODE | withdraw NODE]"
    most: ClassVar[int | None] = 2
    description = """Let other machines join the fleet of this scheduler service. Run it on the
    service's machine, as its user. `init` makes the fleet's certificate authority and says where
    the service listens; it does so from its next start on. `token NODE` prints one string that
    lets one machine join as NODE within 15 minutes: `jupyter singularity node join STRING` there.
    `withdraw NODE` lets its certificate count no more; the service hangs up within seconds.
    Without a verb: the nodes that have joined. With --json: what there is, as JSON."""
    examples = """
        jupyter singularity fleet init --address scheduler.example.org --store /shared/store
        jupyter singularity fleet token gpu-1
        jupyter singularity fleet
        jupyter singularity fleet withdraw gpu-1
    """

    state = Unicode(
        config=True,
        help="""The state folder of the scheduler service (`SchedulerApp.state_dir`). Default:
        jupyter-singularity in $XDG_STATE_HOME or ~/.local/state.""",
    )
    address = Unicode(
        config=True,
        help="""For `init`: name or address at which other machines reach the service; it goes into
        join strings.""",
    )
    port = Integer(
        8766, min=1, max=65535, config=True, help="For `init`: the port for nodes, TLS 1.3."
    )
    listen = Unicode(
        "0.0.0.0",
        config=True,
        help="For `init`: the address of this machine at which the service listens for nodes.",
    )
    store = Unicode(
        config=True,
        help="""For `init`: folder of the checkpoint store, which every node that joins must have at
        the same path; both sides try to write there. Empty: it is not tried, as for a store in a
        cloud.""",
    )
    homes = Unicode(
        config=True,
        help="For `init`: folder of the users' homes, tried in the same way. Empty: it is not.",
    )
    aliases = {
        "state": "FleetApp.state",
        "address": "FleetApp.address",
        "port": "FleetApp.port",
        "listen": "FleetApp.listen",
        "store": "FleetApp.store",
        "homes": "FleetApp.homes",
        **ReportApp.aliases,
    }

    def execute(self) -> None:
        from singularity_scheduler.fleet.registry import Registry  # needs a library

        verb = self.words[0] if self.words else "list"
        if self.words and VERBS.get(verb) != len(self.words):
            usage = f"jupyter singularity fleet {self.synopsis}"
            raise BadRequest(f"'{' '.join(self.words)}' is nothing that can be done: {usage}")
        registry = Registry(os.path.expanduser(self.state) or default_state_dir())
        if verb == "init":
            self._init(registry)
        elif verb == "token":
            string = str(registry.make_join_string(self.words[1]))
            self.show({"node": self.words[1], "join": string}, lambda: string)
        elif verb == "withdraw":
            registry.withdraw(self.words[1])
            self._list(registry)
        else:
            self._list(registry)

    def _init(self, registry: Registry) -> None:
        settings = self._settings()
        registry.create(settings)
        pin = registry.authority().pin
        told = {"address": settings.address, "port": settings.port, "authority": f"sha256:{pin}"}
        self.show(
            told,
            lambda: (
                f"the fleet's authority is in {registry.folder}: keep a copy that nobody else can "
                f"read. Start the scheduler service again; then it listens for nodes at port "
                f"{settings.port}, and `jupyter singularity fleet token NODE` lets one join"
            ),
        )

    def _settings(self) -> FleetSettings:
        from singularity_scheduler.fleet.settings import FleetSettings

        if not self.address or not texts.clean(self.address).strip() or " " in self.address:
            raise BadRequest(
                "`fleet init` needs --address: the name or address at which other machines reach "
                "this one; nothing was made"
            )
        for option, folder in (("--store", self.store), ("--homes", self.homes)):
            if folder and not os.path.isdir(folder):
                raise BadRequest(f"{option} {folder} is no folder here; nothing was made")
        store, homes = (os.path.abspath(f) if f else "" for f in (self.store, self.homes))
        return FleetSettings(self.address, self.port, self.listen, store=store, homes=homes)

    def _list(self, registry: Registry) -> None:
        from singularity_scheduler.fleet.registry import describe_members

        registry.settings()  # says so when there is no fleet
        now = time.time()
        members = describe_members(registry.book(), now)
        self.show(members, lambda: members_table(members, now))

    def complete(self, prefix: str) -> Iterable[str]:
        return VERBS


def members_table(members: list[dict[str, Any]], now: float) -> Table | str:
    """Return the table of who has joined, or a sentence when nobody has."""
    if not members:
        return "no machine has joined yet: `jupyter singularity fleet token NODE` lets one"
    columns = [Column("node", style="bold"), Column("state"), Column("joined"), Column("renewal")]
    rows = [
        [
            texts.clean(member["node"]),
            member["state"],
            f"{duration(now - member['joined_at'])} ago",
            f"within {duration(member['ends'] - now)}" if member["state"] == "member" else "",
        ]
        for member in members
    ]
    return Table(columns, rows, "")


main = FleetApp.launch
