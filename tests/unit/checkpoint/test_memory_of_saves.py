"""What a save or an estimate holds in memory is little, and gone when it has ended."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.checkpoint import chunks
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.chunks import PAGE, PAGE_ID_BYTES, Damaged
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.manifest import Chunk, Extent, Manifest, PageIndex, StoredPart
from singularity_proxy.checkpoint.saving import measure, writer
from singularity_proxy.checkpoint.saving.pages import PageTable
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_proxy.errors import NoSpace
from support.checkpoint_data import noise

COUNT = 64
"""Pages of each chunk of `base_of`."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Nothing is freed but what nobody refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[PageTable]]:
    """Every table that a save or an estimate makes."""
    made: list[weakref.ref[PageTable]] = []

    def make(reuse: Callable[[int], int | None]) -> PageTable:
        table = PageTable(reuse)
        made.append(weakref.ref(table))
        return table

    monkeypatch.setattr(writer, "PageTable", make)
    monkeypatch.setattr(measure, "PageTable", make)
    return made


def image_of(folder: Path, data: bytes) -> Part:
    """A process image with these pages."""
    path = folder / "pages-1.img"
    path.write_bytes(data)
    return Part("pages-1.img", "image", str(path))


def base_of(*chunks: bytes) -> tuple[Manifest, dict[int, bytes]]:
    """A checkpoint whose chunks consist of pages with these hashes, with an index for each, and
    the contents of the indexes."""
    files = [Chunk(f"c{n}", COUNT * PAGE, 1) for n in range(len(chunks))]
    indexes = [Chunk(f"i{n}", len(hashes), 1) for n, hashes in enumerate(chunks)]
    extents = [Extent(n, 0, COUNT * PAGE) for n in range(len(chunks))]
    part = StoredPart("x", "image", "file", len(chunks) * COUNT * PAGE, 0, 0, extents=extents)
    of = [PageIndex(len(chunks) + n, [(n, COUNT)]) for n in range(len(chunks))]
    manifest = Manifest("c", "alice", "s", files + indexes, [part], of)
    return manifest, {len(chunks) + n: hashes for n, hashes in enumerate(chunks)}


def pages_of(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + PAGE_ID_BYTES] for at in range(0, len(hashes), PAGE_ID_BYTES)]


def hashes_of(seed: int) -> bytes:
    return noise(COUNT * PAGE_ID_BYTES, seed)


# ---- tables --------------------------------------------------------------------------------------


def test_every_page_of_the_checkpoint_before_is_found() -> None:
    chunks = [hashes_of(seed) for seed in range(40)]
    base, contents = base_of(*chunks)
    asked: list[int] = []

    def reuse(number: int) -> int | None:
        asked.append(number)
        return None if number == 7 else number + 100

    table = PageTable(reuse)
    table.load(base, contents.__getitem__)
    for number, hashes in enumerate(chunks):
        for at, page in enumerate(pages_of(hashes)):
            assert table.find(page) == (None if number == 7 else (number + 100, at))
    assert sorted(asked) == list(range(40))  # a chunk of which no page is found is not asked for
    for page in pages_of(hashes_of(99)):
        assert table.find(page) is None


def test_a_page_that_is_sent_again_is_found_where_it_is_sent() -> None:
    base, contents = base_of(hashes_of(1))
    table = PageTable(lambda number: None)
    table.load(base, contents.__getitem__)
    page = pages_of(hashes_of(1))[5]
    assert table.find(page) is None
    table.add(page, 3, 1023)
    assert table.find(page) == (3, 1023)


def test_an_index_that_cannot_be_read_does_not_hide_those_before() -> None:
    base, contents = base_of(hashes_of(1), hashes_of(2))
    table = PageTable(lambda number: number)

    def read(number: int) -> bytes:
        if number == 3:
            raise Damaged("its hash is wrong")
        return contents[number]

    with pytest.raises(Damaged):
        table.load(base, read)
    assert table.find(pages_of(hashes_of(1))[-1]) == (0, COUNT - 1)
    assert table.find(pages_of(hashes_of(2))[0]) is None


