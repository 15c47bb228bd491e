"""What kind of file a descriptor leads to, and which locks its process holds on it.

Told from the first bytes, by names beside a database, and from `/proc/PID/fdinfo`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Word(str, Enum):
    """A word of a table: its text is its value. What `enum.StrEnum` is from Python 3.11 on."""

    def __str__(self) -> str:
        return str(self.value)


class Kind(Word):
    """What is in a file, as far as it matters for a way back."""

    PLAIN = "plain"
    CONTAINER = "container"
    SQLITE = "sqlite"
    JOURNAL = "journal"
    WAL = "wal"
    WAL_INDEX = "wal index"


_SQLITE = b"SQLite format 3\0"
_CONTAINERS = (
    (0, b"\x89HDF\r\n\x1a\n"),
    (0, b"PAR1"),
    (0, b"ARROW1"),
    (0, b"PK\x03\x04"),
    (0, b"ORC"),
    (0, b"CDF\x01"),
    (0, b"CDF\x02"),
    (0, b"CDF\x05"),
    (8, b"DUCK"),
    (16, b"\xde\xc0\xef\xbe"),  # LMDB
)
"""(where, first bytes) of formats whose programs know places in the file by heart."""

_COMPANIONS = {"-journal": Kind.JOURNAL, "-wal": Kind.WAL, "-shm": Kind.WAL_INDEX}
COMPANIONS = tuple(_COMPANIONS)
"""What SQLite adds to the name of a database."""

HEAD_BYTES = 100
_VERSIONS = slice(18, 20)
"""Of a database's header: 2 where it has a write-ahead log, else 1."""

_PENDING, _LOCK_END = 0x40000000, 0x40000200
_INDEX_LOCKS = range(120, 128)
"""Bytes of a WAL's index that a transaction locks; 128 is held as long as it is open."""


@dataclass(frozen=True)
class Lock:
    """A lock that a process holds on an open file. `style`: "posix", "flock" or "ofd"."""

    style: str
    write: bool
    start: int
    end: int | None
    """The last byte; None: whatever its length."""


def kind_of(path: str, head: bytes) -> Kind:
    """Tell the kind of the file `path`, whose first bytes are `head`."""
    for suffix, kind in _COMPANIONS.items():
        if path.endswith(suffix) and _is_database(path.removesuffix(suffix)):
            return kind
    if head.startswith(_SQLITE):
        return Kind.SQLITE
    if any(head.startswith(magic, at) for at, magic in _CONTAINERS):
        return Kind.CONTAINER
    return Kind.PLAIN


def has_wal(head: bytes) -> bool:
    """Whether the database whose first bytes are `head` has a write-ahead log."""
    return head[_VERSIONS] == b"\x02\x02"


def database_of(path: str, kind: Kind) -> str:
    """Return the path of the database that a file belongs to, its own for any other kind."""
    for suffix, other in _COMPANIONS.items():
        if kind is other:
            return path.removesuffix(suffix)
    return path


def _is_database(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(fd, len(_SQLITE), 0) == _SQLITE
    except OSError:
        return False
    finally:
        os.close(fd)


def in_transaction(kind: Kind, locks: Iterable[Lock], *, wal: bool, writing: bool = False) -> bool:
    """Whether locks that a process holds on a file of a database say that it is in the middle of a
    transaction, or of a query. `writing`: only one that changes the database counts."""
    for lock in locks:
        if lock.style != "posix" or (writing and not lock.write):
            continue
        if kind is Kind.SQLITE and not wal and _PENDING <= lock.start < _LOCK_END:
            return True
        if kind is Kind.WAL_INDEX and lock.start in _INDEX_LOCKS:
            return True
    return False


def parse_locks(fdinfo: str) -> list[Lock]:
    """Read the locks in the text of a `/proc/PID/fdinfo` file. A lease counts as none."""
    found = []
    for line in fdinfo.splitlines():
        words = line.split()
        # lock: 1: POSIX  ADVISORY  WRITE 13152 fe:00:2146423 5 EOF
        if len(words) == 9 and words[0] == "lock:" and words[2] in ("POSIX", "FLOCK", "OFDLCK"):
            style = {"POSIX": "posix", "FLOCK": "flock", "OFDLCK": "ofd"}[words[2]]
            end = None if words[8] == "EOF" else int(words[8])
            found.append(Lock(style, words[4] == "WRITE", int(words[7]), end))
    return found
