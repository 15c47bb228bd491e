"""The ledger: the only truth about sessions and leases, on disk before anything is acknowledged.

SQLite in WAL mode with full synchronisation by default; any SQLAlchemy URL works. All access goes
through one thread of its own, so the event loop never waits for a disk. Nothing of SQLAlchemy
leaves this module: callers give and get the plain values of `core`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import alembic.command
import alembic.config
from singularity_proxy.errors import NoSpace, SingularityError, Unavailable
from sqlalchemy import (
    Connection,
    Engine,
    and_,
    create_engine,
    delete,
    event,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from singularity_scheduler.core.events import Decision
from singularity_scheduler.core.model import Change, CheckpointRef, DeviceMark, SessionView
from singularity_scheduler.core.states import DeviceState, ProcessState, word

from . import rows
from .tables import checkpoints, commands, device_marks, leases, sessions, transitions

T = TypeVar("T")

Line = tuple[int, Change]
"""A change with its number; numbers grow with time."""

MAX_IDS = 500
"""Most ids in one query."""

BUSY_TIMEOUT_S = 5.0
"""How long SQLite waits for another process that has the file locked (a backup, a shell)."""


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


Position = tuple[float, str]
"""Place in the list of sessions, newest first: (created_at, id) of the last one seen."""


class Ledger:
    """Open with `await Ledger.open(url)`, close with `await close()`. Methods raise `NoSpace` when
    the disk is full and `Unavailable` when the database cannot be used now; then nothing of the
    call is in the ledger."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._engine: Engine | None = None
        self.on_write: Callable[[float], None] = lambda seconds: None
        """Told how many seconds each decision took to become durable."""

    @classmethod
    async def open(cls, url: str) -> Ledger:
        """Connect and bring the schema up to date. Called once at the start of the service."""
        ledger = cls(url)
        try:
            await ledger._run(ledger._open)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def close(self) -> None:
        """Let go of the database; idempotent."""
        with contextlib.suppress(RuntimeError):  # the thread is gone: closed before
            await self._run(self._dispose)
        self._thread.shutdown(wait=True)

    # -- writing ----------------------------------------------------------------------------

    async def write(self, decision: Decision, command: Command | None = None) -> None:
        """Make a decision durable: everything of it or nothing."""
        if not decision.empty or decision.history or command:
            began = time.monotonic()
            await self._run(lambda: self._write(decision, command))
            self.on_write(time.monotonic() - began)

    async def forget(self, user: str, key: str) -> None:
        """Let a request come again: what it asked for was decided and then failed."""
        await self._run(lambda: self._forget(user, key))

    async def trim(self, before: float) -> int:
        """Forget ended sessions last changed before this time, with their history, and older
        idempotency keys; returns how many sessions."""
        return await self._run(lambda: self._trim(before))

    # -- reading ----------------------------------------------------------------------------

    async def active(self) -> list[SessionView]:
        """Sessions whose end is not confirmed yet: what the scheduler works on."""
        return await self._run(lambda: self._sessions(sessions.c.ended.is_(False)))

    async def marks(self) -> list[DeviceMark]:
        """What was ever decided on devices: which are drained, which faults are acknowledged."""
        return await self._run(self._marks)

    async def dropped(self) -> list[tuple[str, str, CheckpointRef]]:
        """(session, user, checkpoint) of all that is to be deleted from the store, of ended
        sessions too."""
        return await self._run(self._dropped)

    async def forget_checkpoint(self, session: str, checkpoint: str) -> None:
        """It is deleted from the store."""
        await self._run(lambda: self._forget_checkpoint(session, checkpoint))

    async def drop_old(self, before: float) -> int:
        """Mark the checkpoints of ended sessions that are older than this as to be deleted;
        returns how many."""
        return await self._run(lambda: self._drop_old(before))

    async def ended_among(self, ids: list[str]) -> set[str]:
        """Which of these sessions the ledger knows as ended for good."""
        condition = sessions.c.id.in_(ids) & sessions.c.ended.is_(True)
        return {view.id for view in await self._run(lambda: self._sessions(condition))}

    async def page(
        self,
        user: str | None,
        *,
        kind: str | None = None,
        words: Collection[str] | None = None,
        limit: int,
        after: Position | None = None,
    ) -> list[Position]:
        """Positions of at most `limit` sessions behind `after`, newest first; of one user and kind
        (None: any) and with one of these words (None: any)."""
        return await self._run(lambda: self._page(user, kind, words, limit, after))

    async def sessions_of(self, ids: list[str]) -> list[SessionView]:
        """These sessions, in no order; unknown ones are left out."""
        found: list[SessionView] = []
        for start in range(0, len(ids), MAX_IDS):
            some = sessions.c.id.in_(ids[start : start + MAX_IDS])
            found += await self._run(functools.partial(self._sessions, some))
        return found

    async def history(self, session: str, limit: int, before: int | None = None) -> list[Line]:
        """The newest `limit` changes with numbers below `before` (None: the newest of all), with
        their numbers, oldest first."""
        return await self._run(lambda: self._history(session, limit, before))

    async def command(self, user: str, key: str) -> Command | None:
        return await self._run(lambda: self._command(user, key))

    # -- in the thread ----------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._guarded(work)
        )

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except SQLAlchemyError as error:
            raise self._explained(error) from None

    def _explained(self, error: SQLAlchemyError) -> SingularityError:
        text = str(getattr(error, "orig", None) or error)
        where = self._engine.url.render_as_string(hide_password=True) if self._engine else self.url
        if "full" in text or "No space" in text or "disk I/O error" in text:
            return NoSpace(
                f"the scheduler's ledger cannot be written ({text}); nothing was changed: free "
                f"some space for {where} and try again",
                ledger=where,
            )
        if "locked" in text:
            return Unavailable(
                f"the scheduler's ledger is locked by another program for more than "
                f"{BUSY_TIMEOUT_S:g} s; nothing was changed: try again in a moment",
                ledger=where,
            )
        return Unavailable(
            f"the scheduler's ledger cannot be used ({text}); nothing was changed: look at {where}",
            ledger=where,
        )

    def _open(self) -> None:
        sqlite = self.url.startswith("sqlite")
        if sqlite:
            self._engine = create_engine(
                self.url,
                poolclass=StaticPool,  # one connection, used by one thread
                connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S},
            )
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            self._engine = create_engine(self.url, pool_size=1, max_overflow=0, pool_pre_ping=True)
        config = alembic.config.Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
        config.set_main_option("path_separator", "os")
        with self._engine.begin() as connection:
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")
        if sqlite and self._engine.url.database not in (None, "", ":memory:"):
            os.chmod(str(self._engine.url.database), 0o600)

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if self._engine is None:
            raise Unavailable("the scheduler's ledger is closed: the service is stopping")
        with self._engine.begin() as connection:
            yield connection

    def _write(self, decision: Decision, command: Command | None) -> None:
        changed = [view.id for view in decision.sessions]
        with self._transaction() as connection:
            if changed:
                connection.execute(delete(leases).where(leases.c.session.in_(changed)))
            for view in decision.sessions:
                row = rows.session_to_row(view)
                found = connection.execute(
                    update(sessions).where(sessions.c.id == view.id).values(row)
                )
                if not found.rowcount:
                    connection.execute(insert(sessions).values(row))
            held = [row for view in decision.sessions for row in rows.lease_rows(view)]
            if held:
                connection.execute(insert(leases), held)
            if decision.history:
                connection.execute(
                    insert(transitions), [rows.change_to_row(c) for c in decision.history]
                )
            for session, checkpoint in decision.gone:
                connection.execute(_without(session, checkpoint))
            for session, reference in decision.stored:
                if (session, reference.id) not in decision.gone:
                    connection.execute(_without(session, reference.id))
                    row = rows.checkpoint_to_row(session, reference)
                    connection.execute(insert(checkpoints).values(row))
            for mark in decision.marks:
                c = device_marks.c
                connection.execute(
                    delete(device_marks).where(c.node == mark.node, c.uuid == mark.uuid)
                )
                connection.execute(insert(device_marks).values(rows.mark_to_row(mark)))
            if command:
                connection.execute(insert(commands).values(**vars(command)))

    def _forget(self, user: str, key: str) -> None:
        with self._transaction() as connection:
            connection.execute(
                delete(commands).where(commands.c.user == user, commands.c.key == key)
            )

    def _trim(self, before: float) -> int:
        over = sessions.c.ended.is_(True) & (sessions.c.updated_at < before)
        # What is still in the store must not be forgotten before it is deleted there.
        over &= sessions.c.id.not_in(select(checkpoints.c.session))
        old = select(sessions.c.id).where(over)
        with self._transaction() as connection:
            connection.execute(delete(commands).where(commands.c.session.in_(old)))
            connection.execute(delete(commands).where(commands.c.at < before))
            connection.execute(delete(transitions).where(transitions.c.session.in_(old)))
            gone = connection.execute(delete(sessions).where(over))
            return int(gone.rowcount)

    def _dropped(self) -> list[tuple[str, str, CheckpointRef]]:
        query = (
            select(checkpoints, sessions.c.user)
            .join(sessions, sessions.c.id == checkpoints.c.session)
            .where(checkpoints.c.dropped.is_(True))
            .order_by(checkpoints.c.at)
            .limit(MAX_IDS)
        )
        with self._transaction() as connection:
            found = [dict(row) for row in connection.execute(query).mappings()]
        return [(row["session"], row.pop("user"), rows.checkpoint_from_row(row)) for row in found]

    def _forget_checkpoint(self, session: str, checkpoint: str) -> None:
        with self._transaction() as connection:
            connection.execute(_without(session, checkpoint))

    def _drop_old(self, before: float) -> int:
        over = select(sessions.c.id).where(sessions.c.ended.is_(True))
        c = checkpoints.c
        with self._transaction() as connection:
            found = connection.execute(
                update(checkpoints)
                .where(c.session.in_(over), c.at < before, c.dropped.is_(False))
                .values(dropped=True)
            )
            return int(found.rowcount)

    def _marks(self) -> list[DeviceMark]:
        with self._transaction() as connection:
            found = connection.execute(select(device_marks)).mappings().all()
        return [rows.mark_from_row(dict(row)) for row in found]

    def _sessions(self, condition: Any) -> list[SessionView]:
        query = select(sessions).where(condition).order_by(sessions.c.created_at.desc())
        with self._transaction() as connection:
            found = connection.execute(query).mappings().all()
            held = connection.execute(
                select(leases).order_by(leases.c.session, leases.c.virtual_device)
            ).mappings()
            devices: dict[str, list[str]] = {}
            for lease in held:
                devices.setdefault(lease["session"], []).append(lease["device"])
            kept = connection.execute(
                select(checkpoints)
                .where(checkpoints.c.session.in_(select(sessions.c.id).where(condition)))
                .order_by(checkpoints.c.at, checkpoints.c.id)
            ).mappings()
            stored: dict[str, list[CheckpointRef]] = {}
            for row in kept:
                reference = rows.checkpoint_from_row(dict(row))
                stored.setdefault(row["session"], []).append(reference)
        return [
            rows.session_from_row(
                dict(r), tuple(devices.get(r["id"], ())), tuple(stored.get(r["id"], ()))
            )
            for r in found
        ]

    def _page(
        self,
        user: str | None,
        kind: str | None,
        words: Collection[str] | None,
        limit: int,
        after: Position | None,
    ) -> list[Position]:
        c = sessions.c
        query = select(c.created_at, c.id).order_by(c.created_at.desc(), c.id).limit(limit)
        if user is not None:
            query = query.where(c.user == user)
        if kind is not None:
            query = query.where(c.kind == kind)
        if words is not None:
            query = query.where(
                tuple_(c.process_state, c.device_state, c.moving).in_(_states(frozenset(words)))
            )
        if after is not None:
            at, sid = after
            query = query.where(or_(c.created_at < at, and_(c.created_at == at, c.id > sid)))
        with self._transaction() as connection:
            return [(at, sid) for at, sid in connection.execute(query).all()]

    def _history(self, session: str, limit: int, before: int | None) -> list[Line]:
        query = (
            select(transitions)
            .where(transitions.c.session == session)
            .order_by(transitions.c.n.desc())
            .limit(limit)
        )
        if before is not None:
            query = query.where(transitions.c.n < before)
        with self._transaction() as connection:
            found = connection.execute(query).mappings().all()
        return [(int(row["n"]), rows.change_from_row(dict(row))) for row in reversed(found)]

    def _command(self, user: str, key: str) -> Command | None:
        query = select(commands).where(commands.c.user == user, commands.c.key == key)
        with self._transaction() as connection:
            row = connection.execute(query).mappings().first()
        return Command(**row) if row else None


def _without(session: str, checkpoint: str) -> Any:
    c = checkpoints.c
    return delete(checkpoints).where(c.session == session, c.id == checkpoint)


@functools.cache
def _states(words: frozenset[str]) -> list[tuple[str, str, bool]]:
    """Every (process state, device state, moving) that people read as one of `words`."""
    return [
        (process.value, device.value, moving)
        for process in ProcessState
        for device in DeviceState
        for moving in (False, True)
        if word(process, device, moving) in words
    ]


def _prepare_sqlite(connection: Any, _: Any) -> None:
    # We say BEGIN ourselves: the driver's own would start the write transaction too late.
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",  # WAL with less forgets the last commits when the power fails
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
