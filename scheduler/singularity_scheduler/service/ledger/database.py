"""The database behind the ledger: SQLite or PostgreSQL by URL, its schema, its troubles in words.

No sentence, field or log line from here holds a password: a database is named by its kind, host and
name only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from singularity_proxy.errors import BadRequest, NoSpace, SingularityError, Unavailable
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import QueuePool, StaticPool

BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for another one that has what it needs (a backup, a shell)."""

CONNECT_S = 5
"""How long a connection to PostgreSQL may take, in whole seconds."""

STUCK_S = 10.0
"""PostgreSQL ends our transaction when nothing was heard of us in the middle of it for so long: a
service that stands still must not keep others from taking over."""

DRIVER = "postgresql+psycopg"

_MIGRATIONS = Path(__file__).with_name("migrations")

MIGRATING = 0x51A6
"""The advisory lock under which the schema is changed: one service at a time."""


class Refused(Unavailable):
    """The database does not take what was to be written, and would not take it again."""


class Lost(Unavailable):
    """The connection broke, and nothing was changed; the next one may be better."""


class InDoubt(Unavailable):
    """The connection broke while the database was told to commit: it has done so or not."""


def parse(text: str) -> URL:
    """The URL of a ledger; raises `BadRequest`. Plain ``postgresql://`` means our driver."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise BadRequest(
            "SchedulerApp.ledger_url is no database URL: write for example "
            "postgresql://scheduler@db.example.org/singularity"
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername=DRIVER)
    if url.drivername not in ("sqlite", "sqlite+pysqlite", DRIVER):
        raise BadRequest(
            f"a ledger cannot be in {url.drivername}: SchedulerApp.ledger_url must begin with "
            "sqlite:/// or postgresql://"
        )
    return url


def place(url: URL) -> str:
    """Which database it is, for people."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database or ':memory:'}"
    host = url.host or _first(url.query.get("host")) or "this machine"
    port = f":{url.port}" if url.port else ""
    name = url.database or _first(url.query.get("dbname")) or ""
    return f"PostgreSQL {name} at {host}{port}"


def _first(value: Any) -> str:
    return str(value[0] if isinstance(value, tuple) else value or "")


class Database:
    """One connection, for one thread. Every method raises the typed errors of `explained`."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.place = place(url)
        self.sqlite = url.get_backend_name() == "sqlite"
        self.engine: Engine | None = None

    def open(self) -> None:
        """Connect and bring the schema up to date."""
        try:
            self.engine = self._engine()
        except (ModuleNotFoundError, NoSuchModuleError):
            raise Unavailable(
                "the scheduler's ledger is to be in PostgreSQL, and its driver is not installed: "
                "pip install 'jupyter-singularity[postgres]'"
            ) from None
        with self.guarded():
            with self.engine.connect() as connection:
                if not self.sqlite:
                    self._check_server(connection)
                current = _revision(connection) == newest_revision()
                connection.rollback()
                if not current:
                    self._migrate(connection)
            if self.sqlite and self.url.database not in (None, "", ":memory:"):
                os.chmod(str(self.url.database), 0o600)

    def close(self) -> None:
        """Idempotent."""
        if self.engine is not None:
            self.engine.dispose()
            self.engine = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A ``with`` block in which to read."""
        with self.guarded(), self._opened().connect() as connection:
            connection.execution_options(reads=True)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A ``with`` block that is one transaction: durable after it, or not there at all
        (`InDoubt`: nobody knows)."""
        with self.guarded(), self._opened().connect() as connection:
            transaction = connection.begin()
            try:
                yield connection
            except BaseException:
                with contextlib.suppress(DBAPIError):  # a broken connection has rolled back
                    transaction.rollback()
                raise
            try:
                transaction.commit()
            except DBAPIError as error:
                if error.connection_invalidated and not self.sqlite:
                    raise InDoubt(
                        f"the connection to the scheduler's ledger ({self.place}) broke at the "
                        "end of a change: whether it was made is known when the database answers "
                        "again",
                        ledger=self.place,
                    ) from None
                raise

    def open_again(self) -> None:
        """Connect to a database that another `Database` has opened: its schema is up to date."""
        with self.guarded():
            self.engine = self._engine()

    def _opened(self) -> Engine:
        if self.engine is None:
            raise Unavailable("the scheduler's ledger is closed: the service is stopping")
        return self.engine

    # -- its troubles -----------------------------------------------------------------------

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise self.explained(error) from None

    def explained(self, error: SQLAlchemyError) -> SingularityError:
        """The typed error for people."""
        said = self._said(error)
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return Lost(_no_answer(self.place, said).message, ledger=self.place)
        known = next((make for words, make in _TROUBLES if any(w in said for w in words)), None)
        if known is not None:
            return known(self.place, said)
        if isinstance(error, IntegrityError | DataError | ProgrammingError):
            return Refused(
                f"the scheduler's ledger does not take this ({said}); nothing was changed",
                ledger=self.place,
            )
        return Unavailable(
            f"the scheduler's ledger cannot be used ({said}); nothing was changed: look at "
            f"{self.place}",
            ledger=self.place,
        )

    def _said(self, error: SQLAlchemyError) -> str:
        """The database's own words on one line, without anything of ours in them."""
        own = getattr(error, "orig", None) or error
        diagnostics = getattr(own, "diag", None)
        words = getattr(diagnostics, "message_primary", None) or str(own)
        if self.url.password:
            words = words.replace(str(self.url.password), "***")
        return " ".join(words.split())

    # -- the engine -------------------------------------------------------------------------

    def _engine(self) -> Engine:
        if self.sqlite:
            engine = create_engine(
                self.url,
                poolclass=StaticPool,  # one connection, used by one thread
                connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S},
            )
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        asked = {
            "connect_timeout": CONNECT_S,
            "application_name": "jupyter-singularity",
            "tcp_user_timeout": int(STUCK_S * 1000),
        }
        engine = create_engine(
            self.url,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            # What the URL says goes first.
            connect_args={k: v for k, v in asked.items() if k not in self.url.query},
        )
        event.listen(engine, "connect", _prepare_postgresql)
        return engine

    def _check_server(self, connection: Connection) -> None:
        if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
            raise _read_only(self.place, "it is a standby server or set to read-only")
        if connection.execute(text("SHOW server_encoding")).scalar() != "UTF8":
            raise Unavailable(
                f"the database of the scheduler's ledger ({self.place}) cannot hold every name: "
                "create it with the encoding UTF8",
                ledger=self.place,
            )

    def _refuse_version(self, found: str, first: str, newest: str) -> Unavailable:
        """Say what to do with tables of the version `found`, which is not from `first` to
        `newest`."""
        if found < first:
            whose = "an unreleased version from before this one"
            what = "end its sessions with that version, then move it away and begin with a new one"
        else:
            whose = "a newer version"
            what = "install that version, or restore the backup from before it"
        return Unavailable(
            f"the scheduler's ledger ({self.place}) was written by {whose} (its tables are of "
            f"version {found}, this one reads {first} to {newest}); nothing was changed: {what}",
            ledger=self.place,
        )

    def _migrate(self, connection: Connection) -> None:
        # Loaded here alone: nearly every start finds the tables as they are to be, and loading it
        # takes as long as a tenth of a start.
        import alembic.command
        from alembic.config import Config
        from alembic.migration import MigrationContext
        from alembic.script import ScriptDirectory
        from alembic.util import CommandError

        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.set_main_option("path_separator", "os")
        try:
            with connection.begin():
                if not self.sqlite:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATING})"))
                script = ScriptDirectory.from_config(config)
                found = MigrationContext.configure(connection).get_current_revision()
                known = {r.revision for r in script.walk_revisions()}
                if found is not None and found not in known:
                    raise self._refuse_version(found, min(known), max(known))
                config.attributes["connection"] = connection
                alembic.command.upgrade(config, "head")
        except CommandError as error:
            raise Unavailable(
                f"the tables of the scheduler's ledger ({self.place}) could not be brought up to "
                f"date ({error}); nothing was changed",
                ledger=self.place,
            ) from None


