"""Where a file is cut into chunks.

Device state is cut where its storages begin, so that a new storage does not shift all others and
equal storages of two ranks become equal chunks. Everything else is cut at multiples of a fixed
size; process images and rings are looked at page by page instead (`pages`).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from singularity_proxy.checkpoint.device.state import SNAPSHOT_MAGIC

CHUNK = 4 << 20
"""Largest chunk of what is cut here, in bytes."""
BLOCK = 1 << 20
"""Bytes of a file that are looked at together page by page."""
SMALL = 64 << 10
"""Smaller files share chunks with others."""
TINY = 16 << 10
"""So do smaller pieces of large files."""
_LARGE_STORAGE = 128 << 10
_MOST_STORAGES = 4 << 20

_HEAD = struct.Struct("<8sIIQQQQQQ")
_STORAGE = struct.Struct("<QQQII")

ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Piece:
    """Bytes `at` to `at + size` of a file; `hole` when the file has no data there."""

    at: int
    size: int
    hole: bool = False


def cut(fd: int, size: int, *, device: bool) -> Iterator[Piece]:
    """The pieces of an open file, in order and without gaps."""
    regions = [(0, size)]
    if device:
        regions = snapshot_regions(lambda at, count: os.pread(fd, count, at), size)
    holes = Holes(fd, size)
    for start, end in regions:
        for at in range(start, end, CHUNK):
            stop = min(at + CHUNK, end)
            yield Piece(at, stop - at, holes.covers(at, stop))


def blocks(fd: int, size: int) -> Iterator[Piece]:
    """The same for a file that is looked at page by page."""
    holes = Holes(fd, size)
    for at in range(0, size, BLOCK):
        stop = min(at + BLOCK, size)
        yield Piece(at, stop - at, holes.covers(at, stop))


def snapshot_regions(read: ReadAt, size: int) -> list[tuple[int, int]]:
    """Parts of a `.snap` file that are cut apart from each other: the table, each large storage,
    and what lies between large ones. A file that is none is one region: this decides only how well
    chunks are shared, and whether the state is whole is the business of who loads it."""
    head = read(0, _HEAD.size)
    if len(head) < _HEAD.size:
        return [(0, size)]
    magic, _, _, _, _, table_bytes, data, _, _ = _HEAD.unpack(head)
    if magic != SNAPSHOT_MAGIC or table_bytes > size or data > size:
        return [(0, size)]
    places = _storages(read, table_bytes)
    regions: list[tuple[int, int]] = []
    done = 0

    def between(start: int, end: int) -> None:
        if end > start:
            regions.append((start, end))

    if places:
        first = min(max(data, _HEAD.size), places[0][0])
        between(0, first)
        done = first
    for at, bytes_ in places:
        end = at + bytes_
        if bytes_ < _LARGE_STORAGE or at < done or end > size:
            continue
        between(done, at)
        regions.append((at, end))
        done = end
    between(done, size)
    return regions


def _storages(read: ReadAt, table_bytes: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the storages of a snapshot, by offset."""
    raw = read(_HEAD.size, 8)
    count = int.from_bytes(raw, "little")
    if len(raw) < 8 or count > _MOST_STORAGES or 8 + count * _STORAGE.size > table_bytes:
        return []
    table = read(_HEAD.size + 8, count * _STORAGE.size)
    if len(table) < count * _STORAGE.size:
        return []
    return sorted({(at, size) for _, size, at, _, _ in _STORAGE.iter_unpack(table)})


class Holes:
    """The holes of a sparse file, asked from front to back."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size
        self._data = self._hole = 0
        """There is data from `_data` to `_hole`, and none between an earlier run and `_data`."""

    def covers(self, start: int, end: int) -> bool:
        """Whether bytes `start` to `end` are in a hole."""
        while self._hole <= start and self._data < self._size:
            self._data = self._seek(self._hole, os.SEEK_DATA)
            if self._data < self._size:
                self._hole = self._seek(self._data, os.SEEK_HOLE)
        return self._data >= end

    def _seek(self, at: int, what: int) -> int:
        try:
            return os.lseek(self._fd, at, what)
        except OSError as error:  # ENXIO: a hole up to the end; else it cannot be told
            if error.errno == errno.ENXIO or what == os.SEEK_HOLE:
                return self._size
            return at
