"""Cutting, packing, pages, encoding, names and manifests: no store."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_proxy.checkpoint.chunks import PAGE, PAGE_ID_BYTES, Codec, Damaged, is_zero
from singularity_proxy.checkpoint.keys import MasterKey
from singularity_proxy.checkpoint.layout import UserKeys, component
from singularity_proxy.checkpoint.manifest import ZERO, Chunk, Extent, Head, Manifest, Unreadable
from singularity_proxy.checkpoint.progress import Meter, Progress
from singularity_proxy.checkpoint.saving.cutting import CHUNK, cut, snapshot_regions
from singularity_proxy.checkpoint.saving.packing import Packer
from singularity_proxy.checkpoint.saving.pages import PageTable, PageWriter
from singularity_proxy.checkpoint.stores.base import check_key
from support.checkpoint_data import noise, snapshot

CODECS = [Codec("alice", None), Codec("alice", MasterKey("k", b"\7" * 32))]


# ---- chunks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "data", [b"", b"x", b"text " * 100_000, noise(100_000), bytes(CHUNK), noise(CHUNK + 5)]
)
def test_chunks_come_back(codec: Codec, data: bytes) -> None:
    id = codec.id(data)
    stored = b"".join(codec.encode(id, data))
    assert codec.decode(id, stored) == data
    assert len(stored) <= len(data) + 36
    if data.startswith(b"text"):
        assert len(stored) < len(data) / 50


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"text " * 1000, noise(3000)])
def test_every_flipped_bit_is_found(codec: Codec, data: bytes) -> None:
    id = codec.id(data)
    stored = b"".join(codec.encode(id, data))
    chosen = random.Random(1)
    places = [*range(min(len(stored), 40)), *(chosen.randrange(len(stored)) for _ in range(100))]
    for at in places:
        wrong = bytearray(stored)
        wrong[at] ^= 1 << chosen.randrange(8)
        with pytest.raises(Damaged):
            codec.decode(id, bytes(wrong))
    for size in (0, 5, 8, 20, len(stored) - 1):
        with pytest.raises(Damaged):
            codec.decode(id, stored[:size])


def test_users_and_keys_do_not_read_each_other() -> None:
    key = MasterKey("k", b"\7" * 32)
    alice, bob = Codec("alice", key), Codec("bob", key)
    id = alice.id(b"secret")
    assert bob.id(b"secret") != id != CODECS[0].id(b"secret")
    stored = b"".join(alice.encode(id, b"secret"))
    assert b"secret" not in stored
    with pytest.raises(Damaged):
        bob.decode(id, stored)
    with pytest.raises(Damaged, match="not encrypted"):
        alice.decode(id, b"".join(CODECS[0].encode(id, b"secret")))
    # Two chunks cannot be exchanged, and one is never stored twice with the same bytes.
    other = alice.id(b"public")
    with pytest.raises(Damaged):
        alice.decode(other, stored)
    assert b"".join(alice.encode(id, b"secret")) != stored


def test_a_wrong_size_takes_no_memory() -> None:
    """A chunk that says it unpacks to more than it should is refused before it is unpacked."""
    import zstandard

    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 << 20))
    with pytest.raises(Damaged, match="size"):
        CODECS[0].decode("0" * 64, b"SC\1\1" + (100).to_bytes(4, "little") + bomb)


def test_zeros() -> None:
    for size in (0, 1, 31, 33, 4096, CHUNK):
        assert is_zero(bytes(size))
        for at in {0, size // 2, size - 1} if size else set():
            assert not is_zero(bytes(at) + b"\1" + bytes(size - at - 1))


# ---- cutting -------------------------------------------------------------------------------------


def regions(path: Path) -> list[tuple[int, int]]:
    data = path.read_bytes()
    return snapshot_regions(lambda at, count: data[at : at + count], len(data))


def test_a_snapshot_is_cut_at_its_storages(tmp_path: Path) -> None:
    path = tmp_path / "x.snap"
    sizes = [200_000, 50, 60, 5_000_000, 128 << 10]
    snapshot(path, [noise(size, n) for n, size in enumerate(sizes)])
    found = regions(path)
    assert {end - start for start, end in found} >= {200_000, 5_000_000, 128 << 10}
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, path.stat().st_size)
    with path.open("rb") as file:
        pieces = list(cut(file.fileno(), path.stat().st_size, device=True))
    assert sum(piece.size for piece in pieces) == path.stat().st_size
    assert max(piece.size for piece in pieces) == CHUNK


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_snapshot_that_lies_is_still_cut(body: bytes, table: int, data: int) -> None:
    head = b"SINGSNAP" + (1).to_bytes(4, "little") + bytes(20)
    contents = head + table.to_bytes(8, "little") + data.to_bytes(8, "little") + bytes(16) + body
    found = snapshot_regions(lambda at, count: contents[at : at + count], len(contents))
    assert (found[0][0], found[-1][1]) == (0, len(contents))
    assert [start for start, _ in found[1:]] == [end for _, end in found[:-1]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=5), st.integers(0, 50))
def test_holes_are_found_where_there_is_nothing(
    runs: list[tuple[int, int]], megabytes: int
) -> None:
    size = megabytes << 20
    fd = os.memfd_create("holes")
    try:
        os.ftruncate(fd, size)
        written = set()
        for start, count in runs:
            for page in range(start << 8, min((start + count) << 8, size // PAGE)):
                os.pwrite(fd, b"x", page * PAGE)
                written.add(page)
        pieces = list(cut(fd, size, device=False))
    finally:
        os.close(fd)
    assert sum(piece.size for piece in pieces) == size
    for piece in pieces:
        inside = set(range(piece.at // PAGE, (piece.at + piece.size) // PAGE)) & written
        assert piece.hole == (not inside)


# ---- packing, pages ------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 60_000), max_size=60))
@settings(max_examples=40, deadline=None)
def test_packed_pieces_are_where_it_was_said(sizes: list[int]) -> None:
    pieces = [noise(size, n) for n, size in enumerate(sizes)]

    def pack(pieces: list[bytes]) -> list[bytes]:
        chunks: list[bytes] = []
        numbers = iter(range(10**6))
        packer = Packer(lambda: next(numbers), lambda number, data: chunks.append(data))
        extents = [packer.add(piece) for piece in pieces]
        packer.flush()
        for piece, extent in zip(pieces, extents, strict=True):
            assert chunks[extent.chunk][extent.at : extent.at + extent.size] == piece
        return chunks

    before = pack(pieces)
    assert all(len(chunk) < (512 << 10) + 60_000 for chunk in before)
    assert b"".join(before) == b"".join(pieces)


def test_an_inserted_file_changes_few_chunks() -> None:
    pieces = [noise(20_000, n) for n in range(200)]

    def pack(pieces: list[bytes]) -> set[bytes]:
        chunks: set[bytes] = set()
        packer = Packer(lambda: 0, lambda number, data: chunks.add(data))
        for piece in pieces:
            packer.add(piece)
        packer.flush()
        return chunks

    before = pack(pieces)
    after = pack([*pieces[:20], noise(30_000, 999), *pieces[20:]])
    assert len(after - before) <= 4
    assert len(before) > 10


def test_pages_become_runs() -> None:
    codec = CODECS[0]
    chunks: dict[int, bytes] = {}
    table = PageTable(lambda number: number)
    numbers = iter(range(1000))
    writer = PageWriter(
        table,
        codec.zero_page,
        lambda: next(numbers),
        lambda number, data, hashes: chunks.update({number: data}),
    )
    chosen = random.Random(3)
    pages = [bytes(PAGE), *(noise(PAGE, n) for n in range(5))]
    files, extents = [], []
    for _ in range(6):
        block = b"".join(chosen.choice(pages) for _ in range(chosen.randint(1, 40)))
        block += noise(PAGE * 400, chosen.randrange(100))
        files.append(block)
        extents.append([])  # type: ignore[var-annotated]
        new = writer.add(extents[-1], memoryview(block), codec.pages(block))
        assert new % PAGE == 0
    writer.flush()
    for block, runs in zip(files, extents, strict=True):
        got = b"".join(
            bytes(run.size) if run.chunk == ZERO else chunks[run.chunk][run.at : run.at + run.size]
            for run in runs
        )
        assert got == block
    assert all(len(data) <= CHUNK for data in chunks.values())
    assert len(codec.pages(bytes(3 * PAGE))) == 3 * PAGE_ID_BYTES


# ---- names, manifests, heads ---------------------------------------------------------------------


@given(st.text(max_size=200), st.text(max_size=200))
def test_names_of_users_are_one_component_each(one: str, other: str) -> None:
    keys = UserKeys(one)
    check_key(keys.session(other).manifest("c"))
    assert "/" not in component(one)
    assert len(component(one)) <= 120
    assert (component(one) == component(other)) == (one == other)


@pytest.mark.parametrize("name", [".", "..", "../x", "a/b", "", ".hidden", "é" * 100, "x" * 500])
def test_awkward_names(name: str) -> None:
    assert check_key(f"{component(name)}/x")
    assert component(name) not in (".", "..")


def test_manifests_that_do_not_fit_together() -> None:
    from singularity_proxy.checkpoint.manifest import StoredPart

    def manifest(extents: list[Extent], size: int) -> bytes:
        part = StoredPart("x", "scratch", "file", size, 0o600, 0, extents=extents)
        return Manifest("c", "u", "s", [Chunk("ab", 100, 50)], [part]).to_bytes()

    good = Manifest.from_bytes(manifest([Extent(0, 10, 90), Extent(ZERO, 0, 10)], 100))
    assert good.parts[0].extents == [Extent(0, 10, 90), Extent(ZERO, 0, 10)]
    for extents, size in (
        ([Extent(0, 10, 91)], 91),
        ([Extent(1, 0, 1)], 1),
        ([Extent(-2, 0, 1)], 1),
        ([Extent(0, -1, 10)], 10),
        ([Extent(0, 0, 0)], 0),
        ([Extent(0, 0, 100)], 101),
    ):
        with pytest.raises(Unreadable):
            Manifest.from_bytes(manifest(extents, size))
    for data in (b"", b"[]", b"{}", b'{"format": 99}', b"\xff"):
        with pytest.raises(Unreadable):
            Manifest.from_bytes(data)
        with pytest.raises(Unreadable):
            Head.from_bytes(data)
    assert Head.from_bytes(Head(3, None).to_bytes()) == Head(3, None)


# ---- progress ------------------------------------------------------------------------------------


def test_rate_and_time_to_go() -> None:
    now, told = [0.0], []

    def report(progress: Progress) -> None:
        told.append(progress)

    meter = Meter(report, lambda: now[0])
    meter.total = 1000
    meter.add(done=0)
    assert told[-1].eta_s is None
    for _ in range(5):
        now[0] += 1.0
        meter.add(done=100, sent=50)
    assert (told[-1].bytes_done, told[-1].bytes_sent) == (500, 250)
    assert told[-1].rate == pytest.approx(100)
    assert told[-1].eta_s == pytest.approx(5)
    count = len(told)
    meter.add(done=1)  # at once after the last: not told
    assert len(told) == count
    meter.add(done=499)
    now[0] += 0.01
    meter.finish()
    assert told[-1].eta_s == 0


# ---- libraries -----------------------------------------------------------------------------------


def test_the_package_needs_its_libraries_only_when_it_is_used() -> None:
    """A kernel's environment has none of them."""
    code = """
import importlib, pkgutil, sys
for name in ("blake3", "zstandard", "cryptography", "azure", "obstore", "google", "traitlets"):
    sys.modules[name] = None
import singularity_proxy.checkpoint as package
for info in pkgutil.iter_modules(package.__path__):
    if info.name != "__main__":
        importlib.import_module(f"{package.__name__}.{info.name}")
from singularity_proxy.checkpoint.chunks import Codec
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import Unsupported
urls = ("abs://a.blob.core.windows.net/c", "s3://bucket/prefix", "gs://bucket/prefix")
for call in (lambda: Codec("u", None), *(lambda url=url: open_store(url) for url in urls)):
    try:
        call()
    except Unsupported as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "checkpoints need zstandard, which is not installed: "
        "pip install 'jupyter-singularity[store]'",
        "checkpoints need azure-storage-blob, which is not installed: "
        "pip install 'jupyter-singularity[azure]'",
        "checkpoints need obstore, which is not installed: pip install 'jupyter-singularity[s3]'",
        "checkpoints need obstore, which is not installed: pip install 'jupyter-singularity[gcs]'",
    ]