def test_of_a_checkpoint_only_the_pages_that_are_asked_for_are_kept() -> None:
    base, contents = base_of(*(hashes_of(seed) for seed in range(5)))
    wanted = {pages_of(hashes_of(seed))[seed] for seed in range(5)} | {noise(PAGE_ID_BYTES, 77)}
    table = PageTable(lambda number: number)
    table.load(base, contents.__getitem__, wanted)
    for seed in range(5):
        assert table.find(pages_of(hashes_of(seed))[seed]) == (seed, seed)
        assert table.find(pages_of(hashes_of(seed))[seed + 1]) is None
    assert len(table._places) == 5


# ---- saves and estimates -------------------------------------------------------------------------


def test_an_estimate_keeps_no_more_pages_than_its_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    data = noise(1 << 20, 1)
    box.save(Request("s", 1, "process"), [image_of(tmp_path, data)])
    counts: list[int] = []
    find = PageTable.find

    def counted(table: PageTable, page: bytes) -> Any:
        counts.append(len(table._places))
        return find(table, page)

    monkeypatch.setattr(PageTable, "find", counted)
    assert box.measure_pages("s", data[: 8 * PAGE] + noise(8 * PAGE, 2)) > 0.49
    assert counts == [8] * 16


def test_no_table_of_a_save_waits_for_the_collector(
    tmp_path: Path, tables: list[weakref.ref[PageTable]], without_collector: None
) -> None:
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")
    for seed in (1, 2):  # the second has a checkpoint before
        box.save(Request("s", 1, "process"), [image_of(tmp_path, noise(1 << 20, seed))])
    box.measure_pages("s", noise(4 * PAGE, 1))
    assert [table() for table in tables] == [None] * 3


def test_no_table_of_a_failed_save_waits_for_the_collector(
    tmp_path: Path, tables: list[weakref.ref[PageTable]], without_collector: None
) -> None:
    box = Checkpoints(FolderStore(str(tmp_path / "store")), "alice")

    def fail(step: str) -> None:
        if step == "save.chunks":
            raise NoSpace("there is no room")

    part = image_of(tmp_path, noise(1 << 20, 1))
    with pytest.raises(NoSpace):
        box.save(Request("s", 1, "process"), [part], on_step=fail)
    assert [table() for table in tables] == [None]


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Every compressor and decompressor that is made, and none that was made before."""
    made: list[weakref.ref[Any]] = []

    class Watched:
        """One of Zstandard's, which cannot be referred to weakly."""

        def __init__(self, real: Any) -> None:
            self._real = real
            made.append(weakref.ref(self))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    chunks.drop_idle_contexts()
    for pool in (chunks._COMPRESSORS, chunks._DECOMPRESSORS):
        monkeypatch.setattr(pool, "_make", lambda make=pool._make: Watched(make()))
    return made


def test_compressors_are_not_kept_for_each_user_and_thread(
    contexts: list[weakref.ref[Any]],
) -> None:
    """Each of them holds more than a megabyte."""
    data = b"a line of text\n" * 10_000
    with ThreadPoolExecutor(8) as threads:
        at_once = threading.Barrier(8)
        for user in "abc":
            codec = chunks.Codec(user, None)

            def there_and_back(_: int, codec: chunks.Codec = codec) -> bytes:
                at_once.wait()
                stored = b"".join(bytes(piece) for piece in codec.encode("", data))
                assert len(stored) < len(data) / 10
                return bytes(codec.decode("", stored, check=False))

            assert set(threads.map(there_and_back, range(8))) == {data}
        alive = sum(context() is not None for context in contexts)
        assert 0 < alive <= 2 * chunks._IDLE, f"of {len(contexts)}, {alive} are there"
        chunks.drop_idle_contexts()
        assert not any(context() for context in contexts)


def test_a_decompressor_is_not_used_again_after_an_error(
    contexts: list[weakref.ref[Any]],
) -> None:
    codec = chunks.Codec("a", None)
    stored = b"".join(bytes(piece) for piece in codec.encode("", b"x" * 1000))
    with pytest.raises(Damaged, match="decompressed"):
        codec.decode("", stored[:-1] + bytes([stored[-1] ^ 0xFF]), check=False)
    assert not chunks._DECOMPRESSORS._idle
    assert codec.decode("", stored, check=False) == b"x" * 1000
