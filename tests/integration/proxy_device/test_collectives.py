"""Collectives between ranks of one device proxy, and of several."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import proxy_device as w
from support.proxy_collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AVG,
    BARRIER,
    BROADCAST,
    GATHER,
    MAX,
    MIN,
    PREMUL_SUM,
    PRODUCT,
    RECV,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    SUM,
    Group,
    Rank,
    make_ranks,
)
from support.proxy_device import Proxies, Proxy, T, Value

SIZE = 4


class Ranks(list[Rank]):
    """Ranks that are served by proxies, and which one each is served by."""

    proxies: list[Proxy]
    places: list[int]
    fast = False

    @property
    def summed(self) -> list[list[int]]:
        """The ranks whose contributions are added first, in the order in which their sums are."""
        if not self.fast or len(set(self.places)) == 1:
            return [[r] for r in range(len(self))]
        return [
            [r for r, p in enumerate(self.places) if p == place]
            for place in dict.fromkeys(self.places)
        ]

    def stats(self, rank: int) -> dict[str, Any]:
        (found,) = [
            rings[f"r{rank}"]
            for proxy in self.proxies
            if f"r{rank}" in (rings := proxy.call("stats")["rings"])
        ]
        return dict(found)


def serve(shm: Path, proxies: Proxies, places: list[int], **options: Any) -> Ranks:
    """A rank per place; ranks with the same place share a proxy."""
    ranks = Ranks(make_ranks(shm, len(places)))
    ranks.places = places
    ranks.proxies = [proxies.bound(device=f"cpu:{i}") for i in range(max(places) + 1)]
    for rank, place in zip(ranks, places, strict=True):
        ranks.proxies[place].attach(rank.client, **options)
    return ranks


PLACES = {"p1": [0, 0, 0, 0], "p2": [0, 0, 1, 1], "p4": [0, 1, 2, 3]}
UNEVEN = {"p2-crossed": [0, 1, 0, 1], "p2-uneven": [0, 1, 1, 1]}
BITWISE = [pytest.param((at, False), id=name) for name, at in PLACES.items()]
FAST = [pytest.param((at, True), id=f"{name}-fast") for name, at in {**PLACES, **UNEVEN}.items()]


@pytest.fixture(params=BITWISE + FAST)
def ranks(request: pytest.FixtureRequest, shm: Path, proxies: Proxies) -> Iterator[Ranks]:
    """Four joined ranks on one, two and four proxies."""
    places, fast = request.param
    made = serve(shm, proxies, places)
    made.fast = fast
    for rank in made:
        rank.join(Group(SIZE, fast=fast))
    yield made
    for rank in made:
        rank.client.close()


def test_all_reduce(ranks: Ranks) -> None:
    for reduction, expected in (
        (SUM, [10.0, 100.0]),
        (AVG, [2.5, 25.0]),
        (PRODUCT, [24.0, 240000.0]),
        (MIN, [1.0, 10.0]),
        (MAX, [4.0, 40.0]),
    ):
        outs = []
        for r in ranks:
            source, out = r.floats([r.rank + 1, 10 * (r.rank + 1)]), r.empty(2)
            r.collective(ALL_REDUCE, [source], [out], reduction=reduction)
            outs.append((source, out))
        for r, (source, out) in zip(ranks, outs, strict=True):
            assert r.value(out) == expected
            assert r.value(source) == [r.rank + 1, 10 * (r.rank + 1)]
    outs = []
    for r in ranks:
        tensor = r.floats([1.0, 2.0])
        r.collective(ALL_REDUCE, [tensor], [tensor], reduction=PREMUL_SUM, factor=r.rank + 1.0)
        outs.append(tensor)
    assert [r.value(t) for r, t in zip(ranks, outs, strict=True)] == [[10.0, 20.0]] * SIZE


def single(value: float) -> float:
    """As float32 has it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def fold(values: Iterable[float]) -> float:
    return functools.reduce(lambda a, b: single(a + b), values)


