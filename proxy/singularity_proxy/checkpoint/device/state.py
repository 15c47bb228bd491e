"""Reads the state files of a ring: `<ring>.snap` and `<ring>.journal`.

The device proxy writes and restores them (`device/src/recovery/snapshot.h`, `journal.h` describe
the same bytes); this module looks at them from Python: the node agent for manifests, people and
tests with `python -m singularity_proxy.checkpoint FILE`. Nothing here needs torch.

The files are their user's, and the agent is root: no number in them is believed before it is known
to be possible.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from singularity_proxy.errors import SingularityError

SNAPSHOT_MAGIC = b"SINGSNAP"
JOURNAL_MAGIC = b"SINGJRNL"
VERSION = 1

_SNAPSHOT = struct.Struct("<8sIIQQQQQQ")
_JOURNAL = struct.Struct("<8sIIQQ")
_JOURNAL_HEADER_BYTES = 4096
_RECORD = struct.Struct("<IHHQIIQ")
_STORAGE = struct.Struct("<QQQII")
_MOST_TABLE_BYTES = 64 << 20
"""Two million storages. All of the table is read into memory, and byte by byte."""
_MARKS = {0xFF01: "failed", 0xFF02: "filler", 0xFF03: "result_bytes", 0xFF04: "result"}
_KINDS = (
    *("none", "op", "define_op", "free_storages", "allocate", "resize", "write", "read", "seed"),
    *("get_rng", "set_rng", "sync", "event_record", "event_time"),
    *("settings", "compile", "join_group", "leave_group", "collective"),
)


class DamagedState(SingularityError):
    """A state file that is incomplete or not one at all; `path` names it."""

    reason = "damaged_state"


_M = TypeVar("_M", bound="_Mapped")


class _Mapped:
    """A file mapped for reading; use it in a `with` block. Nobody may shorten it meanwhile: what
    then touches the missing part is ended by SIGBUS."""

    def __init__(self, path: str | os.PathLike[str], least: int) -> None:
        self.path = os.fspath(path)
        fd = self._open()
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise DamagedState(f"{self.path} is not a plain file", path=self.path)
            if info.st_size < least:
                raise DamagedState(f"{self.path} is too short to be a state file", path=self.path)
            self._map = mmap.mmap(fd, info.st_size, prot=mmap.PROT_READ)
        except ValueError:
            raise DamagedState(f"{self.path} became shorter", path=self.path) from None
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise DamagedState(f"{self.path} is not a plain file", path=self.path) from None
            raise

    def __enter__(self: _M) -> _M:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()


class _Table:
    """Walks over the table of a snapshot."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data, self._at, self._path = data, 0, path

    def take(self, layout: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from("<" + layout, self._data, self._at)
        except struct.error:
            raise DamagedState(f"the table of {self._path} is damaged", path=self._path) from None
        self._at += struct.calcsize("<" + layout)
        return values

    @property
    def at(self) -> int:
        """How many bytes were taken."""
        return self._at

    def bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise DamagedState(f"the table of {self._path} is damaged", path=self._path)
        self._at += size
        return self._data[self._at - size : self._at]


class Snapshot(_Mapped):
    """One `.snap` file. Raises DamagedState when it is none or not whole."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, _SNAPSHOT.size)
        try:
            self._read()
        except BaseException:
            self._map.close()
            raise

    def _read(self) -> None:
        magic, version, device, seq, clock, table_bytes, _, file_bytes, checksum = (
            _SNAPSHOT.unpack_from(self._map)
        )
        if magic != SNAPSHOT_MAGIC or version != VERSION:
            raise DamagedState(
                f"{self.path} is not a device state of version {VERSION}", path=self.path
            )
        if file_bytes > len(self._map) or _SNAPSHOT.size + table_bytes > file_bytes:
            raise DamagedState(f"{self.path} is cut short", path=self.path)
        if table_bytes > _MOST_TABLE_BYTES:
            raise DamagedState(
                f"the table of {self.path} is longer than {_MOST_TABLE_BYTES >> 20} MiB",
                path=self.path,
            )
        data = self._map[_SNAPSHOT.size : _SNAPSHOT.size + table_bytes]
        if _fnv1a(data) != checksum:
            raise DamagedState(f"the table of {self.path} is damaged", path=self.path)
        self.seq: int = seq
        """The last record that is in this state."""
        self.clock_ns: int = clock
        self.device_type = "cuda" if device else "cpu"
        table = _Table(data, self.path)
        self._places: dict[int, tuple[int, int]] = {}
        for _ in range(table.take("Q")[0]):
            storage, size, offset, _, _ = table.take(_STORAGE.format.lstrip("<"))
            self._places[storage] = (offset, size)
        self._check_places(_SNAPSHOT.size + table_bytes, file_bytes)
        self.operators: list[str] = []
        """Name (and .overload) per operator number; empty where a number is unused."""
        for _ in range(table.take("I")[0]):
            name_bytes, overload_bytes, _ = table.take("IIQ")
            name, overload = table.bytes(name_bytes), table.bytes(overload_bytes)
            full = name + (b"." + overload if overload else b"")
            self.operators.append(full.decode("utf-8", "replace"))
        self.generators: dict[int, bytes] = {}
        self._table = data
        self._generators_at: dict[int, int] = {}
        for _ in range(table.take("I")[0]):
            number, size = table.take("QI")
            self._generators_at[number] = table.at
            self.generators[number] = table.bytes(size)
        self.events: dict[int, int] = {}
        for _ in range(table.take("I")[0]):
            number, ns = table.take("QQ")
            self.events[number] = ns
        self.failed: dict[int, str] = {}
        """First storage id of an operation that failed -> its name and error."""
        for _ in range(table.take("I")[0]):
            number, size = table.take("QI")
            self.failed[number] = table.bytes(size).decode("utf-8", "replace")
        seq, size = table.take("QI")
        reply = table.bytes(size)
        self.pending_reply: tuple[int, bytes] | None = (seq, reply) if seq else None
        """A reply that had no room in the ring: (record, reply)."""

    def _check_places(self, begin: int, end: int) -> None:
        """All storages lie in the file, behind the table, and two that share bytes share all: so
        what can be copied of them is not more than the file."""
        done = begin
        for offset, size in sorted(set(self._places.values())):
            if offset > end or size > end - offset or (size and offset < done):
                raise DamagedState(f"the table of {self.path} is damaged", path=self.path)
            done = offset + size if size else done

    @property
    def storage_bytes(self) -> dict[int, int]:
        """Size per storage id, in bytes."""
        return {storage: size for storage, (_, size) in self._places.items()}

    def place(self, number: int) -> int:
        """Where the contents of a storage begin in the file; two numbers may mean one storage."""
        return self._places[number][0]

    def storage(self, number: int, begin: int = 0, count: int | None = None) -> bytes:
        """The contents of one storage, or `count` bytes of it from `begin` on (a copy)."""
        offset, size = self._places[number]
        end = size if count is None else min(size, begin + count)
        return self._map[offset + begin : offset + end]


@dataclass(frozen=True)
class Entry:
    """One entry of a journal."""

    seq: int
    kind: str
    flags: int
    operator: int
    base: int
    body: bytes


class Journal(_Mapped):
    """One `.journal` file; iterate over it for its records. Raises DamagedState."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, _JOURNAL_HEADER_BYTES)
        try:
            base_seq, end = _journal_header(self._map[: _JOURNAL.size], self.path)
            if end > len(self._map):
                raise DamagedState(f"{self.path} is cut short", path=self.path)
        except BaseException:
            self._map.close()
            raise
        self.base_seq: int = base_seq
        """The snapshot that it follows."""
        self.end: int = end
        """Bytes in use, from the start of the file."""

    def __iter__(self) -> Iterator[Entry]:
        at = _JOURNAL_HEADER_BYTES
        while at < self.end:
            if at + _RECORD.size > self.end:
                raise self._damaged(at)
            length, kind, flags, seq, operator, _, base = _RECORD.unpack_from(self._map, at)
            if length < _RECORD.size or length % 8 or at + length > self.end:
                raise self._damaged(at)
            name = _KINDS[kind] if kind < len(_KINDS) else str(kind)
            if kind in _MARKS:
                name = _MARKS[kind]
            body = self._map[at + _RECORD.size : at + length]
            yield Entry(seq, name, flags, operator, base, body)
            at += length

    def _damaged(self, at: int) -> DamagedState:
        return DamagedState(f"{self.path} is damaged behind byte {at}", path=self.path)


def has_records(fd: int, path: str) -> bool:
    """Whether anything follows the snapshot in the journal that is open as `fd`. Its owner may
    change it meanwhile, so it is not mapped. Raises DamagedState and OSError."""
    return _journal_header(os.pread(fd, _JOURNAL.size, 0), path)[1] > _JOURNAL_HEADER_BYTES


def _journal_header(head: bytes, path: str) -> tuple[int, int]:
    """(the snapshot that it follows, its end)."""
    if len(head) == _JOURNAL.size:
        magic, version, _, base_seq, end = _JOURNAL.unpack(head)
        if magic == JOURNAL_MAGIC and version == VERSION and end >= _JOURNAL_HEADER_BYTES:
            return base_seq, end
    raise DamagedState(f"{path} is not a journal of version {VERSION}", path=path)


def write_generators(fd: int, snapshot: Snapshot, states: dict[int, bytes]) -> None:
    """Write other states of its generators, each as long as the one there is, into the file of
    `snapshot`, open as `fd`."""
    table = bytearray(snapshot._table)
    for number, state in states.items():
        at = snapshot._generators_at[number]
        table[at : at + len(state)] = state
    os.pwrite(fd, table, _SNAPSHOT.size)
    os.pwrite(fd, struct.pack("<Q", _fnv1a(table)), _SNAPSHOT.size - 8)


def _fnv1a(data: bytes | bytearray) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
