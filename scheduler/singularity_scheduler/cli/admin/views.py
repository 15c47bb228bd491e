"""What administrators see of the API's documents: tables and sentences. Pure, as `views`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.tables import Column, Table
from singularity_scheduler.client.words import duration

Json = Mapping[str, Any]

STYLES = {
    "cordoned": "yellow",
    "draining": "yellow",
    "drained": "dim",
    "out": "yellow",
    "back": "green",
}
"""Colours of rows by what a node is used for, or how far its upgrade is."""


def value_text(value: object) -> str:
    """A parameter's value: "900", "1800, 3600", "none" for an empty list."""
    if isinstance(value, list):
        return ", ".join(map(value_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else texts.clean(value)


def parameter_table(parameters: Sequence[Json]) -> Table:
    columns = [
        Column("parameter", style="bold"),
        Column("value", right=True),
        Column("default", right=True, drop=1),
        Column("bounds", drop=2),
        Column("meaning", least=20),
    ]
    rows = [
        [
            texts.clean(entry.get("name")),
            value_text(entry.get("value")),
            value_text(entry.get("default")) if entry.get("set") else "",
            f"{entry['low']:g} to {entry['high']:g}",
            texts.clean(entry.get("help")),
        ]
        for entry in parameters
    ]
    return Table(columns, rows, "", ["yellow" if entry.get("set") else "" for entry in parameters])


def quota_table(clusters: Sequence[Json]) -> Table:
    columns = [
        Column("virtual cluster", style="bold"),
        Column("quota", right=True),
        Column("used", right=True),
        Column("borrowed", right=True),
        Column("waiting", right=True),
        Column("sessions", right=True),
        Column("may borrow"),
    ]
    numbers = ("quota_devices", "used", "borrowed", "waiting", "sessions")
    rows = [
        [
            texts.clean(cluster.get("name")),
            *(str(cluster.get(number)) for number in numbers),
            "yes" if cluster.get("may_borrow") else "no",
        ]
        for cluster in clusters
    ]
    return Table(columns, rows, "there is no virtual cluster")


def node_sentence(node: Json, now: datetime) -> str:
    """What a node is used for now and what is still on it."""
    name, duty = texts.clean(node.get("id")), str(node.get("duty"))
    left = node.get("sessions") or ()
    reason = texts.clean(node.get("reason"))
    said = f"node {name} is {duty}{f' ({reason})' if reason and duty != 'open' else ''}"
    if duty == "open":
        return f"{said}: sessions are placed there"
    if duty == "cordoned":
        there = texts.plural(len(left), "session")
        return f"{said}: nothing new is placed there, what is there goes on ({there})"
    if duty == "drained":
        kept = node.get("connections")
        more = f"; it still has {texts.plural(kept, 'kernel connection')}" if kept else ""
        return f"{said}: nothing of any session is left there{more}"
    lines = [f"{said}: {texts.plural(len(left), 'session')} still there{_deadline(node, now)}"]
    lines += [
        f"  {texts.clean(s.get('id'))} {texts.clean(s.get('user'))}/{texts.clean(s.get('name'))} "
        f"is {texts.clean(s.get('state'))}: {texts.clean(s.get('reason'))}"
        for s in left
    ]
    return "\n".join(lines)


def _deadline(node: Json, now: datetime) -> str:
    at = node.get("deadline")
    if not at:
        return ""
    if node.get("overdue"):
        return f", the deadline was {texts.age(at, now)} ago"
    left = (datetime.fromisoformat(str(at)) - now).total_seconds()
    return f", {duration(left)} left"


def upgrade_table(upgrade: Json) -> Table:
    columns = [
        Column("node", style="bold"),
        Column("state"),
        Column("sessions", right=True),
        Column("before", drop=1),
        Column("version", drop=2),
    ]
    nodes = upgrade.get("nodes") or ()
    rows = [
        [
            texts.clean(node.get("node")),
            str(node.get("state")),
            str(node.get("left")),
            texts.clean(node.get("before")),
            texts.clean(node.get("version")),
        ]
        for node in nodes
    ]
    styles = [STYLES.get(str(node.get("state")), "") for node in nodes]
    return Table(columns, rows, "there never was an upgrade", styles)


def upgrade_sentence(upgrade: Json) -> str:
    """The upgrade in one line."""
    nodes = upgrade.get("nodes") or ()
    done = sum(node.get("state") == "back" for node in nodes)
    why = texts.clean(upgrade.get("why"))
    return (
        f"the upgrade is {upgrade.get('state')}, {done} of "
        f"{texts.plural(len(nodes), 'node')} done{f': {why}' if why else ''}"
    )


def log_table(lines: Sequence[Json], now: datetime) -> Table:
    columns = [
        Column("ago", right=True),
        Column("by"),
        Column("what"),
        Column("subject", style="bold"),
        Column("before", least=8),
        Column("after", least=8),
        Column("reason", least=12),
    ]
    rows = [
        [
            texts.age(line.get("at"), now),
            texts.clean(line.get("by")) or "(itself)",
            texts.clean(line.get("verb")),
            texts.clean(line.get("subject")),
            _short(line.get("before")),
            _short(line.get("after")),
            texts.clean(line.get("reason")),
        ]
        for line in lines
    ]
    return Table(columns, rows, "nothing was changed yet")


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    if value is None:
        return ""
    return texts.clean(value if isinstance(value, str) else json.dumps(value))
