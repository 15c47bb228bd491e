"""Decisions as rows: one transaction for as many as have come together.

Runs in the ledger's thread, and is the only thing that writes the tables of the state.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.values.model import SessionView

from . import admin_rows, record, rows
from .tables import (
    checkpoint_log,
    checkpoints,
    commands,
    decisions,
    device_marks,
    leases,
    node_duties,
    parameters,
    sessions,
    snapshots,
    transitions,
    upgrades,
    user_tiers,
    virtual_clusters,
)

SAID = (parameters, node_duties, upgrades, virtual_clusters, user_tiers)
"""Small tables of what administrators have said: whole in each snapshot."""

MAX_IDS = 500
"""Most ids in one query."""

SNAPSHOT_EVERY = 10_000
"""Lines of the record behind the newest snapshot before the next one is made."""


@dataclass(frozen=True)
class Command:
    """A request that carried an idempotency key; written in the transaction of its decision."""

    user: str
    key: str
    verb: str
    session: str
    at: float
    fingerprint: str = ""
    """Of the whole request: the same key for another request is a mistake."""


@dataclass(frozen=True)
class Write:
    """A decision that is to become durable; `event`: on what it was made."""

    decision: Decision
    command: Command | None = None
    event: str = ""

    @property
    def needed(self) -> bool:
        decision = self.decision
        return not decision.empty or bool(decision.history) or self.command is not None


class Writer:
    """`number` is that of the last line of the record that is durable."""

    def __init__(self, leader: int) -> None:
        """`leader`: the epoch of the service whose decisions these are."""
        self.number = 0
        self.leader = leader
        self._snapshot_at = 0
        self._known: dict[str, SessionView] = {}
        """Active sessions as the ledger has them: a line of the record is the difference."""

    def begin(self, connection: Connection, active: Iterable[SessionView]) -> None:
        """Go on after what is there."""
        self.number = connection.execute(select(func.max(decisions.c.n))).scalar() or 0
        newest = connection.execute(select(func.max(snapshots.c.n))).scalar()
        self.number = max(self.number, newest or 0)
        # A ledger that is older than its record begins with a snapshot.
        self._snapshot_at = self.number - SNAPSHOT_EVERY if newest is None else newest
        self._known = {view.id: view for view in active}

    def write(self, connection: Connection, writes: Sequence[Write], at: float) -> None:
        """Everything of these, in their order. Call `wrote` once it is durable."""
        latest: dict[str, SessionView] = {}
        lines = []
        for number, write in enumerate(writes, self.number + 1):
            decision = write.decision
            body = record.line(decision, ChainMap(latest, self._known))
            latest |= {view.id: view for view in decision.sessions}
            lines.append(
                {"n": number, "leader": self.leader, "at": at, "event": write.event, "body": body}
            )
        connection.execute(insert(decisions), lines)
        self._sessions(connection, latest)
        history = [rows.change_to_row(c) for write in writes for c in write.decision.history]
        if history:
            connection.execute(insert(transitions), history)
        for write in writes:
            self._rest(connection, write.decision)
        asked = [vars(write.command) for write in writes if write.command]
        if asked:
            connection.execute(insert(commands), asked)

    def wrote(self, writes: Sequence[Write]) -> None:
        """They are durable."""
        self.number += len(writes)
        for write in writes:
            for view in write.decision.sessions:
                if view.ended:
                    self._known.pop(view.id, None)
                else:
                    self._known[view.id] = view

    def _sessions(self, connection: Connection, latest: dict[str, SessionView]) -> None:
        if not latest:
            return
        _forget_leases(connection, [sid for sid in latest if self._leased(sid)])
        connection.execute(
            _put_sessions(connection.dialect.name),
            [rows.session_to_row(view) for view in latest.values()],
        )
        held = [row for view in latest.values() for row in rows.lease_rows(view)]
        if held:
            connection.execute(insert(leases), held)

    def _leased(self, session: str) -> bool:
        """Whether the ledger may have leases of it: those are written anew."""
        known = self._known.get(session)
        return known is None or bool(known.devices)

    def _rest(self, connection: Connection, decision: Decision) -> None:
        for session, checkpoint in decision.gone:
            connection.execute(without(session, checkpoint))
        for session, reference in decision.stored:
            if (session, reference.id) not in decision.gone:
                connection.execute(without(session, reference.id))
                row = rows.checkpoint_to_row(session, reference)
                connection.execute(insert(checkpoints).values(row))
                logged = {c.name: row[c.name] for c in checkpoint_log.columns}
                connection.execute(_log_checkpoint(connection.dialect.name), logged)
        for mark in decision.marks:
            c = device_marks.c
            connection.execute(delete(device_marks).where(c.node == mark.node, c.uuid == mark.uuid))
            connection.execute(insert(device_marks).values(rows.mark_to_row(mark)))
        if decision.administered:
            admin_rows.write(connection, decision)

    # -- snapshots --------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether it is time for a snapshot."""
        return self.number - self._snapshot_at >= SNAPSHOT_EVERY

    def snapshot(self, connection: Connection, at: float) -> int:
        """Write one of everything active; its number, for `snapped`."""
        marks = [
            rows.mark_from_row(dict(row))
            for row in connection.execute(select(device_marks)).mappings()
        ]
        said = {t.name: _all(connection, t) for t in SAID}
        body = record.snapshot(self._known.values(), marks, said)
        connection.execute(delete(snapshots).where(snapshots.c.n == self.number))
        connection.execute(insert(snapshots).values(n=self.number, at=at, body=body))
        return self.number

    def snapped(self, number: int) -> None:
        """It is durable."""
        self._snapshot_at = number


def without(session: str, checkpoint: str) -> Any:
    c = checkpoints.c
    return delete(checkpoints).where(c.session == session, c.id == checkpoint)


def rebuilt(connection: Connection) -> record.Rebuilt:
    """What the newest snapshot and the lines after it amount to."""
    newest = connection.execute(
        select(snapshots.c.n, snapshots.c.body).order_by(snapshots.c.n.desc()).limit(1)
    ).first()
    found = record.Rebuilt(newest.body if newest else None)
    after = select(decisions.c.body).where(decisions.c.n > (newest.n if newest else 0))
    for (body,) in connection.execute(after.order_by(decisions.c.n)):
        found.add(body)
    return found


def trim(connection: Connection, before: float) -> None:
    """Forget lines older than this which a later snapshot makes needless, and older snapshots."""
    kept = select(func.max(snapshots.c.n)).where(snapshots.c.at < before).scalar_subquery()
    connection.execute(delete(decisions).where(decisions.c.n <= kept))
    connection.execute(delete(snapshots).where(snapshots.c.n < kept))


def _all(connection: Connection, table: Table) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def _forget_leases(connection: Connection, ids: list[str]) -> None:
    for start in range(0, len(ids), MAX_IDS):
        some = ids[start : start + MAX_IDS]
        connection.execute(delete(leases).where(leases.c.session.in_(some)))


@functools.cache
def _put_sessions(dialect: str) -> Any:
    """Insert a session, or replace what is there of it."""
    statement = _own(dialect).insert(sessions)
    new = {c.name: statement.excluded[c.name] for c in sessions.columns if not c.primary_key}
    return statement.on_conflict_do_update(index_elements=[sessions.c.id], set_=new)


@functools.cache
def _log_checkpoint(dialect: str) -> Any:
    """Count a checkpoint once, whatever becomes of it."""
    return _own(dialect).insert(checkpoint_log).on_conflict_do_nothing()


def _own(dialect: str) -> Any:
    return sqlite if dialect == "sqlite" else postgresql
