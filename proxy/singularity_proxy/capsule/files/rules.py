"""What becomes of a file outside of a session that its processes have open when they come back.

One table, `RULES`: the class of the file, how it was found, and how the session comes back. The
first law of it: no byte is cut, replaced or deleted that somebody else wrote since. The second: the
session comes back, and what is not as it was is told by name. Pure; `record` looks and acts.
"""

from __future__ import annotations

from .kinds import Word


class Way(Word):
    """How a session comes back."""

    RESUME = "resume"
    """After a suspend or a move: it did not run since, so every change is somebody else's."""
    ROLLBACK = "rollback"
    """To a checkpoint after which it went on: a change can be its own."""
    FORK = "fork"
    """As another session, beside the first one, which may still write to its files."""


class FileClass(Word):
    """How the session uses a file."""

    APPENDED = "appended"
    """Every descriptor that writes has O_APPEND: the system puts what it writes at the end."""
    SEQUENTIAL = "sequential"
    """Those that have not stood at the end: a program that writes row after row."""
    IN_PLACE = "in place"
    """It writes somewhere in the middle."""
    CONTAINER = "container"
    """HDF5, Parquet, Arrow, ZIP (npz, torch.save), DuckDB, LMDB: the program knows places in it."""
    DATABASE = "database"
    """SQLite, with journal, WAL and its index, without a transaction: it looks again by itself."""
    TRANSACTION = "transaction"
    """The same in the middle of a transaction, or of a query that is not at its end."""
    READ = "read"
    MAPPED = "mapped"
    """Data in memory by mmap."""
    LIBRARY = "library"
    """Code in memory."""


class Found(Word):
    """How the file is, held against what the checkpoint knows."""

    SAME = "same"
    LONGER = "longer"
    """And the same up to its old length."""
    REWRITTEN = "rewritten"
    """Longer, and not the same up to its old length."""
    CHANGED = "changed"
    """Of the same length, with another content."""
    SHORTER = "shorter"
    MISSING = "missing"
    REPLACED = "replaced"
    """A folder, a pipe, or a database that is none any more."""
    LINKED = "linked"
    """A link in its place leads to another file, which does not begin with what it had."""
    READ_ONLY = "read-only"
    """The user may not write to it, or its file system is read-only."""
    UNREADABLE = "unreadable"
    """The user may not open it at all."""
    UNREACHABLE = "unreachable"
    """Its storage gives an error."""
    ELSEWHERE = "elsewhere"
    """Missing with its folder: home is not mounted, or not shared with this node."""


class Action(Word):
    """What is done with the session's descriptors, or with the file."""

    KEEP = "keep"
    """As they were."""
    END = "end"
    """Moved to the present end, where O_APPEND would write."""
    CUT = "cut"
    """The file is copied aside and cut to its old length. Only where nobody else is known to have
    written to it; else END, or READ for what writes in the middle."""
    ASIDE = "aside"
    """A copy of the file as it was, beside it, in its place; READ where that cannot be made."""
    READ = "read"
    """Open for reading only: a program that writes gets an error."""
    SEVER = "sever"
    """Every use is an error."""
    ANEW = "anew"
    """An empty file is made in its place."""
    REFUSE = "refuse"
    """The session cannot come back until the file does: a part of its memory, or storage that does
    not answer or is not on this node."""


_KEEP = (Action.KEEP,) * 3
_READ = (Action.READ,) * 3
_SEVER = (Action.SEVER,) * 3
_REFUSE = (Action.REFUSE,) * 3
_ANEW = (Action.ANEW, Action.ANEW, Action.SEVER)
_LONGER_IN_PLACE = (Action.READ, Action.CUT, Action.ASIDE)

