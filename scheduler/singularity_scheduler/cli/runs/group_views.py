"""Groups of runs for people, and the wait for their end; used by `submit`, `groups`, `group`."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import Unavailable

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.tables import Column, Table
from singularity_scheduler.client.words import duration

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


def outcome(group: Mapping[str, Any]) -> str:
    """How it is, in one sentence."""
    sentence = f"group {group['id']} {group['state']}: {tally(group)}"
    reached = group.get("reached")
    return f"{sentence}; {reached['reason']} ({reached['session']})" if reached else sentence


def succeeded(group: Mapping[str, Any]) -> bool:
    """Whether a group that has ended did what it was to do: all completed, or one completed that
    met the group's condition, and none failed."""
    if group["state"] == "completed":
        return True
    reached = group.get("reached")
    if not reached or "failed" in group["states"]:
        return False
    ids = {session["id"]: session["state"] for session in group["sessions"]}
    return ids.get(reached["session"]) == "completed"


def accepted(group: Mapping[str, Any]) -> str:
    most = group["max_parallel"]
    limit = f", at most {most} at once" if most else ""
    if (whole := group.get("timeout_s")) is not None:  # a service before this one has none
        limit += f", for at most {duration(whole)}"
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


def results_table(found: Mapping[str, Any]) -> Table:
    """One line for each member: what it was given and what it recorded."""
    columns = [
        Column("#", right=True),
        Column("session", style="bold", drop=1),
        Column("state"),
        *(Column(texts.clean(name), right=True) for name in headings(found)),
    ]
    rows = [
        [
            f"{'*' if result['session'] == found['best'] else ''}{result['number']}",
            str(result["session"]),
            str(result["state"]),
            *map(_short, cells(found, result)),
        ]
        for result in found["results"]
    ]
    return Table(columns, rows)


def headings(found: Mapping[str, Any]) -> list[str]:
    """Names of parameters, then of recorded values; a recorded one that is a parameter too is
    called recorded.NAME."""
    both = set(found["values"])
    return [*found["values"], *(f"recorded.{n}" if n in both else n for n in found["recorded"])]


def cells(found: Mapping[str, Any], result: Mapping[str, Any]) -> list[Any]:
    """The values of a member in the order of `headings`; None for one that it does not have."""
    given = [result["values"].get(name) for name in found["values"]]
    return [*given, *(result["recorded"].get(name) for name in found["recorded"])]


def results_csv(found: Mapping[str, Any]) -> str:
    """The same as CSV (RFC 4180): a header, then a line for each member."""
    from singularity_scheduler.client.usage import cell

    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow(["number", "session", "state", "exit_code", *map(cell, headings(found))])
    for result in found["results"]:
        about = [result[name] for name in ("number", "session", "state", "exit_code")]
        lines.writerow(map(cell, [*about, *map(_plain, cells(found, result))]))
    return text.getvalue()


def _plain(value: Any) -> Any:
    """A text or a number as it is, all else as JSON."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if value is None or number or isinstance(value, str) else json.dumps(value)


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    word = texts.clean(str(_plain(value)))
    return word if len(word) <= 40 else f"{word[:37]}..."


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
