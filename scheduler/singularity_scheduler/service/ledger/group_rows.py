"""Groups of sessions as the ledger has them: what holds for a group is with each of its members.

Called by `Ledger.glance`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, or_, select

from singularity_scheduler.core.values.requested import Member
from singularity_scheduler.core.values.states import DeviceState, ProcessState, word

from .rows import member_from_text
from .tables import sessions

Place = tuple[float, str]
"""Where a page ends: (created_at, id) of its last group; newest first."""


@dataclass(frozen=True)
class GroupRow:
    """One group. `member`: any of its members; `words`: state -> how many of them are in it."""

    id: str
    user: str
    created_at: float
    updated_at: float
    member: Member
    words: dict[str, int]
    states: dict[ProcessState, int]


def page(
    connection: Connection,
    *,
    user: str | None = None,
    group: str | None = None,
    limit: int = 1,
    after: Place | None = None,
) -> list[GroupRow]:
    """At most `limit` groups behind `after`, newest first; of one user (None: any), or this one
    alone."""
    c = sessions.c
    query = (
        select(
            c.group,
            func.max(c.user).label("user"),
            c.created_at,
            func.max(c.updated_at).label("updated_at"),
            func.min(c.member).label("member"),
        )
        .where(c.group != "")
        .group_by(c.group, c.created_at)
        .order_by(c.created_at.desc(), c.group)
        .limit(limit)
    )
    if user is not None:
        query = query.where(c.user == user)
    if group is not None:
        query = query.where(c.group == group)
    if after is not None:
        at, last = after
        query = query.where(or_(c.created_at < at, and_(c.created_at == at, c.group > last)))
    found = connection.execute(query).mappings().all()
    counts = _counts(connection, [row["group"] for row in found])
    return [
        GroupRow(
            row["group"],
            row["user"],
            row["created_at"],
            row["updated_at"],
            member_from_text(row["member"]),
            *counts[row["group"]],
        )
        for row in found
    ]


def _counts(
    connection: Connection, groups: list[str]
) -> dict[str, tuple[Counter[str], Counter[ProcessState]]]:
    c = sessions.c
    states = (c.process_state, c.device_state, c.moving)
    query = select(c.group, *states, func.count()).where(c.group.in_(groups))
    counts = {group: (Counter[str](), Counter[ProcessState]()) for group in groups}
    for group, process, device, moving, number in connection.execute(
        query.group_by(c.group, *states)
    ):
        words, processes = counts[group]
        words[word(ProcessState(process), DeviceState(device), moving)] += number
        processes[ProcessState(process)] += number
    return counts


def members(connection: Connection, group: str) -> list[str]:
    """Ids of the sessions of a group, in no order."""
    return list(connection.scalars(select(sessions.c.id).where(sessions.c.group == group)))