RULES: dict[FileClass, dict[Found, tuple[Action, Action, Action]]] = {
    FileClass.APPENDED: {
        Found.SAME: _KEEP,
        Found.LONGER: (Action.KEEP, Action.CUT, Action.KEEP),
        Found.REWRITTEN: _KEEP,
        Found.CHANGED: _KEEP,
        Found.SHORTER: _KEEP,
        Found.MISSING: _ANEW,
        Found.READ_ONLY: _READ,
    },
    FileClass.SEQUENTIAL: {
        Found.SAME: (Action.KEEP, Action.KEEP, Action.ASIDE),
        Found.LONGER: (Action.END, Action.CUT, Action.ASIDE),
        Found.REWRITTEN: (Action.END, Action.END, Action.READ),
        Found.CHANGED: (Action.KEEP, Action.KEEP, Action.READ),
        Found.SHORTER: (Action.END, Action.END, Action.READ),
        Found.MISSING: _ANEW,
        Found.READ_ONLY: _READ,
    },
    FileClass.IN_PLACE: {
        Found.SAME: (Action.KEEP, Action.KEEP, Action.ASIDE),
        Found.LONGER: _LONGER_IN_PLACE,
        Found.REWRITTEN: _READ,
        Found.CHANGED: (Action.READ, Action.KEEP, Action.READ),
        Found.SHORTER: _READ,
        Found.MISSING: _SEVER,
        Found.READ_ONLY: _READ,
    },
    FileClass.CONTAINER: {
        Found.SAME: (Action.KEEP, Action.KEEP, Action.ASIDE),
        Found.LONGER: _LONGER_IN_PLACE,
        Found.REWRITTEN: _READ,
        Found.CHANGED: _READ,
        Found.SHORTER: _READ,
        Found.MISSING: _SEVER,
        Found.READ_ONLY: _READ,
    },
    FileClass.DATABASE: {
        Found.SAME: _KEEP,
        Found.LONGER: _KEEP,
        Found.REWRITTEN: _KEEP,
        Found.CHANGED: _KEEP,
        Found.SHORTER: _KEEP,
        Found.MISSING: _SEVER,
        Found.READ_ONLY: _READ,
    },
    FileClass.TRANSACTION: {
        Found.SAME: (Action.KEEP, Action.KEEP, Action.SEVER),
        Found.LONGER: _SEVER,
        Found.REWRITTEN: _SEVER,
        Found.CHANGED: _SEVER,
        Found.SHORTER: _SEVER,
        Found.MISSING: _SEVER,
        Found.READ_ONLY: _SEVER,
    },
    FileClass.READ: {
        Found.SAME: _KEEP,
        Found.LONGER: _KEEP,
        Found.REWRITTEN: _KEEP,
        Found.CHANGED: _KEEP,
        Found.SHORTER: _KEEP,
        Found.MISSING: _SEVER,
        Found.READ_ONLY: _KEEP,
    },
    FileClass.MAPPED: {
        Found.SAME: _KEEP,
        Found.LONGER: _KEEP,
        Found.REWRITTEN: _KEEP,
        Found.CHANGED: _KEEP,
        Found.SHORTER: _REFUSE,
        Found.MISSING: _REFUSE,
        Found.READ_ONLY: _REFUSE,
    },
    FileClass.LIBRARY: {
        Found.SAME: _KEEP,
        Found.LONGER: _REFUSE,
        Found.REWRITTEN: _REFUSE,
        Found.CHANGED: _KEEP,
        Found.SHORTER: _REFUSE,
        Found.MISSING: _REFUSE,
        Found.READ_ONLY: _KEEP,
    },
}
"""For each class and finding what is done on a resume, a rollback and a fork."""

_MEMORY = (FileClass.MAPPED, FileClass.LIBRARY)


def decide(file_class: FileClass, found: Found, way: Way, *, foreign: bool = False) -> Action:
    """Return what is done. `foreign`: somebody else is known to have the file open for writing, or
    to have written to it, so a rollback is as careful as a resume."""
    if found in (Found.ELSEWHERE, Found.UNREACHABLE):
        return Action.REFUSE
    if found in (Found.REPLACED, Found.LINKED, Found.UNREADABLE):
        return Action.REFUSE if file_class in _MEMORY else Action.SEVER
    if foreign and way is Way.ROLLBACK:
        way = Way.RESUME
    return RULES[file_class][found][list(Way).index(way)]
