"""Groups of runs for people, and the wait for their end; used by `submit`, `groups`, `group`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import Unavailable

from . import texts
from .tables import Column, Table

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

Json = dict[str, Any]

ENDED = frozenset({"completed", "failed", "cancelled"})
POLL_S = 1.0
AWAY_S = 30.0
"""So long a wait goes without the service before it gives up."""


def tally(group: Mapping[str, Any]) -> str:
    """ "3 running, 5 queued"."""
    return ", ".join(f"{number} {word}" for word, number in group["states"].items())


def accepted(group: Mapping[str, Any]) -> str:
    most = group["max_parallel"]
    limit = f", at most {most} at once" if most else ""
    return (
        f"group {group['id']}: {group['members']} runs{limit} ({tally(group)})\n"
        f"watch it with: jupyter singularity group show {group['id']}"
    )


def groups_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each group."""
    columns = [
        Column("group", style="bold"),
        Column("name", least=8),
        Column("state"),
        Column("runs", right=True),
        Column("at once", right=True),
        Column("members", least=20),
    ]
    rows = [
        [
            str(g["id"]),
            texts.clean(g["name"]),
            str(g["state"]),
            str(g["members"]),
            str(g["max_parallel"] or "-"),
            tally(g),
        ]
        for g in groups
    ]
    return Table(columns, rows, "there are no groups")


def members_table(group: Mapping[str, Any]) -> Table:
    """One line for each member."""
    columns = [
        Column("#", right=True),
        Column("session", style="bold"),
        Column("state"),
        Column("values", least=12),
        Column("reason", least=20),
    ]
    rows = [
        [
            str(s["group"]["number"]),
            str(s["id"]),
            str(s["state"]),
            shown(s["group"]["values"]),
            texts.clean(s["reason"]),
        ]
        for s in group["sessions"]
    ]
    return Table(columns, rows)


def shown(values: Mapping[str, Any]) -> str:
    """ "lr=0.1 seed=3"."""
    return texts.clean(" ".join(f"{name}={value}" for name, value in values.items()))


async def ended_group(client: ServiceClient, group: str) -> Json:
    """The group once all its members have ended; `Unavailable` after `AWAY_S` without service."""
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    while True:
        try:
            found = await client.get_group(group)
            heard_at = loop.time()
            if found["state"] in ENDED:
                return found
        except Unavailable as error:
            if loop.time() - heard_at > AWAY_S:
                raise Unavailable(
                    f"the group goes on, but how it ends is not known here: {error.message}"
                ) from None
        await asyncio.sleep(POLL_S)
