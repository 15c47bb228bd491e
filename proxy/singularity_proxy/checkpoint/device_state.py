"""Reads the state files of a ring: `<ring>.snap` and `<ring>.journal`.

The device proxy writes and restores them (`device/src/snapshot.h`, `journal.h` describe the same
bytes); this module looks at them from Python: the node agent for manifests, people and tests with
`python -m singularity_proxy.checkpoint FILE`. Nothing here needs torch.
"""

from __future__ import annotations

import mmap
import os
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
_MARKS = {0xFF01: "failed", 0xFF02: "filler"}
_KINDS = (
    *("none", "op", "define_op", "free_storages", "allocate", "resize", "write", "read", "seed"),
    *("get_rng", "set_rng", "sync", "event_record", "event_time"),
    *("settings", "compile"),
)


class DamagedState(SingularityError):
    """A state file that is incomplete or not one at all; `path` names it."""

    reason = "damaged_state"


_M = TypeVar("_M", bound="_Mapped")


class _Mapped:
    """A file mapped for reading; use it in a `with` block."""

    def __init__(self, path: str | os.PathLike[str], least: int) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < least:
                raise DamagedState(f"{self.path} is too short to be a state file", path=self.path)
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

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
        if file_bytes > len(self._map) or _SNAPSHOT.size + table_bytes > len(self._map):
            raise DamagedState(f"{self.path} is cut short", path=self.path)
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
        self.operators: list[str] = []
        """Name (and .overload) per operator number; empty where a number is unused."""
        for _ in range(table.take("I")[0]):
            name_bytes, overload_bytes, _ = table.take("IIQ")
            name, overload = table.bytes(name_bytes), table.bytes(overload_bytes)
            self.operators.append((name + (b"." + overload if overload else b"")).decode())
        self.generators: dict[int, bytes] = {}
        for _ in range(table.take("I")[0]):
            number, size = table.take("QI")
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

    @property
    def storage_bytes(self) -> dict[int, int]:
        """Size per storage id, in bytes."""
        return {storage: size for storage, (_, size) in self._places.items()}

    def storage(self, number: int) -> bytes:
        """The contents of one storage (a copy)."""
        offset, size = self._places[number]
        return self._map[offset : offset + size]


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
        magic, version, _, base_seq, end = _JOURNAL.unpack_from(self._map)
        if magic != JOURNAL_MAGIC or version != VERSION or end > len(self._map):
            self._map.close()
            raise DamagedState(f"{self.path} is not a journal of version {VERSION}", path=self.path)
        self.base_seq: int = base_seq
        """The snapshot that it follows."""
        self.end: int = end
        """Bytes in use, from the start of the file."""

    def __iter__(self) -> Iterator[Entry]:
        at = _JOURNAL_HEADER_BYTES
        while at < self.end:
            length, kind, flags, seq, operator, _, base = _RECORD.unpack_from(self._map, at)
            if length < _RECORD.size or length % 8 or at + length > self.end:
                raise DamagedState(f"{self.path} is damaged behind byte {at}", path=self.path)
            name = _KINDS[kind] if kind < len(_KINDS) else str(kind)
            if kind in _MARKS:
                name = _MARKS[kind]
            body = self._map[at + _RECORD.size : at + length]
            yield Entry(seq, name, flags, operator, base, body)
            at += length


def _fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
