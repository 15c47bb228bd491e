"""Puts small files and small pieces of large ones together into chunks.

A chunk is closed where the contents say so, not at a count: a file that is added or changed alters
its own chunk and leaves the others as they were.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from singularity_proxy.checkpoint.manifest import Extent

_LEAST, _MOST = 64 << 10, 512 << 10
_ONE_IN = 8


class Packer:
    """Gathers pieces; `finish(number, contents)` hands over a chunk."""

    def __init__(self, new_chunk: Callable[[], int], finish: Callable[[int, bytes], None]) -> None:
        self._new_chunk, self._finish = new_chunk, finish
        self._pieces: list[bytes] = []
        self._size = 0
        self._number = -1

    def add(self, data: bytes) -> Extent:
        """Where the piece will be."""
        if not self._pieces:
            self._number = self._new_chunk()
        extent = Extent(self._number, self._size, len(data))
        self._pieces.append(data)
        self._size += len(data)
        boundary = self._size >= _LEAST and zlib.crc32(data) % _ONE_IN == 0
        if boundary or self._size >= _MOST:
            self.flush()
        return extent

    def flush(self) -> None:
        """Hand over the last chunk."""
        if self._pieces:
            data, self._pieces, self._size = b"".join(self._pieces), [], 0
            self._finish(self._number, data)
