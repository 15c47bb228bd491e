"""Ranks that share a device proxy run one at a time, and one that waits holds nobody."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import Conflict
from support import proxy_device as w
from support.proxy_collectives import ALL_REDUCE, Group, Rank, make_ranks
from support.proxy_device import Device, Proxies, Proxy, T, Value, make_ring

JOURNAL = 1 << 20


@pytest.fixture
def proxy(proxies: Proxies) -> Proxy:
    return proxies.bound()


@pytest.fixture
def pair(shm: Path, proxy: Proxy) -> Iterator[list[Rank]]:
    """Two ranks of one group on one proxy."""
    ranks = make_ranks(shm, 2)
    for rank in ranks:
        proxy.attach(rank.client, journal=JOURNAL)
        rank.join(Group(2))
        rank.client.sync()
    yield ranks
    for rank in ranks:
        rank.client.close()


def stats(proxy: Proxy, rank: int) -> dict[str, Any]:
    return dict(proxy.call("stats")["rings"][f"r{rank}"])


def step(rank: Rank, source: T, records: int) -> None:
    """One made-up step: many records, a collective, and a use of its result."""
    for _ in range(records):
        rank.client.op("mul_.Scalar", source, Value(1.0), flags=w.NO_OUTPUTS)
    rank.collective(ALL_REDUCE, [source], [source])
    rank.client.op("mul_.Scalar", source, Value(0.5), flags=w.NO_OUTPUTS)


def test_the_turn_passes_once_a_step_and_not_with_each_record(
    pair: list[Rank], proxy: Proxy
) -> None:
    steps, records = 10, 300
    before = proxy.call("stats")["turn_switches"]
    sources = [r.floats([1.0] * 1000) for r in pair]
    for _ in range(steps):
        for r in pair:
            step(r, sources[r.rank], records)
    assert [r.value(s)[0] for r, s in zip(pair, sources, strict=True)] == [1.0, 1.0]
    switches = proxy.call("stats")["turn_switches"] - before
    # Once a step and rank, and a few where a queue was empty for a moment: never once a record.
    assert steps <= switches < steps * records / 10
    assert all(stats(proxy, r.rank)["sync_points"] >= steps - 1 for r in pair)


def test_a_rank_whose_worker_does_something_else_holds_nobody(
    pair: list[Rank], proxy: Proxy
) -> None:
    first, second = pair
    a, b = first.floats([1.0]), second.floats([2.0])
    first.client.sync()  # it has the turn, and now its queue stays empty
    began = time.monotonic()
    assert second.value(b) == [2.0]
    assert time.monotonic() - began < 30
    assert first.value(a) == [1.0]


def test_rings_without_groups_take_no_turns(pair: list[Rank], proxy: Proxy, shm: Path) -> None:
    first = pair[0]
    source = T(900, (500_000,))
    first.client.op("ones", [500_000], w.FLOAT, None, Device(), None, base=source.id)
    for _ in range(300):
        first.client.op("exp", source, base=1000, flags=w.ALL_NEW)
    alone = make_ring(shm / "alone.ring")
    proxy.attach(alone)
    alone.call("ones", [4], w.FLOAT, None, Device(), None, base=1)
    assert first.client.done_seq < first.client.seq, "the first ring was done too early to tell"
    assert w.floats(alone.read(1, 16)) == [1.0] * 4
    assert proxy.call("stats")["rings"]["alone"]["turn_wait_ns"] == 0
    first.client.sync()
    alone.close()


def blocked(rank: Rank, proxy: Proxy, tensor: T) -> int:
    """The rank waits for the other one; the number of the read that waits."""
    rank.collective(ALL_REDUCE, [tensor], [tensor])
    asked = rank.client.record(w.READ, struct.pack("<QQ", 0, 4), flags=w.REPLY, base=tensor.id)
    rank.client.publish()
    deadline = time.monotonic() + 30
    while stats(proxy, rank.rank)["activity"] != "blocked":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return asked


def test_a_blocked_rank_is_parked_at_once_and_goes_on_elsewhere(
    pair: list[Rank], proxy: Proxy, proxies: Proxies
) -> None:
    a, b = pair[0].floats([1.0]), pair[1].floats([2.0])
    asked = blocked(pair[0], proxy, a)
    assert "waits for rank 1" in stats(proxy, 0)["waits_for"]
    began = time.monotonic()
    proxy.call("park")
    assert time.monotonic() - began < 30
    proxy.finish()
    other = proxies.bound(device="cpu:1", epoch=2)
    for r in pair:
        other.attach(r.client, journal=JOURNAL, epoch=2)
    pair[1].collective(ALL_REDUCE, [b], [b])
    assert w.floats(pair[0].client.reply(asked).payload) == [3.0]
    assert pair[1].value(b) == [3.0]


def test_ranks_of_a_parked_proxy_may_go_on_on_two(
    pair: list[Rank], proxy: Proxy, proxies: Proxies
) -> None:
    a, b = pair[0].floats([1.0]), pair[1].floats([2.0])
    asked = blocked(pair[0], proxy, a)
    proxy.call("park")
    proxy.finish()
    for r in pair:
        proxies.bound(device=f"cpu:{r.rank}", epoch=2).attach(r.client, journal=JOURNAL, epoch=2)
    pair[1].collective(ALL_REDUCE, [b], [b])
    assert w.floats(pair[0].client.reply(asked).payload) == [3.0]
    assert pair[1].value(b) == [3.0]


def test_a_checkpoint_in_the_middle_of_a_collective_is_refused(
    pair: list[Rank], proxy: Proxy, tmp_path: Path
) -> None:
    a, b = pair[0].floats([1.0]), pair[1].floats([2.0])
    asked = blocked(pair[0], proxy, a)
    with pytest.raises(Conflict, match=r"waits for rank 1.*stop all ranks"):
        proxy.call("checkpoint", directory=str(tmp_path / "c"))
    assert not list((tmp_path / "c").iterdir())
    pair[1].collective(ALL_REDUCE, [b], [b])
    assert w.floats(pair[0].client.reply(asked).payload) == [3.0]
    assert pair[1].value(b) == [3.0]
    assert proxy.call("checkpoint", directory=str(tmp_path / "c"))["files"]


def test_groups_survive_park_and_attach(
    pair: list[Rank], proxy: Proxy, proxies: Proxies, shm: Path
) -> None:
    sources = [r.floats([1.0]) for r in pair]
    for round_ in range(3):
        for r in pair:
            r.collective(ALL_REDUCE, [sources[r.rank]], [sources[r.rank]])
        assert [r.value(s) for r, s in zip(pair, sources, strict=True)] == [
            [2.0 ** (round_ + 1)]
        ] * 2
        proxy.call("park")
        proxy.finish()
        assert not list(shm.glob("*.journal"))
        proxy = proxies.bound(epoch=round_ + 2)
        for r in pair:
            proxy.attach(r.client, journal=JOURNAL, epoch=round_ + 2)
    assert stats(proxy, 0)["groups"][0]["consumed"] == 3


def test_two_groups_in_another_order_do_not_stop_each_other(shm: Path, proxy: Proxy) -> None:
    """Rank 0 begins in group 1, rank 1 in group 2, and neither looks at a result before."""
    ranks = make_ranks(shm, 2)
    other = Group(2, name="other", id=b"o" * 16)
    for r in ranks:
        proxy.attach(r.client, journal=JOURNAL)
        r.join(Group(2), 1)
        r.join(other, 2)
    outs = [(r.floats([1.0]), r.floats([10.0])) for r in ranks]
    for r in ranks:
        for number in (1, 2) if r.rank == 0 else (2, 1):
            tensor = outs[r.rank][number - 1]
            r.collective(ALL_REDUCE, [tensor], [tensor], number=number)
    assert [[r.value(t) for t in outs[r.rank]] for r in ranks] == [[[2.0], [20.0]]] * 2
    for r in ranks:
        r.client.close()


def test_a_ring_that_waits_for_its_turn_can_be_closed(pair: list[Rank], proxy: Proxy) -> None:
    first, second = pair
    source = T(900, (500_000,))
    first.client.op("ones", [500_000], w.FLOAT, None, Device(), None, base=source.id)
    for _ in range(300):
        first.client.op("exp", source, base=1000, flags=w.ALL_NEW)
    second.floats([1.0])
    done: list[float] = []

    def close() -> None:
        began = time.monotonic()
        proxy.call("close_ring", ring_id="r1")
        done.append(time.monotonic() - began)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join(20)
    assert done
    assert done[0] < 10
    tensor = first.floats([1.0])
    first.collective(ALL_REDUCE, [tensor], [tensor])
    first.client.sync()
    assert "rank 1 has ended" in first.failure()
