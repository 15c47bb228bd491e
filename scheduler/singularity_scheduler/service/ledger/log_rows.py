"""The event log: changes of sessions and what administrators changed, newest first, by filters.

Called by `Ledger.look`: a filter that fits little reads far back.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge
from typing import Any

from sqlalchemy import Connection, Select, select

from .tables import admin_log, sessions, transitions

Place = tuple[int, int]
"""Where a page ends: the numbers of the oldest change of a session and of the oldest line of an
administrator on it or on one before it."""

BEGINNING: Place = (1 << 62, 1 << 62)


@dataclass(frozen=True)
class Filters:
    """What somebody looks for; "" is everything."""

    user: str = ""
    """Whose session, or which administrator."""
    session: str = ""
    """Its id or its name."""
    node: str = ""
    """Where the session is now, or was last; or the node that was changed."""
    rule: str = ""
    text: str = ""
    """Part of the reason, in small or capital letters."""


@dataclass(frozen=True)
class Line:
    """Of a session, or (`session` "") of what an administrator changed."""

    at: float
    n: int
    user: str
    session: str
    subject: str
    """The session's name; the node, parameter or virtual cluster."""
    node: str
    word: str
    """The session's state after it; the administrator's verb."""
    reason: str
    rule: str
    before: str = ""
    after: str = ""


def read_log(
    connection: Connection, filters: Filters, whose: str | None, limit: int, after: Place
) -> tuple[list[Line], Place | None]:
    """At most `limit` lines behind `after`, and where the next page begins (None: that is all).
    `whose`: only this user's sessions, and nothing of administrators; None: all."""
    changes = connection.execute(_changes(filters, whose, limit, after)).all()
    orders = (
        connection.execute(_orders(filters, limit, after)).all()
        if whose is None and not filters.session
        else []
    )
    lines = map(_session_line, changes), map(_admin_line, orders)
    found = list(merge(*lines, key=lambda line: -line.at))
    page, (change, order) = found[:limit], after
    for line in page:
        if line.session:
            change = line.n
        else:
            order = line.n
    return page, (change, order) if len(found) > limit else None


def _changes(filters: Filters, whose: str | None, limit: int, after: Place) -> Select[Any]:
    t, s = transitions.c, sessions.c
    query = (
        select(t.at, t.n, s.user, s.id, s.name, s.node, t.word, t.reason, t.rule)
        .join(sessions, s.id == t.session)
        .where(t.n < after[0])
        .order_by(t.n.desc())
        .limit(limit + 1)
    )
    for name in {whose or "", filters.user} - {""}:
        query = query.where(s.user == name)
    if filters.session:
        query = query.where((s.id == filters.session) | (s.name == filters.session))
    if filters.node:
        query = query.where(s.node == filters.node)
    if filters.rule:
        query = query.where(t.rule == filters.rule)
    if filters.text:
        query = query.where(t.reason.icontains(filters.text, autoescape=True))
    return query


def _orders(filters: Filters, limit: int, after: Place) -> Select[Any]:
    c = admin_log.c
    query = select(admin_log).where(c.n < after[1]).order_by(c.n.desc()).limit(limit + 1)
    if filters.user:
        query = query.where(c.by == filters.user)
    if filters.node:
        query = query.where(c.subject == filters.node)
    if filters.rule:
        query = query.where(c.rule == filters.rule)
    if filters.text:
        query = query.where(c.reason.icontains(filters.text, autoescape=True))
    return query


def _session_line(row: Any) -> Line:
    at, n, user, session, name, node, word, reason, rule = row
    return Line(at, int(n), user, session, name or session, node, word, reason, rule)


def _admin_line(row: Any) -> Line:
    n, at, by, verb, subject, before, after, reason, rule = row
    return Line(at, int(n), by, "", subject, "", verb, reason, rule, before, after)
