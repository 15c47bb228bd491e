"""What ranks exchange through files is never believed: not by its length, not by its words."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import proxy_device as w
from support.proxy_collectives import ALL_REDUCE, Group, Rank, make_ranks
from support.proxy_device import Proxies, Proxy, T, make_ring

SLOTS_AT, SLOT = 64, 32
GROUP = Group(2, timeout_ms=3000)
FAST = Group(2, timeout_ms=3000, fast=True)


class Apart:
    """Two ranks of one group on a proxy each."""

    def __init__(self, ranks: list[Rank], proxies: list[Proxy], folder: Path) -> None:
        self.ranks, self.proxies = ranks, proxies
        self.group = folder / f"group-{GROUP.id.hex()}"
        self.arenas = [folder / f"{self.group.name}-{i}" for i in range(2)]

    def attach(self) -> None:
        for rank, proxy in zip(self.ranks, self.proxies, strict=True):
            proxy.attach(rank.client)

    def reduce(self, rank: int) -> T:
        tensor = self.ranks[rank].floats([1.0])
        self.ranks[rank].collective(ALL_REDUCE, [tensor], [tensor])
        return tensor

    def done(self, rank: int) -> None:
        self.ranks[rank].client.wait("self.done_seq == self.seq")

    def alive(self) -> None:
        """The proxies serve what has nothing to do with the files."""
        for proxy in self.proxies:
            assert proxy.call("stats")["rings"]


@pytest.fixture
def apart(shm: Path, proxies: Proxies) -> Iterator[Apart]:
    made = Apart(make_ranks(shm, 2), [proxies.bound(device=f"cpu:{i}") for i in range(2)], shm)
    made.attach()
    yield made
    for rank in made.ranks:
        rank.client.close()


@pytest.fixture(params=[GROUP, FAST], ids=["bitwise", "fast"])
def joined(apart: Apart, request: pytest.FixtureRequest) -> Apart:
    for rank in apart.ranks:
        rank.join(request.param)
        rank.client.sync()
    return apart


def any_failure(rank: Rank) -> str:
    rank.client.wait("self.error_seq")
    text = rank.client.failure
    rank.client.word(648, 0)
    return text


def test_files_are_the_users_alone(joined: Apart) -> None:
    tensors = [joined.reduce(0), joined.reduce(1)]
    assert [r.value(t) for r, t in zip(joined.ranks, tensors, strict=True)] == [[2.0], [2.0]]
    for path in [joined.group, *joined.arenas]:
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 8192])
def test_a_file_that_is_no_groups_is_told_of(apart: Apart, content: bytes) -> None:
    apart.group.write_bytes(content)
    apart.ranks[0].join(GROUP)
    assert "is not the file of this process group" in any_failure(apart.ranks[0])
    apart.reduce(0)
    assert "knows no process group 1" in any_failure(apart.ranks[0])
    apart.alive()


def test_a_link_in_the_place_of_the_file_is_not_followed(apart: Apart, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    apart.group.symlink_to(target)
    apart.ranks[0].join(GROUP)
    assert "cannot open" in any_failure(apart.ranks[0])
    assert target.read_bytes() == b"precious"


def test_ranks_that_disagree_about_the_size(apart: Apart) -> None:
    apart.ranks[0].join(GROUP)
    apart.ranks[0].client.sync()
    apart.ranks[1].join(Group(3))
    assert "has 2 and 3 ranks" in any_failure(apart.ranks[1])


def test_a_group_file_that_is_shortened(joined: Apart) -> None:
    os.truncate(joined.group, 0)
    for rank in (0, 1):
        joined.reduce(rank)
        joined.ranks[rank].client.sync()
        assert "was shortened" in any_failure(joined.ranks[rank])
    joined.alive()


def test_an_arena_that_is_shortened(joined: Apart) -> None:
    joined.reduce(0)
    joined.done(0)
    os.truncate(joined.arenas[0], 4096)
    joined.reduce(1)
    joined.ranks[1].client.sync()
    assert joined.ranks[1].client.failure
    joined.alive()


@pytest.mark.parametrize(
    ("offset", "size"),
    [(1 << 40, 64), ((1 << 64) - 64, 128), (4096, 1 << 62), (0, 8), (0, 64)],
)
def test_a_slot_that_points_elsewhere(joined: Apart, offset: int, size: int) -> None:
    joined.reduce(0)
    joined.done(0)
    with joined.arenas[0].open("r+b") as file:
        file.seek(SLOTS_AT + 1 * SLOT)
        assert struct.unpack("<Q", file.read(8)) == (1,)
        file.write(struct.pack("<QQ", offset, size))
    joined.reduce(1)
    joined.ranks[1].client.sync()
    assert any_failure(joined.ranks[1])
    joined.alive()


def test_a_sum_that_names_ranks_that_cannot_be_in_it(shm: Path, proxies: Proxies) -> None:
    """Three ranks on two proxies; the first two's sum says that the second one is another."""
    ranks = make_ranks(shm, 3)
    at = [proxies.bound(device=f"cpu:{i}") for i in range(2)]
    for rank, proxy in zip(ranks, (at[0], at[0], at[1]), strict=True):
        proxy.attach(rank.client)
        rank.join(Group(3, timeout_ms=3000, fast=True))
        rank.client.sync()
    tensors = [rank.floats([1.0]) for rank in ranks]
    for rank, tensor in zip(ranks[:2], tensors[:2], strict=True):
        rank.collective(ALL_REDUCE, [tensor], [tensor])
        rank.client.wait("self.done_seq == self.seq")
    with (shm / f"group-{GROUP.id.hex()}-0").open("r+b") as file:
        file.seek(SLOTS_AT + 1 * SLOT)
        seq, offset, size = struct.unpack("<QQQ", file.read(24))
        assert seq == 1
        file.seek(offset)
        head = file.read(size)
        call = 3 * 4 + 2 * 8 + 8 + 8 + 2 * 4 + 2 * 8  # of all_reduce, without a failure
        assert struct.unpack_from("<III", head, call) == (1, 1, 1)  # parts, others, the other
        file.seek(offset + call + 8)
        file.write(struct.pack("<I", 7))
    ranks[2].collective(ALL_REDUCE, [tensors[2]], [tensors[2]])
    ranks[2].client.sync()
    assert "has rank 7 where it cannot be" in any_failure(ranks[2])
    for proxy in at:
        assert proxy.call("stats")["rings"]
    for rank in ranks:
        rank.client.close()


@pytest.mark.parametrize("group", [GROUP, FAST], ids=["bitwise", "fast"])
def test_a_full_file_system_is_an_error_on_all_ranks(
    group: Group, tiny: Path, proxies: Proxies
) -> None:
    ranks = [
        Rank(make_ring(tiny / f"r{i}.ring", request_bytes=16 << 10, reply_bytes=4096), i)
        for i in range(2)
    ]
    made = Apart(ranks, [proxies.bound(device=f"cpu:{i}") for i in range(2)], tiny)
    made.attach()
    for rank in ranks:
        rank.join(group)
        rank.client.op("ones", [1 << 20], w.FLOAT, None, w.Device(), None, base=9)
        rank.collective(ALL_REDUCE, [T(9, (1 << 20,))], [T(9, (1 << 20,))])
    for rank in ranks:
        rank.client.sync()
        assert "No space left" in any_failure(rank)
    small = [made.reduce(0), made.reduce(1)]  # and the group goes on
    assert [r.value(t) for r, t in zip(ranks, small, strict=True)] == [[2.0], [2.0]]
    for rank in ranks:
        rank.client.close()
