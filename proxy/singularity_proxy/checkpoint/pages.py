"""Process images and rings are stored page by page.

The pages of two images of one process are mostly the same, but the changed ones are scattered and
inserted ones shift the rest. So each page is looked up by its hash among the pages of the
checkpoint before: a file becomes runs of pages in older chunks, of zero bytes, and of new pages,
which are gathered in new chunks. The hashes of the pages of a chunk are stored once, in an *index
chunk*.
"""

from __future__ import annotations

from collections.abc import Callable

from .chunks import PAGE, PAGE_ID_BYTES
from .cutting import CHUNK
from .manifest import ZERO, Extent, Manifest

Place = tuple[int, int]
"""(chunk number, page number in it)."""
_MOST_PAGES = CHUNK // PAGE
LEAST_USED = 0.5
"""A chunk of the checkpoint before of which less than this is still used is not built upon: its
other pages would be kept and read for nothing."""


class PageTable:
    """Where pages are that the store already has.

    `reuse` says that a chunk of the checkpoint before is needed and returns its number in the new
    one, or None when it cannot be relied on.
    """

    def __init__(self, reuse: Callable[[int], int | None]) -> None:
        self._reuse = reuse
        self._old: dict[bytes, Place] = {}
        self._new: dict[bytes, Place] = {}

    def load(self, base: Manifest, read: Callable[[int], bytes]) -> None:
        """Learn the pages of the checkpoint before; `read(number)` gives the contents of one of its
        chunks."""
        used = _used_fraction(base)
        for index in base.indexes:
            if not any(used.get(chunk, 0.0) >= LEAST_USED for chunk, _ in index.of):
                continue
            hashes, at = read(index.chunk), 0
            for chunk, count in index.of:
                if used.get(chunk, 0.0) >= LEAST_USED:
                    for page in range(count):
                        start = at + page * PAGE_ID_BYTES
                        self._old[hashes[start : start + PAGE_ID_BYTES]] = (chunk, page)
                at += count * PAGE_ID_BYTES

    def find(self, page: bytes) -> Place | None:
        """The place of a page, by its hash, in a chunk of the new checkpoint."""
        place = self._new.get(page)
        if place is None:
            old = self._old.get(page)
            if old is not None:
                chunk = self._reuse(old[0])
                if chunk is None:
                    del self._old[page]
                    return None
                place = self._new[page] = (chunk, old[1])
        return place

    def add(self, page: bytes, place: Place) -> None:
        """A new page will be there."""
        self._new[page] = place


class PageWriter:
    """Turns blocks of pages into extents; gathers new pages.

    `new_chunk()` gives the number of a chunk to come, `finish(number, contents, hashes)` hands over
    what is in it.
    """

    def __init__(
        self,
        table: PageTable,
        zero_page: bytes,
        new_chunk: Callable[[], int],
        finish: Callable[[int, bytes, bytes], None],
    ) -> None:
        self._table, self._zero = table, zero_page
        self._new_chunk, self._finish = new_chunk, finish
        self._chunk = -1
        self._pieces: list[memoryview] = []
        self._count = 0
        self._hashes = bytearray()

    def add(self, extents: list[Extent], block: memoryview, hashes: bytes) -> int:
        """Append the pages of `block` to a file's extents; how many bytes of it are new."""
        find, zero, new, run = self._table.find, self._zero, 0, 0
        count = len(block) // PAGE
        for number in range(count):
            page = hashes[number * PAGE_ID_BYTES : (number + 1) * PAGE_ID_BYTES]
            place = (ZERO, 0) if page == zero else find(page)
            if place is None:
                self._take(page)
                new += 1
                if self._count == _MOST_PAGES or number + 1 == count:
                    self._end_run(extents, block[run * PAGE : (number + 1) * PAGE])
                    run = number + 1
                continue
            if run < number:
                self._end_run(extents, block[run * PAGE : number * PAGE])
            run = number + 1
            extend(extents, place[0], place[1] * PAGE, PAGE)
        return new * PAGE

    def flush(self) -> None:
        """Hand over the last chunk."""
        if self._pieces:
            self._finish(self._chunk, b"".join(self._pieces), bytes(self._hashes))
            self._pieces, self._count, self._hashes = [], 0, bytearray()

    def _take(self, page: bytes) -> None:
        if not self._count:
            self._chunk = self._new_chunk()
        self._table.add(page, (self._chunk, self._count))
        self._hashes += page
        self._count += 1

    def _end_run(self, extents: list[Extent], run: memoryview) -> None:
        """`run` holds the contents of the pages taken since the last one ended."""
        extend(extents, self._chunk, self._count * PAGE - len(run), len(run))
        self._pieces.append(run)
        if self._count == _MOST_PAGES:
            self.flush()


def extend(extents: list[Extent], chunk: int, at: int, size: int) -> None:
    """Append an extent, or lengthen the last one when it goes on there."""
    if extents:
        last = extents[-1]
        if last.chunk == chunk and (chunk == ZERO or last.at + last.size == at):
            last.size += size
            return
    extents.append(Extent(chunk, at, size))


def _used_fraction(base: Manifest) -> dict[int, float]:
    """How much of each chunk the files of a checkpoint use; 1 at most."""
    used: dict[int, int] = {}
    for part in base.parts:
        for extent in part.extents:
            if extent.chunk != ZERO:
                used[extent.chunk] = used.get(extent.chunk, 0) + extent.size
    return {chunk: min(1.0, count / base.chunks[chunk].size) for chunk, count in used.items()}
