"""The IPython history of a session, merged into the one that its user's kernels share.

`python histories.py` reads a JSON document from stdin and prints one; the node agent starts it as
the session's user, outside of the capsule, where no suspend can stop it in the middle of a
transaction. Each kernel writes to a history file of its own in its session's folder
(`singularity_kernel.kernel.history`), so two kernels never have the same database open. Imports
nothing of ours, so that it starts anywhere.

A line is there once, whenever and however often this runs: which lines of which session are in the
shared file is written down in it, in one transaction with the lines. A session that went back to a
checkpoint, or is a fork, gets a number of its own there from its first new line on.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
import sys
import urllib.parse
from dataclasses import dataclass

FILE = "history.sqlite"
"""The history of a kernel in its session's folder."""

ABOUT = "singularity"
"""Table in that file: what the merge has to know."""

_MERGED = "singularity_merged"
"""Table in the shared file: which of its sessions came from which kernel."""

BUSY_S = 5.0
"""So long the shared file may be locked; then it is tried again another time."""

MEMORY_BYTES = 1 << 30
"""So much a merge may use: what is in the kernel's own file is the user's work."""

_SCHEMA = (
    "create table if not exists sessions (session integer primary key autoincrement, "
    "start timestamp, end timestamp, num_cmds integer, remark text)",
    "create table if not exists history (session integer, line integer, source text, "
    "source_raw text, primary key (session, line))",
    "create table if not exists output_history (session integer, line integer, output text, "
    "primary key (session, line), foreign key (session, line) references "
    "history(session, line))",
    f"create table if not exists {_MERGED} (session integer primary key, origin text, "
    "own integer, key text, first integer)",
)
"""The first three are IPython's."""

_ABOUT_SCHEMA = f"create table if not exists {ABOUT} (shared text, origin text, session integer)"

Line = tuple[int, str, str]


@dataclass(frozen=True)
class About:
    """What a kernel wrote down when it got its own history."""

    shared: str
    """Path of the file that all kernels of the user share."""
    origin: str
    """The session that it was first."""
    session: int
    """Its number in both files, from IPython itself."""


def write_about(db: sqlite3.Connection, about: About) -> None:
    """Write down what the merge has to know; in the kernel."""
    with db:
        db.execute(_ABOUT_SCHEMA)
        db.execute(
            f"insert into {ABOUT} values (?, ?, ?)", (about.shared, about.origin, about.session)
        )


def open_to_read(path: str) -> sqlite3.Connection:
    """Open a history file that must exist, to read it."""
    return sqlite3.connect(f"file:{urllib.parse.quote(path)}?mode=ro", uri=True, timeout=BUSY_S)


def merge(own_path: str, session: str, incarnation: int) -> int:
    """Put the lines of a kernel's own history that are new into the shared one; returns how many.

    `session` and `incarnation` are those of the session now. Raises `sqlite3.Error` (locked, full,
    read-only, damaged); then nothing was changed, and another call does it.
    """
    with contextlib.closing(open_to_read(own_path)) as own:
        shared, origin, number = own.execute(f"select * from {ABOUT}").fetchone()
        about = About(shared, origin, number)
        past = own.execute(
            "select session, start, end, num_cmds, remark from sessions where session >= ? "
            "order by session",
            (number,),
        ).fetchall()
        lines = {
            one[0]: own.execute(
                "select line, source, source_raw from history where session = ? order by line",
                (one[0],),
            ).fetchall()
            for one in past
        }
        outputs = {
            one[0]: own.execute(
                "select line, output from output_history where session = ?", (one[0],)
            ).fetchall()
            for one in past
        }
    if not any(lines.values()):
        return 0
    with contextlib.closing(
        sqlite3.connect(about.shared, timeout=BUSY_S, isolation_level=None)
    ) as db:
        db.execute("begin immediate")
        for words in _SCHEMA:
            db.execute(words)
        into = _Shared(db, about, f"{session}.{incarnation}")
        added = sum(into.add(one, lines[one[0]], dict(outputs[one[0]])) for one in past)
        db.execute("commit")
    return added