def test_the_sum_is_a_left_fold_in_rank_order(ranks: Ranks) -> None:
    """Whatever order they come in. With `fast` each device folds its own ranks' before."""
    values = [1e8, 1.0, -1e8, 1.0]
    expected = fold(fold(values[r] for r in some) for some in ranks.summed)
    for order in (list(ranks), list(reversed(ranks)), [ranks[i] for i in (2, 0, 3, 1)]):
        outs = {r.rank: r.floats([values[r.rank]]) for r in order}
        pieces = {r.rank: [r.floats([values[r.rank]]) for _ in ranks] for r in order}
        parts = {r.rank: r.empty(1) for r in order}
        for r in order:
            r.collective(ALL_REDUCE, [outs[r.rank]], [outs[r.rank]])
            r.collective(REDUCE_SCATTER, pieces[r.rank], [parts[r.rank]])
        assert [r.value(outs[r.rank]) for r in ranks] == [[expected]] * SIZE
        assert [r.value(parts[r.rank]) for r in ranks] == [[expected]] * SIZE


def test_only_sums_of_devices_go_between_proxies(ranks: Ranks) -> None:
    before = sum(p.call("stats")["published_bytes"] for p in ranks.proxies)
    outs = []
    for r in ranks:
        tensor = r.floats([1.0] * 1000)
        r.collective(ALL_REDUCE, [tensor], [tensor])
        outs.append(tensor)
    assert [r.value(t) for r, t in zip(ranks, outs, strict=True)] == [[4.0] * 1000] * SIZE
    after = sum(p.call("stats")["published_bytes"] for p in ranks.proxies)
    devices = len(set(ranks.places))
    published = devices if ranks.fast else SIZE
    assert after - before == (4000 * published if devices > 1 else 0)


def test_each_rank_has_a_result_of_its_own(ranks: Ranks) -> None:
    """Whatever ranks on one device share: one that changes its result changes only that."""
    outs = [r.floats([1.0, 2.0]) for r in ranks]
    for r in ranks:
        r.collective(ALL_REDUCE, [outs[r.rank]], [outs[r.rank]])
    for r in ranks[:2]:
        assert r.value(outs[r.rank]) == [4.0, 8.0]
        r.client.write(outs[r.rank].id, struct.pack("<f", 100.0 + r.rank))
    assert [r.value(t) for r, t in zip(ranks, outs, strict=True)] == [
        [100.0, 8.0],
        [101.0, 8.0],
        [4.0, 8.0],
        [4.0, 8.0],
    ]
    for r in ranks:
        r.collective(ALL_REDUCE, [outs[r.rank]], [outs[r.rank]])
    assert [r.value(t) for r, t in zip(ranks, outs, strict=True)] == [[209.0, 32.0]] * SIZE


def test_broadcast_from_every_root(ranks: Ranks) -> None:
    for root in range(SIZE):
        outs = [r.floats([r.rank, 7.0]) for r in ranks]
        for r, t in zip(ranks, outs, strict=True):
            r.collective(BROADCAST, [t] if r.rank == root else [], [t], root=root)
        assert [r.value(t) for r, t in zip(ranks, outs, strict=True)] == [[root, 7.0]] * SIZE


