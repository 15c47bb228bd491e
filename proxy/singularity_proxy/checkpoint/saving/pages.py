"""Process images and rings are stored page by page.

The pages of two images of one process are mostly the same, but the changed ones are scattered and
inserted ones shift the rest. So each page is looked up by its hash among the pages of the
checkpoint before: a file becomes runs of pages in older chunks, of zero bytes, and of new pages,
which are gathered in new chunks. The hashes of the pages of a chunk are stored once, in an *index
chunk*.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from singularity_proxy.checkpoint.chunks import PAGE, PAGE_ID_BYTES
from singularity_proxy.checkpoint.manifest import ZERO, Extent, Manifest

from .cutting import CHUNK

Place = tuple[int, int]
"""(chunk number, page number in it)."""
_MOST_PAGES = CHUNK // PAGE
_PAGE_BITS = 16
"""A place in one number: the chunk's above so many bits, the page's in them."""
_PAGE_MASK = (1 << _PAGE_BITS) - 1
LEAST_USED = 0.5
"""A chunk of the checkpoint before of which less than this is still used is not built upon: its
other pages would be kept and read for nothing."""


class PageTable:
    """Where pages are that the store already has.

    Of the checkpoint before, which has many, hashes and places are in flat arrays with an open hash
    table over them: 40 bytes a page. As objects they would be 200, and when those are gone the
    allocator keeps what lay between them. `hash` is seeded by the process, so nobody can choose
    pages that all come to one place of the table.

    `reuse` says that a chunk of the checkpoint before is needed and returns its number in the new
    one, or None when it cannot be relied on.
    """

    def __init__(self, reuse: Callable[[int], int | None]) -> None:
        self._reuse = reuse
        self._reused: dict[int, int | None] = {}
        self._hashes = b""
        self._places: array[int] = array("Q")
        self._slots: array[int] = array("I", [0])
        """1 + the number of a page in the arrays above, 0 where there is none; a power of two, at
        least twice as many as pages."""
        self._new: dict[bytes, int] = {}

    def load(
        self, base: Manifest, read: Callable[[int], bytes], only: AbstractSet[bytes] | None = None
    ) -> None:
        """Learn the pages of the checkpoint before, or those of them that are in `only`;
        `read(number)` gives the contents of one of its chunks."""
        kept = bytearray()
        try:
            for chunk, hashes in _indexed_pages(base, read):
                first, count = chunk << _PAGE_BITS, len(hashes) // PAGE_ID_BYTES
                if only is None:
                    kept += hashes
                    self._places.extend(range(first, first + count))
                    continue
                for number in range(count):
                    page = hashes[number * PAGE_ID_BYTES : (number + 1) * PAGE_ID_BYTES]
                    if page in only:
                        kept += page
                        self._places.append(first + number)
        finally:  # when one index cannot be read, the others still count
            self._hashes = bytes(kept)
            self._fill_slots()

    def _fill_slots(self) -> None:
        hashes, count = self._hashes, len(self._places)
        self._slots = slots = array("I", [0]) * (2 << count.bit_length())
        mask = len(slots) - 1
        for row in range(1, count + 1):
            slot = hash(hashes[(row - 1) * PAGE_ID_BYTES : row * PAGE_ID_BYTES]) & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = row

    def find(self, page: bytes) -> Place | None:
        """The place of a page, by its hash, in a chunk of the new checkpoint."""
        place = self._new.get(page)
        if place is not None:
            return place >> _PAGE_BITS, place & _PAGE_MASK
        if not self._hashes:
            return None
        slots = self._slots
        mask = len(slots) - 1
        slot = hash(page) & mask
        while row := slots[slot]:
            if self._hashes[(row - 1) * PAGE_ID_BYTES : row * PAGE_ID_BYTES] == page:
                place = self._places[row - 1]
                chunk = self._number_of(place >> _PAGE_BITS)
                return None if chunk is None else (chunk, place & _PAGE_MASK)
            slot = (slot + 1) & mask
        return None

    def _number_of(self, chunk: int) -> int | None:
        if chunk not in self._reused:
            self._reused[chunk] = self._reuse(chunk)
        return self._reused[chunk]

    def add(self, page: bytes, chunk: int, number: int) -> None:
        """A new page will be the `number`th of that chunk."""
        self._new[page] = chunk << _PAGE_BITS | number


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
        self._table.add(page, self._chunk, self._count)
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


def _indexed_pages(base: Manifest, read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """(number of a chunk, hashes of its pages), of the chunks that are worth building upon."""
    used = _used_fraction(base)
    for index in base.indexes:
        if not any(used.get(chunk, 0.0) >= LEAST_USED for chunk, _ in index.of):
            continue
        hashes, at = read(index.chunk), 0
        for chunk, count in index.of:
            end = at + count * PAGE_ID_BYTES
            if used.get(chunk, 0.0) >= LEAST_USED:
                yield chunk, hashes[at:end]
            at = end


def _used_fraction(base: Manifest) -> dict[int, float]:
    """How much of each chunk the files of a checkpoint use; 1 at most."""
    used: dict[int, int] = {}
    for part in base.parts:
        for extent in part.extents:
            if extent.chunk != ZERO:
                used[extent.chunk] = used.get(extent.chunk, 0) + extent.size
    return {chunk: min(1.0, count / base.chunks[chunk].size) for chunk, count in used.items()}
