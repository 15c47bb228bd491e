"""Copies to the device that are long enough for the journal's and the snapshots' fast ways."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.device.state import Journal
from support import matrix
from support import proxy_device as w
from support.proxy_device import Proxies, RingClient

MIB = 1 << 20
STORAGES = {1: 400_000, 2: 9 * MIB, 3: 131_072}
"""Number and bytes: not a multiple of a page, more than stays in a core's caches, one record."""


def held(folder: Path) -> dict[str, int]:
    """Bytes of memory that the state files in a folder take, by the end of their names."""
    return {
        suffix: os.stat(folder / f"ring{suffix}").st_blocks * 512
        for suffix in (".snap", ".snap.tmp", ".journal")
        if (folder / f"ring{suffix}").exists()
    }


def writes(seed: int, count: int) -> list[tuple[int, int, bytes]]:
    """(storage, offset, bytes) of long and short copies, at even and odd places, some of them one
    behind the other as the worker's pieces are."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        storage = rng.choice(list(STORAGES))
        size = min(rng.choice((8, 70_001, 131_072, 262_144)), STORAGES[storage])
        offset = rng.choice((0, rng.randrange(STORAGES[storage] - size + 1)))
        made.append((storage, offset, rng.randbytes(64) * (size // 64) + rng.randbytes(size % 64)))
    return made


def after(steps: list[tuple[int, int, bytes]]) -> dict[int, bytes]:
    """What the storages hold then."""
    state = {storage: bytearray(size) for storage, size in STORAGES.items()}
    for storage, offset, data in steps:
        state[storage][offset : offset + len(data)] = data
    return {storage: bytes(data) for storage, data in state.items()}


def contents(client: RingClient, storage: int, size: int) -> bytes:
    step = 1 << 19
    return b"".join(client.read(storage, min(step, size - at), at) for at in range(0, size, step))


def zeros(client: RingClient) -> None:
    for storage, size in STORAGES.items():
        client.allocate(storage, size)
        for at in range(0, size, 1 << 18):
            client.write(storage, bytes(min(1 << 18, size - at)), at)


def test_frozen_between_long_writes_it_continues_bitwise(
    proxies: Proxies, ring: RingClient, shm: Path
) -> None:
    steps = writes(matrix.seed(), 120)
    rng = random.Random(matrix.seed())
    first, second = proxies.bound(), proxies.bound()
    first.attach(ring, journal=MIB)
    zeros(ring)
    moments = set(rng.sample(range(len(steps)), 40 if matrix.is_full() else 8))
    images: list[tuple[int, RingClient]] = []
    for number, (storage, offset, data) in enumerate(steps):
        ring.write(storage, data, offset)
        if number in moments:
            time.sleep(rng.random() * 0.0005)
            first.stop()
            images.append((number + 1, ring.copy(shm / f"image{number}.ring")))
            first.go_on()
    expected = after(steps)
    assert {s: contents(ring, s, size) for s, size in STORAGES.items()} == expected
    replayed = 0
    for number, image in images:
        replayed += second.attach(image, journal=MIB)["replayed_records"]
        for storage, offset, data in steps[number:]:
            image.write(storage, data, offset)
        assert {s: contents(image, s, size) for s, size in STORAGES.items()} == expected
        second.call("close_ring", ring_id=image.path.stem)
        image.close()
        for suffix in (".ring", ".snap", ".journal", ".snap.tmp"):
            image.path.with_suffix(suffix).unlink(missing_ok=True)
    assert replayed > 0


def test_killed_between_long_writes(proxies: Proxies, ring: RingClient) -> None:
    """To the same and to another storage; the last one is nobody's but the ring's."""
    proxy = proxies.bound()
    proxy.attach(ring, journal=64 * MIB)
    zeros(ring)
    steps = writes(5, 30)
    for number, (storage, offset, data) in enumerate(steps):
        ring.write(storage, data, offset)
        if number % 10 == 9:
            proxy.kill()
            proxy = proxies.bound()
            proxy.attach(ring, journal=64 * MIB)
    assert {s: contents(ring, s, size) for s, size in STORAGES.items()} == after(steps)


def test_the_journal_has_the_records_as_they_were(proxies: Proxies, ring: RingClient) -> None:
    """Readable to the end, no number missing, each long body at a multiple of a cache line."""
    proxy = proxies.bound()
    proxy.attach(ring, journal=64 * MIB)
    ring.allocate(2, STORAGES[2])
    steps = [(2, offset, data) for storage, offset, data in writes(9, 60) if storage == 2]
    for storage, offset, data in steps:
        ring.write(storage, data, offset)
    ring.sync()
    path = ring.path.with_suffix(".journal")
    with Journal(path) as journal:
        entries = list(journal)
    records = [entry for entry in entries if entry.kind != "filler"]
    assert [entry.seq for entry in records] == list(range(1, ring.seq + 1))
    written = [entry for entry in records if entry.kind == "write"]
    assert len(written) == len(steps)
    whole = path.read_bytes()
    for entry, (_, offset, data) in zip(written, steps, strict=True):
        assert entry.body[:16] == struct.pack("<QQ", offset, len(data))
        assert entry.body[16 : 16 + len(data)] == data
        if len(data) > MIB // 16:
            assert whole.index(entry.body[:80]) % 64 == 48


def test_memory_stays_bounded_and_is_used_again(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    limit = 2 * MIB
    proxy.attach(ring, journal=limit)
    size = 4 * MIB
    ring.allocate(1, size)
    files = set()
    most: dict[str, int] = {}
    for number in range(40):
        for at in range(0, size, 1 << 18):
            ring.write(1, bytes([number]) * (1 << 18), at)
        ring.sync()
        if ring.path.with_suffix(".snap").exists():
            files.add(ring.path.with_suffix(".snap").stat().st_ino)
        for suffix, memory in held(ring.path.parent).items():
            most[suffix] = max(most.get(suffix, 0), memory)
    assert proxy.call("stats")["rings"]["ring"]["snapshots"] > 10
    assert len(files) == 2  # each takes the memory of the one before the last
    assert most.keys() == {".snap", ".snap.tmp", ".journal"}
    assert most[".journal"] <= 1.5 * (4 * limit + 5 * MIB)
    assert max(most[".snap"], most[".snap.tmp"]) < size + MIB
    proxy.kill()
    again = proxies.bound()
    again.attach(ring, journal=limit)
    assert contents(ring, 1, size) == bytes([39]) * size
    again.call("park")
    assert {path.name for path in ring.path.parent.iterdir()} == {"ring.ring", "ring.snap"}


def test_a_large_state_keeps_no_spare(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 16)
    ring.allocate(1, 2 * MIB)
    for number in range(30):
        ring.write(1, bytes([number]) * (1 << 18), (number % 8) << 18)
    ring.sync()
    assert proxy.call("stats")["rings"]["ring"]["snapshots"] > 1
    assert held(ring.path.parent).keys() == {".snap", ".journal"}


def test_a_state_that_shrank_keeps_no_large_spare(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=8 * MIB)
    ring.allocate(1, 12 * MIB)
    for number in range(160):
        ring.write(1, bytes([number]) * (1 << 18), (number % 48) << 18)
    ring.sync()
    assert held(ring.path.parent)[".snap"] >= 12 * MIB
    ring.record(w.FREE, struct.pack("<Q", 1), base=1)
    ring.publish()
    ring.allocate(2, MIB)
    before = proxy.call("stats")["rings"]["ring"]["snapshots"]
    for number in range(160):
        ring.write(2, bytes([number]) * (1 << 18), (number % 4) << 18)
    ring.sync()
    assert proxy.call("stats")["rings"]["ring"]["snapshots"] > before
    files = held(ring.path.parent)
    assert files[".snap"] < 2 * MIB
    assert files.get(".snap.tmp", 0) <= 4 * MIB


def test_a_long_write_that_ends_proxies_fails_and_nothing_else(
    proxies: Proxies, ring: RingClient
) -> None:
    """It is in the ring alone: the journal has a long write only when it was executed."""
    proxy = proxies.bound()
    proxy.attach(ring, journal=1 << 26)
    ring.allocate(1, MIB)
    ring.write(1, b"a" * (1 << 18))
    ring.sync()
    proxy.stop()
    poison = ring.write(1, b"b" * (1 << 18))
    proxy.kill()
    proxy = proxies.bound()
    answer = proxy.attach(ring, journal=1 << 26, give_up_seq=poison, deaths=3)
    assert answer["given_up"] == "copy to the device"
    ring.wait(f"self.error_seq == {poison}")
    assert "ended 3 times while it executed copy to the device" in ring.failure
    ring.word(648, 0)
    for _ in range(2):  # also as the journal tells it
        assert ring.read(1, 8) == b"a" * 8
        proxy.kill()
        proxy = proxies.bound()
        proxy.attach(ring, journal=1 << 26)
    ring.write(1, b"c" * (1 << 18))
    assert ring.read(1, 8) == b"c" * 8


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("a link to another file", lambda at, other: at.symlink_to(other)),
        ("a file with another name", lambda at, other: at.hardlink_to(other)),
        ("a pipe", lambda at, other: os.mkfifo(at)),
        ("a folder's worth of nothing", lambda at, other: at.write_bytes(b"")),
    ],
)
def test_only_an_own_spare_is_written_over(
    proxies: Proxies, ring: RingClient, name: str, foreign: Callable[[Path, Path], None]
) -> None:
    other = ring.path.with_name("other")
    other.write_bytes(b"precious" * (1 << 17))
    foreign(ring.path.with_suffix(".snap.tmp"), other)
    proxy = proxies.bound()
    proxy.attach(ring, journal=MIB)
    ring.allocate(1, MIB)
    for number in range(12):
        ring.write(1, bytes([number]) * (1 << 18), (number % 4) << 18)
    ring.sync()
    assert proxy.call("stats")["rings"]["ring"]["snapshots"] >= 1, name
    assert other.read_bytes() == b"precious" * (1 << 17)
    proxy.kill()
    again = proxies.bound()
    again.attach(ring, journal=MIB)
    assert contents(ring, 1, MIB)[:: 1 << 18] == bytes([8, 9, 10, 11])


def test_long_writes_that_do_not_fit_fail_as_short_ones(proxies: Proxies, ring: RingClient) -> None:
    proxy = proxies.bound()
    proxy.attach(ring, journal=MIB)
    ring.allocate(1, 1 << 17)
    ring.write(1, b"a" * (1 << 17))
    long = b"b" * (1 << 17)
    for storage, body, text in (
        (1, struct.pack("<QQ", 1, len(long)) + long, "does not fit into device memory"),
        (1, struct.pack("<QQ", (1 << 64) - 8, len(long)) + long, "does not fit"),
        (1, struct.pack("<QQ", 0, len(long) + 8) + long, "shorter than it says"),
        (1, struct.pack("<QQ", 0, (1 << 64) - 1) + long, "shorter than it says"),
        (7, struct.pack("<QQ", 0, len(long)) + long, "knows no storage 7"),
    ):
        ring.record(w.WRITE, body, base=storage)
        ring.publish()
        ring.sync()
        assert text in ring.failure
        assert ring.error_seq == ring.seq - 1
        ring.word(648, 0)
        assert text in ring.ask(w.WRITE, body, base=storage).text
    assert ring.ask(w.WRITE, struct.pack("<QQ", 0, 1 << 17) + long, base=1).status == w.OK
    proxy.kill()
    again = proxies.bound()
    again.attach(ring, journal=MIB)
    assert contents(ring, 1, 1 << 17) == long


def test_bytes_that_change_while_they_are_copied(proxies: Proxies, shm: Path) -> None:
    """A worker may do that; what the journal has is what was executed."""
    ring = w.make_ring(shm / "ring.ring", request_bytes=4 * MIB)
    proxy = proxies.bound()
    proxy.attach(ring, journal=256 * MIB)
    size, rounds = 1 << 19, 12
    body = struct.pack("<QQ", 0, size) + bytes(size)
    with ring.path.open("r+b", buffering=0) as file:
        for storage in range(1, rounds + 1):
            ring.allocate(storage, size)
            ring.sync()
            at = ring._head % ring.request_bytes + 32 + 16
            most = min(size, ring.request_bytes - at)  # the rest is at the queue's start
            ring.record(w.WRITE, body, base=storage)
            end = ring._head
            ring.publish()
            number = 0
            while ring.word(192) < end:
                number = number % 255 + 1
                os.pwrite(file.fileno(), bytes([number]) * most, (64 << 10) + at)
            ring.sync()
    before = [contents(ring, storage, size) for storage in range(1, rounds + 1)]
    proxy.kill()
    again = proxies.bound()
    again.attach(ring, journal=256 * MIB)
    assert [contents(ring, storage, size) for storage in range(1, rounds + 1)] == before
    ring.close()