def _revision(connection: Connection) -> str | None:
    """The version that the tables are of; None when there are none, or it is not one version."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all()
    return str(found[0]) if len(found) == 1 else None


def newest_revision() -> str:
    """The version that the tables are to be of; by the names of the migrations' files."""
    return max(path.name[1:5] for path in (_MIGRATIONS / "versions").glob("v[0-9]*.py"))


def _full(where: str, said: str) -> SingularityError:
    return NoSpace(
        f"the scheduler's ledger cannot be written ({said}); nothing was changed: free "
        f"some space for {where} and try again",
        ledger=where,
    )


def _locked(where: str, said: str) -> SingularityError:
    return Unavailable(
        f"the scheduler's ledger is locked by another program for more than "
        f"{BUSY_TIMEOUT_S:g} s; nothing was changed: try again in a moment",
        ledger=where,
    )


def _read_only(where: str, said: str) -> SingularityError:
    return Unavailable(
        f"the scheduler's ledger ({where}) can only be read ({said}); nothing was changed: let the "
        "scheduler write there, or name another database",
        ledger=where,
    )


def _no_entry(where: str, said: str) -> SingularityError:
    return Unavailable(
        f"the database of the scheduler's ledger ({where}) does not let the scheduler in ({said}): "
        "look at the user and the password of SchedulerApp.ledger_url and at pg_hba.conf",
        ledger=where,
    )


def _missing(where: str, said: str) -> SingularityError:
    return Unavailable(
        f"there is no database for the scheduler's ledger ({where}: {said}): create it, or correct "
        "SchedulerApp.ledger_url",
        ledger=where,
    )


def _no_answer(where: str, said: str) -> SingularityError:
    return Unavailable(
        f"the database of the scheduler's ledger ({where}) does not answer ({said}); nothing was "
        "changed: try again in a moment",
        ledger=where,
    )


_TROUBLES = (
    (("disk is full", "No space", "disk I/O error", "could not extend file"), _full),
    (("locked", "lock timeout"), _locked),
    (("readonly database", "read-only transaction"), _read_only),
    (
        ("authentication failed", "no password supplied", "pg_hba.conf", "role ", "permission "),
        _no_entry,
    ),
    (('database "', "unable to open database file"), _missing),
    (
        (
            "Connection refused",
            "No such file or directory",
            "could not translate host name",
            "failed to resolve host",
            "timeout expired",
            "server closed the connection",
            "terminating connection",
            "connection is lost",
            "connection is closed",
            "consuming input failed",
            "sending query failed",
            "starting up",
            "shutting down",
            "recovery mode",
        ),
        _no_answer,
    ),
)
"""What databases say -> what we say; the first that fits."""


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
    reads = connection.get_execution_options().get("reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _prepare_postgresql(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {int(STUCK_S * 1000)}")
        cursor.execute("SHOW synchronous_commit")
        if cursor.fetchone()[0] == "off":  # a commit must be on disk when it is acknowledged
            cursor.execute("SET synchronous_commit = on")
    connection.commit()
