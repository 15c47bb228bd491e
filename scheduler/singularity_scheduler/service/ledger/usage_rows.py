"""What accounting reads from the ledger, in pieces, so that nothing grows with the ledger and
others can look at it in between. Called by `Ledger.look`.

Sessions are read in an order in which none is missed and none comes twice while the service goes
on: first those that had not ended at `Asked.settled`, then those that had, the last ended first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, or_, select

from .tables import checkpoint_log, sessions, transitions


@dataclass(frozen=True)
class Asked:
    """What is to be accounted; UNIX seconds."""

    since: float
    until: float
    settled: float
    """What was decided up to here is in the ledger."""
    user: str | None = None
    """Only this user's sessions; None: everybody's."""


class Place(NamedTuple):
    """Where a reader of sessions is: behind this one."""

    over: bool = False
    updated_at: float = 0.0
    id: str = ""


class Metered(NamedTuple):
    """A session to be accounted."""

    id: str
    user: str
    name: str
    kind: str
    tier: str
    virtual_cluster: str
    experiment: str
    virtual_devices: int
    created_at: float
    updated_at: float
    ended: bool
    first: int
    """Number of the line of its history that holds at `since`; 0: it began later."""
    over: bool
    """Whether it had ended at `settled`."""

    @property
    def place(self) -> Place:
        return Place(self.over, self.updated_at, self.id)


class Line(NamedTuple):
    """A line of a session's history."""

    session: str
    n: int
    at: float
    process_state: str
    device_state: str
    rule: str
    devices: int | None
    """Physical ones, where they are not as many as its virtual ones."""


Wanted = tuple[str, int]
"""A session, and the number of its first line that is wanted."""


class Stored(NamedTuple):
    """A checkpoint that was made."""

    session: str
    at: float
    stored_bytes: int
    sent_bytes: int


def read_sessions(connection: Connection, asked: Asked, after: Place, limit: int) -> list[Metered]:
    """At most `limit` sessions behind `after` that were there in this time."""
    found: list[Metered] = []
    if not after.over:
        found += _read(connection, asked, _active(asked, after), limit, over=False)
        after = Place(True, float("inf"))
    if len(found) < limit:
        found += _read(connection, asked, _ended(asked, after), limit - len(found), over=True)
    return found


def _active(asked: Asked, after: Place) -> Any:
    c = sessions.c
    query = select(*_columns(asked)).where(
        or_(c.ended.is_(False), and_(c.ended.is_(True), c.updated_at > asked.settled)),
        c.id > after.id,
    )
    return query.order_by(c.id)


def _ended(asked: Asked, after: Place) -> Any:
    c = sessions.c
    query = select(*_columns(asked)).where(
        c.ended.is_(True), c.updated_at >= asked.since, c.updated_at <= asked.settled
    )
    if after.id:
        at = after.updated_at
        query = query.where(
            c.updated_at <= at, or_(c.updated_at < at, and_(c.updated_at == at, c.id > after.id))
        )
    return query.order_by(c.updated_at.desc(), c.id)


def _columns(asked: Asked) -> list[Any]:
    t = transitions.c
    # From the newest line back, as far as will be read anyway.
    first = (
        select(t.n)
        .where(t.session == sessions.c.id, t.at <= asked.since)
        .order_by(t.n.desc())
        .limit(1)
        .correlate(sessions)
        .scalar_subquery()
    )
    return [*(sessions.c[name] for name in Metered._fields[:-2]), func.coalesce(first, 0)]


def _read(
    connection: Connection, asked: Asked, query: Any, limit: int, *, over: bool
) -> list[Metered]:
    query = query.where(sessions.c.created_at < asked.until)
    if asked.user is not None:
        query = query.where(sessions.c.user == asked.user)
    return [Metered._make([*row, over]) for row in connection.execute(query.limit(limit))]


def read_lines(
    connection: Connection, wanted: Sequence[Wanted], until: float, limit: int
) -> list[Line]:
    """At most `limit` lines of these before `until`, one session after the other, each in order."""
    t = transitions.c
    query = (
        select(*(t[name] for name in Line._fields))
        .where(or_(*(and_(t.session == sid, t.n >= first) for sid, first in wanted)), t.at < until)
        .order_by(t.session, t.n)
        .limit(limit)
    )
    return [Line(*row) for row in connection.execute(query)]


def still_wanted(wanted: Sequence[Wanted], lines: Sequence[Line]) -> list[Wanted]:
    """What is left of `wanted` behind these, which were as many as could be read at once."""
    last = lines[-1]
    seen = {line.session for line in lines}
    return [(last.session, last.n + 1), *(w for w in wanted if w[0] not in seen)]


def read_stored(
    connection: Connection, ids: Sequence[str], since: float, until: float
) -> list[Stored]:
    """The checkpoints that were made of these in this time."""
    c = checkpoint_log.c
    query = select(*(c[name] for name in Stored._fields)).where(
        c.session.in_(ids), c.at >= since, c.at < until
    )
    return [Stored(*row) for row in connection.execute(query)]
