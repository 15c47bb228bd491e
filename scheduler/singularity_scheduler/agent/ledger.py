"""What the agent must still know after it was killed: one SQLite file in its state folder.

Sessions, identities, leases and the answers to commands, each as one JSON document. Every write is
one transaction, made before its effect is acknowledged. SQLite writes ahead (WAL) without a sync
per commit: the ledger has to survive the agent, while a machine that loses power loses the very
processes it describes.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from singularity_proxy.errors import NoSpace, SingularityError

KEEP_ANSWERS = 32
"""How many of a session's newest command answers are kept for repeated commands."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS document (
    kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answer (
    number INTEGER PRIMARY KEY, session TEXT NOT NULL, command TEXT NOT NULL, body TEXT NOT NULL,
    UNIQUE (session, command)
);
"""


class Ledger:
    """The agent's memory on disk. Synchronous and fast (well below a millisecond per write)."""

    def __init__(self, path: str) -> None:
        self.path = path
        old_mask = os.umask(0o077)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
        finally:
            os.umask(old_mask)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)

    def _write(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in statements:
                    self._db.execute(sql, values)
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if "full" in str(error):
                raise NoSpace(
                    f"the node agent cannot write its ledger {self.path} (the disk is full); "
                    "nothing was changed: free disk space and try again",
                    path=self.path,
                ) from None
            raise SingularityError(
                f"the node agent cannot write its ledger {self.path} ({error}); nothing changed",
                path=self.path,
            ) from None

    def put(self, kind: str, name: str, body: Any) -> None:
        """Store the document (`kind`, `name`); raises `NoSpace` and keeps the old one."""
        self._write(
            (
                "INSERT INTO document VALUES (?, ?, ?) "
                "ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body",
                (kind, name, json.dumps(body, separators=(",", ":"))),
            )
        )

    def get(self, kind: str, name: str) -> Any:
        """The document, or None."""
        row = self._db.execute(
            "SELECT body FROM document WHERE kind = ? AND name = ?", (kind, name)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def all(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Every (name, document) of `kind`, by name."""
        rows = self._db.execute(
            "SELECT name, body FROM document WHERE kind = ? ORDER BY name", (kind,)
        ).fetchall()
        for name, body in rows:
            yield name, json.loads(body)

    def drop(self, kind: str, name: str) -> None:
        """Forget the document; nothing happens when there is none."""
        self._write(("DELETE FROM document WHERE kind = ? AND name = ?", (kind, name)))

    def put_answer(self, session: str, command: str, body: Any) -> None:
        """Remember what `command` ("method/epoch/seq") of `session` was answered."""
        self._write(
            (
                "INSERT OR REPLACE INTO answer (session, command, body) VALUES (?, ?, ?)",
                (session, command, json.dumps(body, separators=(",", ":"))),
            ),
            (
                "DELETE FROM answer WHERE session = ? AND number NOT IN "
                "(SELECT number FROM answer WHERE session = ? ORDER BY number DESC LIMIT ?)",
                (session, session, KEEP_ANSWERS),
            ),
        )

    def answer(self, session: str, command: str) -> Any:
        """The stored answer, or None."""
        row = self._db.execute(
            "SELECT body FROM answer WHERE session = ? AND command = ?", (session, command)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def forget_session(self, session: str) -> None:
        """Drop the session's document and answers."""
        self._write(
            ("DELETE FROM document WHERE kind = 'session' AND name = ?", (session,)),
            ("DELETE FROM answer WHERE session = ?", (session,)),
        )

    def close(self) -> None:
        self._db.close()
