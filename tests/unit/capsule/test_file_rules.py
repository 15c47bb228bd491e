"""The table of what becomes of files outside: complete, and by its two laws."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from singularity_proxy.capsule.files.kinds import (
    Kind,
    Lock,
    database_of,
    has_wal,
    in_transaction,
    kind_of,
    parse_locks,
)
from singularity_proxy.capsule.files.reconcile import Plan, Reconciled, Told, classify
from singularity_proxy.capsule.files.record import Descriptor, OpenFile
from singularity_proxy.capsule.files.rules import RULES, Action, FileClass, Found, Way, decide

EVERY = [
    (file_class, found, way, foreign)
    for file_class, found, way, foreign in itertools.product(FileClass, Found, Way, (False, True))
]
CHANGED = set(Found) - {Found.SAME}
MEMORY = {FileClass.MAPPED, FileClass.LIBRARY}
WRITES = set(FileClass) - MEMORY - {FileClass.READ}


def test_the_table_is_complete() -> None:
    for file_class, found, way, foreign in EVERY:
        assert decide(file_class, found, way, foreign=foreign) in Action


def test_what_a_person_lost_is_told_first() -> None:
    order = [
        Told("/1", FileClass.TRANSACTION, Found.CHANGED, Action.SEVER, Way.ROLLBACK),
        Told("/2", FileClass.APPENDED, Found.MISSING, Action.ANEW, Way.ROLLBACK),
        Told("/3", FileClass.IN_PLACE, Found.CHANGED, Action.SEVER, Way.ROLLBACK),
        Told("/4", FileClass.CONTAINER, Found.CHANGED, Action.SEVER, Way.ROLLBACK),
        Told("/5", FileClass.IN_PLACE, Found.CHANGED, Action.READ, Way.ROLLBACK),
        Told("/6", FileClass.READ, Found.SAME, Action.KEEP, Way.ROLLBACK, unlocked=True),
        Told("/7", FileClass.APPENDED, Found.LONGER, Action.CUT, Way.ROLLBACK, copy="/copy"),
        Told("/8", FileClass.APPENDED, Found.CHANGED, Action.END, Way.ROLLBACK),
    ]
    told = [order[number] for number in (7, 6, 5, 4, 2, 3, 1, 0)]
    said = Reconciled(told, Plan()).sentences()
    assert said == [one.sentence() for one in order]


def test_only_a_rollback_without_others_cuts_and_only_what_merely_grew() -> None:
    for file_class, found, way, foreign in EVERY:
        if decide(file_class, found, way, foreign=foreign) is Action.CUT:
            assert (way, foreign, found) == (Way.ROLLBACK, False, Found.LONGER)
            assert file_class not in (FileClass.DATABASE, FileClass.TRANSACTION, *MEMORY)


def test_a_session_is_refused_only_for_its_memory_or_storage() -> None:
    for file_class, found, way, foreign in EVERY:
        if decide(file_class, found, way, foreign=foreign) is Action.REFUSE:
            assert file_class in MEMORY or found in (Found.ELSEWHERE, Found.UNREACHABLE)


@pytest.mark.parametrize("found", sorted(CHANGED))
def test_after_a_suspend_nothing_in_the_middle_of_a_changed_file_is_written(found: Found) -> None:
    """Whoever changed it was somebody else."""
    for file_class in (FileClass.IN_PLACE, FileClass.CONTAINER, FileClass.TRANSACTION):
        assert decide(file_class, found, Way.RESUME) in (
            Action.READ,
            Action.SEVER,
            Action.REFUSE,
        )


@pytest.mark.parametrize("file_class", sorted(WRITES))
def test_nothing_is_written_to_a_file_that_is_read_only(file_class: FileClass) -> None:
    for way in Way:
        assert decide(file_class, Found.READ_ONLY, way) in (Action.READ, Action.SEVER)


def test_a_database_without_a_transaction_is_left_to_sqlite() -> None:
    for found in (Found.LONGER, Found.REWRITTEN, Found.CHANGED, Found.SHORTER):
        assert {decide(FileClass.DATABASE, found, way) for way in Way} == {Action.KEEP}
        assert {decide(FileClass.TRANSACTION, found, way) for way in Way} == {Action.SEVER}
    assert decide(FileClass.TRANSACTION, Found.SAME, Way.RESUME) is Action.KEEP
    assert decide(FileClass.TRANSACTION, Found.SAME, Way.FORK) is Action.SEVER


def test_every_class_has_every_finding_that_is_not_told_by_itself() -> None:
    by_itself = {Found.REPLACED, Found.LINKED, Found.UNREADABLE}
    by_itself |= {Found.ELSEWHERE, Found.UNREACHABLE}
    for file_class in FileClass:
        assert set(RULES[file_class]) == set(Found) - by_itself


def opened(*held: tuple[int, int], kind: Kind = Kind.PLAIN, use: str = "write") -> OpenFile:
    descriptors = [Descriptor(1, n, flags, at) for n, (flags, at) in enumerate(held)]
    return OpenFile("/x", "outside", use, 100, 0, kind=kind.value, held=descriptors)


APPEND, PLAIN, BOTH = os.O_WRONLY | os.O_APPEND, os.O_WRONLY, os.O_RDWR


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (opened((APPEND, 0)), FileClass.APPENDED),
        (opened((APPEND, 0), (os.O_RDONLY, 7)), FileClass.APPENDED),
        (opened((PLAIN, 100)), FileClass.SEQUENTIAL),
        (opened((BOTH, 100), (APPEND, 3)), FileClass.SEQUENTIAL),
        (opened((BOTH, 50)), FileClass.IN_PLACE),
        (opened((BOTH, 100), (BOTH, 0)), FileClass.IN_PLACE),
        (opened((PLAIN, 100), kind=Kind.CONTAINER), FileClass.CONTAINER),
        (opened((os.O_RDONLY, 0), use="read"), FileClass.READ),
        (opened(use="mapped"), FileClass.MAPPED),
        (opened(use="library"), FileClass.LIBRARY),
    ],
)
def test_how_a_session_uses_a_file(one: OpenFile, expected: FileClass) -> None:
    assert classify(one) is expected


def test_kinds_are_told_by_the_first_bytes(tmp_path: Path) -> None:
    base = str(tmp_path / "x.db")
    sqlite = b"SQLite format 3\0" + bytes(2)
    for head, kind in (
        (sqlite + b"\2\2", Kind.SQLITE),
        (b"\x89HDF\r\n\x1a\n", Kind.CONTAINER),
        (b"PAR1", Kind.CONTAINER),
        (b"ARROW1\0\0", Kind.CONTAINER),
        (b"PK\x03\x04", Kind.CONTAINER),
        (b"checksum" + b"DUCK", Kind.CONTAINER),
        (bytes(16) + b"\xde\xc0\xef\xbe", Kind.CONTAINER),
        (b"1,2,3\n", Kind.PLAIN),
        (b"", Kind.PLAIN),
    ):
        assert kind_of(base, head) is kind
    assert has_wal(sqlite + b"\2\2")
    assert not has_wal(sqlite + b"\1\1")
    assert kind_of(base + "-wal", b"") is Kind.PLAIN  # beside no database
    (tmp_path / "x.db").write_bytes(sqlite)
    for suffix, kind in (("-wal", Kind.WAL), ("-shm", Kind.WAL_INDEX), ("-journal", Kind.JOURNAL)):
        assert kind_of(base + suffix, b"") is kind
        assert database_of(base + suffix, kind) == base
    assert database_of(base, Kind.SQLITE) == base


def test_locks_are_read_from_the_system() -> None:
    text = (
        "pos:\t0\nflags:\t02100001\nmnt_id:\t154\n"
        "lock:\t1: FLOCK  ADVISORY  WRITE 13152 fe:00:2146422 0 EOF\n"
        "lock:\t2: POSIX  ADVISORY  READ 13152 fe:00:2146423 1073741826 1073742335\n"
        "lock:\t3: OFDLCK  ADVISORY  READ -1 fe:00:2146423 5 5\n"
        "lock:\t4: LEASE  ACTIVE  READ 13152 fe:00:2146423 0 EOF\n"
    )
    assert parse_locks(text) == [
        Lock("flock", True, 0, None),
        Lock("posix", False, 1073741826, 1073742335),
        Lock("ofd", False, 5, 5),
    ]


def test_which_locks_of_sqlite_are_a_transaction() -> None:
    shared = Lock("posix", False, 0x40000002, 0x400001FF)
    reserved = Lock("posix", True, 0x40000001, 0x40000001)
    assert in_transaction(Kind.SQLITE, [shared], wal=False)
    assert not in_transaction(Kind.SQLITE, [shared], wal=True)  # held as long as it is open
    assert not in_transaction(Kind.SQLITE, [shared], wal=False, writing=True)
    assert in_transaction(Kind.SQLITE, [reserved], wal=False, writing=True)
    writer, reader, alive = (
        Lock("posix", write, at, at) for write, at in ((True, 120), (False, 124), (False, 128))
    )
    assert in_transaction(Kind.WAL_INDEX, [writer], wal=True, writing=True)
    assert in_transaction(Kind.WAL_INDEX, [reader, alive], wal=True)
    assert not in_transaction(Kind.WAL_INDEX, [alive], wal=True)
    assert not in_transaction(Kind.PLAIN, [writer], wal=False)
