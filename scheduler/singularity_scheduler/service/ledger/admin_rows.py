"""What administrators said, as rows of the ledger and back; called in the ledger's transactions."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.values.administration import (
    Administration,
    NodeDuty,
    NodeMark,
    Order,
    StepState,
    Upgrade,
    UpgradeState,
    UpgradeStep,
    VirtualCluster,
)
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.text.reasons import render_words

from .rows import without_code, words_from_json, words_from_row, words_to_json, words_to_row
from .tables import admin_log, node_duties, parameters, upgrades, user_tiers, virtual_clusters

UPGRADE = 1
"""There is one upgrade at a time; its row."""


def write(connection: Connection, decision: Decision) -> None:
    """The part of a decision that is about administration."""
    row: dict[str, Any]
    for setting in decision.settings:
        connection.execute(delete(parameters).where(parameters.c.name == setting.name))
        if setting.value is not None:
            row = {"name": setting.name, "value": json.dumps(setting.value)}
            connection.execute(insert(parameters).values(row))
    for mark in decision.node_marks:
        connection.execute(delete(node_duties).where(node_duties.c.node == mark.node))
        row = {**vars(mark), **words_to_row(mark.reason), "duty": mark.duty.value}
        connection.execute(insert(node_duties).values(row))
    if decision.upgrade is not None:
        connection.execute(delete(upgrades).where(upgrades.c.id == UPGRADE))
        row = {"id": UPGRADE, "document": json.dumps(_upgrade_to_json(decision.upgrade))}
        connection.execute(insert(upgrades).values(row))
    for name, cluster in decision.clusters:
        connection.execute(delete(virtual_clusters).where(virtual_clusters.c.name == name))
        if cluster is not None:
            connection.execute(insert(virtual_clusters).values(vars(cluster)))
    for user, tiers in decision.user_tiers:
        connection.execute(delete(user_tiers).where(user_tiers.c.user == user))
        if tiers is not None:
            row = {"user": user, "tiers": json.dumps([tier.value for tier in tiers])}
            connection.execute(insert(user_tiers).values(row))
    if decision.orders:
        lines = [{**vars(one), "reason": render_words(one.reason)} for one in decision.orders]
        connection.execute(insert(admin_log), lines)


def read(connection: Connection) -> tuple[Administration, list[NodeMark]]:
    """All of it but the log; the defaults of parameters are the caller's."""
    found = Administration()
    for row in connection.execute(select(parameters)).mappings():
        found.settings[row["name"]] = json.loads(row["value"])
    for row in connection.execute(select(virtual_clusters)).mappings():
        found.clusters[row["name"]] = VirtualCluster(**row)
    for row in connection.execute(select(user_tiers)).mappings():
        found.tiers[row["user"]] = tuple(Tier(word) for word in json.loads(row["tiers"]))
    upgrade = connection.execute(select(upgrades.c.document)).scalar()
    found.upgrade = _upgrade_from_json(json.loads(upgrade)) if upgrade else None
    marks = [
        NodeMark(
            **{
                **without_code(dict(row)),
                "reason": words_from_row(dict(row)),
                "duty": NodeDuty(row["duty"]),
            }
        )
        for row in connection.execute(select(node_duties)).mappings()
    ]
    return found, marks


def read_log(
    connection: Connection, subject: str | None, limit: int, before: int | None
) -> list[tuple[int, Order]]:
    """The newest `limit` lines with numbers below `before` (None: of all), of one subject or (None)
    of all, newest first."""
    c = admin_log.c
    query = select(admin_log).order_by(c.n.desc()).limit(limit)
    if subject is not None:
        query = query.where(c.subject == subject)
    if before is not None:
        query = query.where(c.n < before)
    rows = (dict(row) for row in connection.execute(query).mappings())
    return [(int(row.pop("n")), Order(**row)) for row in rows]


def _upgrade_to_json(upgrade: Upgrade) -> dict[str, Any]:
    steps = [{**vars(step), "state": step.state.value} for step in upgrade.steps]
    why = words_to_json(upgrade.why)
    return {**vars(upgrade), "state": upgrade.state.value, "steps": steps, "why": why}


def _upgrade_from_json(told: dict[str, Any]) -> Upgrade:
    steps = (UpgradeStep(**{**step, "state": StepState(step["state"])}) for step in told["steps"])
    why = words_from_json(told["why"])
    state = UpgradeState(told["state"])
    return Upgrade(**{**told, "state": state, "steps": tuple(steps), "why": why})