class _Shared:
    """The shared file, in the middle of a transaction."""

    def __init__(self, db: sqlite3.Connection, about: About, key: str) -> None:
        self._db, self._about, self._key = db, about, key
        self._is_first = key == f"{about.origin}.1"

    def add(
        self, past: tuple[int, str, str, int, str], lines: list[Line], outputs: dict[int, str]
    ) -> int:
        """Put the lines of one session number of the kernel's where they belong."""
        own, start, end, count, remark = past
        into, first = self._place_of(own, start)
        known = self._known(own)
        added = 0
        for line, source, raw in lines:
            if into is None and (line, raw) not in known:
                into, first = self._new(own, start, line), line
            if into is None or line < first or into in known.get((line, raw), ()):
                continue
            if self._has(into, line):  # not what it was: the kernel's history went another way
                into, first = self._new(own, start, line), line
            self._db.execute("insert into history values (?, ?, ?, ?)", (into, line, source, raw))
            if line in outputs:
                self._db.execute(
                    "insert or ignore into output_history values (?, ?, ?)",
                    (into, line, outputs[line]),
                )
            added += 1
        if into is not None and end is not None:
            self._db.execute(
                "update sessions set end = ?, num_cmds = ?, remark = ? where session = ?",
                (end, count, remark, into),
            )
        return added

    def _place_of(self, own: int, start: str) -> tuple[int | None, int]:
        """(the session in the shared file that takes new lines, its first one), None before the
        first new line of a way of its own."""
        found = self._db.execute(
            f"select session, first from {_MERGED} where origin = ? and own = ? and key = ? "
            "order by session desc limit 1",
            (self._about.origin, own, self._key),
        ).fetchone()
        if found is not None:
            return int(found[0]), int(found[1])
        if self._is_first and own == self._about.session and self._is_ours(own, start):
            self._write_down(own, own, 1)
            return own, 1
        return None, 1

    def _is_ours(self, own: int, start: str) -> bool:
        """Whether the number that IPython gave the kernel is still its own: the file may have been
        removed or exchanged since."""
        found = self._db.execute("select start from sessions where session = ?", (own,)).fetchone()
        return found is not None and found[0] == start

    def _known(self, own: int) -> dict[tuple[int, str], set[int]]:
        """(line, source) -> the sessions in the shared file that have it, of this kernel and of
        those that it was before, or was forked from."""
        out: dict[tuple[int, str], set[int]] = {}
        for session, line, raw in self._db.execute(
            f"select session, line, source_raw from history where session in "
            f"(select session from {_MERGED} where origin = ? and own = ?)",
            (self._about.origin, own),
        ):
            out.setdefault((line, raw), set()).add(session)
        return out

    def _has(self, session: int, line: int) -> bool:
        return (
            self._db.execute(
                "select 1 from history where session = ? and line = ?", (session, line)
            ).fetchone()
            is not None
        )

    def _new(self, own: int, start: str, first: int) -> int:
        made = self._db.execute(
            "insert into sessions values (null, ?, null, null, '')", (start,)
        ).lastrowid
        assert made is not None
        self._write_down(made, own, first)
        return made

    def _write_down(self, session: int, own: int, first: int) -> None:
        self._db.execute(
            f"insert or replace into {_MERGED} values (?, ?, ?, ?, ?)",
            (session, self._about.origin, own, self._key, first),
        )


def main() -> None:
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        if not os.path.isfile(asked["path"]):
            json.dump({"added": 0}, sys.stdout)
            return
        added = merge(asked["path"], asked["session"], asked["incarnation"])
        json.dump({"added": added}, sys.stdout)
    except (sqlite3.Error, OSError, MemoryError, TypeError) as error:
        json.dump({"error": str(error) or type(error).__name__}, sys.stdout)


if __name__ == "__main__":
    main()
