"""The ledger: the only truth about sessions and leases, on disk before anything is acknowledged.

SQLite in WAL mode with full synchronisation by default; PostgreSQL by URL. Each decision is a line
of a record from which the state can be rebuilt (`record`), and the tables that are read hold what
the lines amount to, changed in the same transaction: they are the snapshot a restart reads. All
access goes through one thread of its own, so the event loop never waits for a disk; what may read
for long has another one (`look`), so that decisions do not wait for it either. Nothing of
SQLAlchemy leaves this module and its neighbours: callers give and get the plain values of `core`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from singularity_proxy.errors import Unavailable
from sqlalchemy import Connection, and_, delete, or_, select, tuple_, update

from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.state.devices import DeviceMark
from singularity_scheduler.core.state.experience import Of, placed
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values.administration import Administration, NodeMark, Order
from singularity_scheduler.core.values.model import Change, SessionView
from singularity_scheduler.core.values.states import DeviceState, ProcessState, word
from singularity_scheduler.service.leadership.election import Leadership, Standing

from . import admin_rows, rows, writing
from .database import Database, Lost, parse
from .tables import (
    checkpoint_log,
    checkpoints,
    commands,
    decisions,
    device_marks,
    leases,
    sessions,
    transitions,
)
from .writing import MAX_IDS, Command, Write, Writer, without

T = TypeVar("T")

Line = tuple[int, Change]
"""A change with its number; numbers grow with time."""

CLOSE_S = 5.0
"""How long closing waits for a database that does not answer."""

Position = tuple[float, str]
"""Place in the list of sessions, newest first: (created_at, id) of the last one seen."""

__all__ = ["Command", "Ledger", "Line", "Position", "Standing", "Write"]


@dataclass(frozen=True)
class Difference:
    """Sessions of which the tables say something else than the record."""

    sessions: tuple[str, ...]


class Ledger:
    """Open with `await Ledger.open(url)`, close with `await close()`. Methods raise `NoSpace` when
    the disk is full and `Unavailable` when the database cannot be used now; then nothing of the
    call is in the ledger.

    A service calls `lead` before it reads and writes; from then on every change is refused with
    `Deposed` once another service leads."""

    def __init__(self, url: str) -> None:
        self._database = Database(parse(url))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._aside = Database(self._database.url)
        """A connection for long reads, made when the first one comes."""
        self._onlookers = ThreadPoolExecutor(1, thread_name_prefix="ledger-looks")
        self._writer: Writer | None = None
        self._leadership: Leadership | None = None
        self.on_write: Callable[[float], None] = lambda seconds: None
        """Told how many seconds each transaction of decisions took to become durable."""

    @classmethod
    async def open(cls, url: str) -> Ledger:
        """Connect and bring the schema up to date. Called once at the start of the service."""
        ledger = cls(url)
        try:
            await ledger._run(ledger._database.open)
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @property
    def place(self) -> str:
        """Which database it is, for people; no password in it."""
        return self._database.place

    async def close(self) -> None:
        """Let go of the database; idempotent."""
        with contextlib.suppress(RuntimeError):  # the thread is gone: closed before
            closing = asyncio.ensure_future(self._run(self._database.close))
            await asyncio.wait([closing], timeout=CLOSE_S)
        self._thread.shutdown(wait=False)
        with contextlib.suppress(RuntimeError):
            self._onlookers.submit(self._aside.close)
        self._onlookers.shutdown(wait=False)

    # -- who leads --------------------------------------------------------------------------

    async def lead(self, holder: str, name: str, lease_s: float) -> Standing:
        """Take the leadership if it is free or was this `holder`'s; who has it now."""
        return await self._run(lambda: self._lead(holder, name, lease_s))

    async def renew(self) -> float:
        """Prolong the leadership; the CLOCK_BOOTTIME until which nobody else can have taken it.
        Raises `Deposed` when somebody has."""
        return await self._run(self._led().renew)

    async def resign(self) -> None:
        """Let others take over at once."""
        if self._leadership is not None:
            await self._run(self._leadership.resign)

    # -- writing ----------------------------------------------------------------------------

    async def write(
        self, decision: Decision, command: Command | None = None, event: str = ""
    ) -> None:
        """Make a decision durable: everything of it or nothing."""
        await self.write_all([Write(decision, command, event)])

    async def write_all(self, writes: Sequence[Write]) -> None:
        """Make decisions durable in one transaction: all of them, in this order, or none. Raises
        `InDoubt` when the connection broke at the wrong moment; see `happened`."""
        needed = [write for write in writes if write.needed]
        if needed:
            began = time.monotonic()
            await self._run(lambda: self._write(needed))
            self.on_write(time.monotonic() - began)

    async def happened(self, writes: Sequence[Write]) -> bool:
        """After `InDoubt`, once the database answers again: whether these are durable. If so,
        they count as written from now on."""
        needed = [write for write in writes if write.needed]
        return await self._run(lambda: self._happened(needed))

    async def forget(self, user: str, key: str) -> None:
        """Let a request come again: what it asked for was decided and then failed."""
        await self._run(lambda: self._forget(user, key))

    async def trim(self, before: float) -> int:
        """Forget ended sessions last changed before this time, with their history, and older
        idempotency keys and lines of the record; returns how many sessions."""
        return await self._run(lambda: self._trim(before))

    async def compare(self) -> Difference:
        """Rebuild what is active from the record and compare it with the tables."""
        return await self._run(self._compare)

    # -- reading ----------------------------------------------------------------------------

    async def active(self) -> list[SessionView]:
        """Sessions whose end is not confirmed yet: what the scheduler works on."""
        return await self._run(lambda: self._sessions(sessions.c.ended.is_(False)))

    async def marks(self) -> list[DeviceMark]:
        """What was ever decided on devices: which are drained, which faults are acknowledged."""
        return await self._run(self._marks)

    async def administration(self) -> tuple[Administration, list[NodeMark]]:
        """What administrators have said, and of which nodes."""
        return await self._run(lambda: self._reading(admin_rows.read))

    async def admin_log(
        self, subject: str | None, limit: int, before: int | None = None
    ) -> list[tuple[int, Order]]:
        """The newest `limit` lines of what administrators changed, with numbers below `before`
        (None: the newest of all), newest first; `subject`: of this one alone."""
        return await self._run(
            lambda: self._reading(lambda c: admin_rows.read_log(c, subject, limit, before))
        )

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

    async def drop_ended(self, now: float) -> int:
        """Mark the checkpoints without a name of ended sessions whose time is over, and from which
        no other session comes back, as to be deleted; returns how many. `now`: UNIX seconds."""
        return await self._run(lambda: self._drop_ended(now))

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

    async def experience(self, limit: int) -> list[tuple[Change, Of]]:
        """The newest `limit` changes of all sessions, oldest first, with what counts of each."""
        return await self._run(lambda: self._experience(limit))

    async def command(self, user: str, key: str) -> Command | None:
        return await self._run(lambda: self._command(user, key))

    async def glance(self, read: Callable[[Connection], T]) -> T:
        """What `read` finds, which must be quick: decisions wait for it."""
        return await self._run(lambda: self._reading(read))

    async def look(self, read: Callable[[Connection], T]) -> T:
        """What `read` finds, however long it takes: beside all decisions, on a connection of its
        own. Long reads are done one after the other."""

        def looking() -> T:
            if self._aside.engine is None:
                self._aside.open_again()
            with self._aside.reading() as connection:
                return read(connection)

        return await asyncio.get_running_loop().run_in_executor(
            self._onlookers, functools.partial(_twice, looking)
        )

    # -- in the thread ----------------------------------------------------------------------

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, functools.partial(_twice, work)
        )

    def _led(self) -> Leadership:
        if self._leadership is None:
            raise Unavailable("this scheduler service does not lead: another one may")
        return self._leadership

    def _lead(self, holder: str, name: str, lease_s: float) -> Standing:
        leadership = Leadership(self._database, holder, name, lease_s)
        standing = leadership.take()
        if standing.mine:
            self._leadership, self._writer = leadership, None
        return standing

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that only succeeds while nobody else leads."""
        with self._database.writing() as connection:
            if self._leadership is not None:
                self._leadership.check(connection)
            yield connection

    def _ready(self, connection: Connection) -> Writer:
        """What writes, going on after what is there."""
        if self._writer is None:
            writer = Writer(self._leadership.epoch if self._leadership else 0)
            writer.begin(connection, self._found(connection, sessions.c.ended.is_(False)))
            self._writer = writer
        return self._writer

    def _write(self, writes: Sequence[Write]) -> None:
        at = time.time()
        with self._writing() as connection:
            writer = self._ready(connection)
            # Of what is there, before the first line that follows it.
            snapshot = writer.snapshot(connection, at) if writer.due else None
            writer.write(connection, writes, at)
        writer.wrote(writes)
        if snapshot is not None:
            writer.snapped(snapshot)

    def _happened(self, writes: Sequence[Write]) -> bool:
        # Waits for the broken transaction: it holds the row of the leadership until it is over.
        with self._writing() as connection:
            writer = self._ready(connection)
            c = decisions.c
            line = c.n == writer.number + len(writes), c.leader == writer.leader
            found = connection.execute(select(c.n).where(*line)).first() is not None
        if found:
            writer.wrote(writes)
        return found

    def _compare(self) -> Difference:
        with self._database.reading() as connection:
            rebuilt = writing.rebuilt(connection).sessions
            tables = {v.id: v for v in self._found(connection, sessions.c.ended.is_(False))}
        differing = {s for s in rebuilt.keys() | tables.keys() if rebuilt.get(s) != tables.get(s)}
        return Difference(tuple(sorted(differing)))

    def _reading(self, read: Callable[[Connection], T]) -> T:
        with self._database.reading() as connection:
            return read(connection)

    def _forget(self, user: str, key: str) -> None:
        with self._writing() as connection:
            connection.execute(
                delete(commands).where(commands.c.user == user, commands.c.key == key)
            )

    def _trim(self, before: float) -> int:
        over = sessions.c.ended.is_(True) & (sessions.c.updated_at < before)
        # What is still in the store must not be forgotten before it is deleted there.
        over &= sessions.c.id.not_in(select(checkpoints.c.session))
        old = select(sessions.c.id).where(over)
        with self._writing() as connection:
            connection.execute(delete(commands).where(commands.c.session.in_(old)))
            connection.execute(delete(commands).where(commands.c.at < before))
            connection.execute(delete(transitions).where(transitions.c.session.in_(old)))
            connection.execute(delete(checkpoint_log).where(checkpoint_log.c.session.in_(old)))
            gone = connection.execute(delete(sessions).where(over))
            writing.trim(connection, before)
            return int(gone.rowcount)

    def _dropped(self) -> list[tuple[str, str, CheckpointRef]]:
        query = (
            select(checkpoints, sessions.c.user)
            .join(sessions, sessions.c.id == checkpoints.c.session)
            .where(checkpoints.c.dropped.is_(True))
            .order_by(checkpoints.c.at)
            .limit(MAX_IDS)
        )
        with self._database.reading() as connection:
            found = [dict(row) for row in connection.execute(query).mappings()]
        return [(row["session"], row.pop("user"), rows.checkpoint_from_row(row)) for row in found]

    def _forget_checkpoint(self, session: str, checkpoint: str) -> None:
        with self._writing() as connection:
            connection.execute(without(session, checkpoint))

    def _drop_old(self, before: float) -> int:
        over = select(sessions.c.id).where(sessions.c.ended.is_(True))
        c = checkpoints.c
        with self._writing() as connection:
            found = connection.execute(
                update(checkpoints)
                .where(c.session.in_(over), c.at < before, c.dropped.is_(False))
                .values(dropped=True)
            )
            return int(found.rowcount)

    def _drop_ended(self, now: float) -> int:
        over = select(sessions.c.id).where(sessions.c.ended.is_(True))
        wanted = select(sessions.c.restore_from).where(sessions.c.ended.is_(False))
        c = checkpoints.c
        with self._writing() as connection:
            found = connection.execute(
                update(checkpoints)
                .where(c.session.in_(over), c.name == "", c.undo_until <= now)
                .where(c.dropped.is_(False), c.id.not_in(wanted))
                .values(dropped=True)
            )
            return int(found.rowcount)

    def _marks(self) -> list[DeviceMark]:
        with self._database.reading() as connection:
            found = connection.execute(select(device_marks)).mappings().all()
        return [rows.mark_from_row(dict(row)) for row in found]

    def _sessions(self, condition: Any) -> list[SessionView]:
        with self._database.reading() as connection:
            return self._found(connection, condition)

    def _found(self, connection: Connection, condition: Any) -> list[SessionView]:
        query = select(sessions).where(condition).order_by(sessions.c.created_at.desc())
        found = connection.execute(query).mappings().all()
        some = select(sessions.c.id).where(condition)
        held = connection.execute(
            select(leases.c.session, leases.c.device)
            .where(leases.c.session.in_(some))
            .order_by(leases.c.session, leases.c.virtual_device)
        )
        devices: dict[str, list[str]] = {}
        for session, device in held:
            devices.setdefault(session, []).append(device)
        kept = connection.execute(
            select(checkpoints)
            .where(checkpoints.c.session.in_(some))
            .order_by(checkpoints.c.at, checkpoints.c.id)
        ).mappings()
        stored: dict[str, list[CheckpointRef]] = {}
        for row in kept:
            stored.setdefault(row["session"], []).append(rows.checkpoint_from_row(dict(row)))
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
        with self._database.reading() as connection:
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
        with self._database.reading() as connection:
            found = connection.execute(query).mappings().all()
        return [(int(row["n"]), rows.change_from_row(dict(row))) for row in reversed(found)]

    def _experience(self, limit: int) -> list[tuple[Change, Of]]:
        c = sessions.c
        query = (
            select(transitions, c.tier, c.virtual_devices, c.node)
            .join(sessions, c.id == transitions.c.session)
            .order_by(transitions.c.n.desc())
            .limit(limit)
        )
        with self._database.reading() as connection:
            found = connection.execute(query).mappings().all()
        lines = (
            (rows.change_from_row(dict(row)), Of(row["tier"], row["virtual_devices"], row["node"]))
            for row in found
        )
        return placed(lines)[::-1]

    def _command(self, user: str, key: str) -> Command | None:
        query = select(commands).where(commands.c.user == user, commands.c.key == key)
        with self._database.reading() as connection:
            row = connection.execute(query).mappings().first()
        return Command(**row) if row else None


def _twice(work: Callable[[], T]) -> T:
    try:
        return work()
    except Lost:  # the server was restarted while nothing was asked of it
        return work()


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