def test_all_gather_into_slices_of_one_storage_with_uneven_sizes(ranks: Ranks) -> None:
    whole = []
    for r in ranks:
        source, out = r.floats([r.rank + 0.5] * r.rank), r.empty(6)
        slices = [T(out.id, (n,), offset=n * (n - 1) // 2) for n in range(SIZE)]
        r.collective(ALL_GATHER, [source], slices)
        whole.append(out)
    expected = [1.5, 2.5, 2.5, 3.5, 3.5, 3.5]
    assert [r.value(t) for r, t in zip(ranks, whole, strict=True)] == [expected] * SIZE


def test_reduce_gather_scatter_have_a_root(ranks: Ranks) -> None:
    root = 2
    reduced, gathered, scattered = [], [], []
    for r in ranks:
        mine = r.rank == root
        source, out = r.floats([r.rank + 1.0]), r.empty(1)
        r.collective(REDUCE, [source], [out] if mine else [], root=root)
        parts = [r.empty(1) for _ in ranks]
        r.collective(GATHER, [source], parts if mine else [], root=root)
        pieces = [r.floats([10.0 * i]) for i in range(SIZE)]
        piece = r.empty(1)
        r.collective(SCATTER, pieces if mine else [], [piece], root=root)
        reduced.append(out)
        gathered.append(parts)
        scattered.append(piece)
    assert [r.value(t) for r, t in zip(ranks, reduced, strict=True)] == [[-1], [-1], [10.0], [-1]]
    assert [ranks[root].value(t) for t in gathered[root]] == [[1.0], [2.0], [3.0], [4.0]]
    assert ranks[0].value(gathered[0][0]) == [-1]
    assert [r.value(t) for r, t in zip(ranks, scattered, strict=True)] == [[0], [10], [20], [30]]


def test_reduce_scatter_and_all_to_all(ranks: Ranks) -> None:
    outs = []
    for r in ranks:
        pieces = [r.floats([r.rank + 10.0 * i]) for i in range(SIZE)]
        out, swapped = r.empty(1), [r.empty(1) for _ in ranks]
        r.collective(REDUCE_SCATTER, pieces, [out])
        r.collective(ALL_TO_ALL, pieces, swapped)
        outs.append((out, swapped))
    for r, (out, swapped) in zip(ranks, outs, strict=True):
        assert r.value(out) == [6.0 + 40.0 * r.rank]
        assert [r.value(t) for t in swapped] == [[i + 10.0 * r.rank] for i in range(SIZE)]


def test_messages_are_in_order_for_each_pair(ranks: Ranks) -> None:
    got = []
    for i in range(3):
        out = ranks[3].empty(2)
        ranks[3].collective(RECV, [], [out], root=1)
        got.append(out)
        ranks[0].collective(SEND, [ranks[0].floats([100.0 + i])], root=3)
    for i in range(3):
        source = ranks[1].floats([i, i])
        ranks[1].collective(SEND, [source], root=3)
        ranks[1].client.op("mul_.Scalar", source, Value(5.0), flags=w.NO_OUTPUTS)
    assert [ranks[3].value(t) for t in got] == [[0, 0], [1, 1], [2, 2]]
    late = [ranks[3].empty(1) for _ in range(3)]
    for out in late:
        ranks[3].collective(RECV, [], [out], root=0)
    assert [ranks[3].value(t) for t in late] == [[100.0], [101.0], [102.0]]


def test_only_what_touches_the_result_waits(ranks: Ranks) -> None:
    first = ranks[0]
    out, other = first.floats([1.0]), first.floats([5.0])
    first.collective(ALL_REDUCE, [out], [out])
    first.client.op("mul_.Scalar", other, Value(2.0), flags=w.NO_OUTPUTS)
    assert first.value(other) == [10.0]
    asked = first.client.record(w.READ, struct.pack("<QQ", 0, 4), flags=w.REPLY, base=out.id)
    first.client.publish()
    deadline = time.monotonic() + 30
    while (stats := ranks.stats(0))["activity"] != "blocked":
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)
    time.sleep(0.1)
    assert first.client.poll() is None
    assert "rank 1, 2, 3" in stats["waits_for"]
    assert stats["groups"][0]["contributed"] == 1
    assert stats["groups"][0]["consumed"] == 0
    for r in ranks[1:]:
        tensor = r.floats([1.0])
        r.collective(ALL_REDUCE, [tensor], [tensor])
    assert struct.unpack("<f", first.client.reply(asked).payload) == (4.0,)
    assert ranks.stats(0)["groups"][0]["consumed"] == 1


def test_barrier_and_sync(ranks: Ranks) -> None:
    for r in ranks[1:]:
        r.collective(BARRIER)
    asked = ranks[1].client.record(w.SYNC, flags=w.REPLY)
    ranks[1].client.publish()
    time.sleep(0.1)
    assert ranks[1].client.poll() is None
    ranks[0].collective(BARRIER)
    assert ranks[1].client.reply(asked).status == w.OK
    for r in ranks:
        r.client.sync()


def test_different_calls_are_an_error_on_all_ranks(ranks: Ranks) -> None:
    for r in ranks:
        tensor = r.floats([1.0] * (3 if r.rank == 2 else 2))
        r.collective(ALL_REDUCE, [tensor], [tensor])
    for r in ranks:
        r.client.sync()
        text = r.failure()
        assert (
            "rank 0 called all_reduce(sum) of 2 Float and rank 2 called all_reduce(sum) of 3"
            in text
        )
        # What is in the tensor is not defined, but it is there.
        assert len(r.value(T(r.storages, (2,)))) == 2
        r.client.write(r.storages, struct.pack("<ff", 5.0, 6.0))
        assert r.value(T(r.storages, (2,))) == [5.0, 6.0]
    for r in ranks:  # and the group goes on
        tensor = r.floats([1.0])
        r.collective(ALL_REDUCE, [tensor], [tensor])
    assert [r.value(T(r.storages, (1,))) for r in ranks] == [[4.0]] * SIZE


def test_a_rank_that_cannot_take_part_tells_the_others(ranks: Ranks) -> None:
    for r in ranks[1:]:
        tensor = r.floats([1.0])
        r.collective(ALL_REDUCE, [tensor], [tensor])
    ranks[0].client.op("mm", T(77, (2,)), T(78, (2,)), base=500)  # fails: these do not exist
    ranks[0].collective(ALL_REDUCE, [T(500, (1,))], [T(500, (1,))])
    for r in ranks[1:]:
        r.client.sync()
        assert "rank 0 could not take part" in r.failure()


def test_results_may_be_freed_before_they_come(ranks: Ranks) -> None:
    for r in ranks:
        source, out = r.floats([1.0]), r.empty(1)
        r.collective(ALL_REDUCE, [source], [out])
        r.client.record(w.FREE, struct.pack("<QQ", source.id, out.id), base=2)
        r.client.publish()
    for r in ranks:
        assert r.client.sync()[1] == 0


def test_rank_that_ends_fails_the_others(ranks: Ranks) -> None:
    out = ranks[0].floats([1.0])
    ranks[0].collective(ALL_REDUCE, [out], [out])
    asked = ranks[0].client.record(w.SYNC, flags=w.REPLY)
    ranks[0].client.publish()
    (proxy,) = [p for p in ranks.proxies if "r3" in p.call("stats")["rings"]]
    proxy.call("close_ring", ring_id="r3")
    began = time.monotonic()
    ranks[0].client.reply(asked)
    assert time.monotonic() - began < 30
    assert "rank 3 has ended without taking part" in ranks[0].failure()


def test_leaving_the_last_rank_removes_the_files(ranks: Ranks, shm: Path) -> None:
    for r in ranks:
        tensor = r.floats([1.0])
        r.collective(ALL_REDUCE, [tensor], [tensor])
        r.leave()
    for r in ranks:
        r.client.sync()
    assert not list(shm.glob("group-*"))


def test_ranks_of_one_group_want_the_same_order(shm: Path, proxies: Proxies) -> None:
    ranks = serve(shm, proxies, [0, 0, 1, 1])
    for r in ranks:
        r.join(Group(SIZE, fast=r.rank >= 2))
    for r in ranks:
        tensor = r.floats([1.0])
        r.collective(ALL_REDUCE, [tensor], [tensor])
    for r in ranks:
        r.client.sync()
        assert "rank 0 wants collectives to be bitwise and rank 2 wants them fast" in r.failure()
        r.client.close()


def test_an_order_that_does_not_exist_is_refused(shm: Path, proxies: Proxies) -> None:
    (rank,) = serve(shm, proxies, [0])
    body = bytes(16) + struct.pack("<IIQI", 0, 1, 1000, 0)
    rank.client.record(16, body, base=1, op=2)
    rank.client.publish()
    rank.client.sync()
    assert "unknown order of reductions" in rank.client.failure
    rank.client.close()


def test_timeout(shm: Path, proxies: Proxies) -> None:
    ranks = serve(shm, proxies, [0, 0])
    for r in ranks:
        r.join(Group(2, timeout_ms=300))
    tensor = ranks[0].floats([1.0])
    ranks[0].collective(ALL_REDUCE, [tensor], [tensor])
    ranks[0].client.sync()
    assert "rank 1 did not take part within 0.3 s" in ranks[0].failure()
    for r in ranks:
        r.client.close()


def test_no_limit_counts_while_the_driver_has_a_rank(shm: Path, proxies: Proxies) -> None:
    """Its proxy is held, so that its device can be parked: no fault of the rank's."""
    ranks = serve(shm, proxies, [0, 1], journal=1 << 20)
    for r in ranks:
        r.join(Group(2, timeout_ms=500))
        r.client.sync()
    held = ranks.proxies[1]
    held.call("hold")
    tensors = [r.floats([1.0]) for r in ranks]
    ranks[0].collective(ALL_REDUCE, [tensors[0]], [tensors[0]])
    time.sleep(1.5)
    held.call("release", epoch=2)
    ranks[1].collective(ALL_REDUCE, [tensors[1]], [tensors[1]])
    assert [r.value(t) for r, t in zip(ranks, tensors, strict=True)] == [[2.0], [2.0]]
    # And it counts again for one that is there.
    ranks[0].collective(ALL_REDUCE, [tensors[0]], [tensors[0]])
    ranks[0].client.sync()
    assert "rank 1 did not take part within 0.5 s" in ranks[0].failure()
    for r in ranks:
        r.client.close()
