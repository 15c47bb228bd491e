"""Device proxies are killed while ranks are in collectives: the job goes on with the same bits."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import matrix, sanitizer
from support import proxy_device as w
from support.proxy_collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    RECV,
    REDUCE_SCATTER,
    SEND,
    Group,
    Rank,
    make_ranks,
)
from support.proxy_device import Proxies, Proxy, T, Value
from support.proxy_fuzz import Program

SIZE = 4
COUNT = 1000
PLACES = {"p1": [0, 0, 0, 0], "p2": [0, 0, 1, 1], "p4": [0, 1, 2, 3]}


def program(rank: Rank, steps: int, pause: Callable[[], None]) -> list[bytes]:
    """A rank of a made-up training: noise of its own, three kinds of collectives, and messages to
    its neighbour; what it reads on the way depends on every bit of all ranks before it."""
    client = rank.client
    client.record(w.SEED, struct.pack("<Q", rank.rank))
    weights = rank.floats([1.0] * COUNT)
    quarter = COUNT // SIZE
    parts = rank.empty(COUNT)
    reduced, got = rank.empty(quarter), rank.empty(quarter)
    rank.collective(BROADCAST, [weights] if rank.rank == 1 else [], [weights], root=1)
    seen = []
    for step in range(steps):
        noise = T(10_000 + step, (COUNT,))
        client.op("rand", [COUNT], w.FLOAT, None, w.Device(), None, base=noise.id)
        client.op("add_.Tensor", noise, weights, Value(1.0), flags=w.NO_OUTPUTS)
        rank.collective(ALL_REDUCE, [noise], [noise])
        client.op("add_.Tensor", weights, noise, Value(0.01), flags=w.NO_OUTPUTS)
        slices = [T(weights.id, (quarter,), offset=i * quarter) for i in range(SIZE)]
        rank.collective(REDUCE_SCATTER, slices, [reduced])
        rank.collective(SEND, [reduced], root=(rank.rank + 1) % SIZE)
        rank.collective(RECV, [], [got], root=(rank.rank - 1) % SIZE)
        client.op("mul_.Scalar", got, Value(0.001), flags=w.NO_OUTPUTS)
        whole = [T(parts.id, (quarter,), offset=i * quarter) for i in range(SIZE)]
        rank.collective(ALL_GATHER, [got], whole)
        client.op("add_.Tensor", weights, parts, Value(1.0), flags=w.NO_OUTPUTS)
        client.op("mul_.Scalar", weights, Value(0.5), flags=w.NO_OUTPUTS)
        client.record(w.FREE, struct.pack("<Q", noise.id), base=1)
        if step % 5 == rank.rank:
            seen.append(client.read(weights.id, 64))
        pause()
    seen.append(client.read(weights.id, 4 * COUNT))
    return seen


class Session:
    """Ranks on proxies that are replaced when they were killed."""

    def __init__(
        self,
        shm: Path,
        bound: Callable[..., Proxy],
        places: list[int],
        journal: int,
        fast: bool = False,
    ) -> None:
        self._bound, self._places, self._journal, self._fast = bound, places, journal, fast
        self.ranks = make_ranks(shm, len(places))
        self.epoch = 0
        self.served: dict[int, Proxy] = {}
        self.kills = 0
        for place in set(places):
            self.serve(place)

    def serve(self, place: int) -> None:
        self.epoch += 1
        proxy = self._bound(device=f"cpu:{place}", epoch=self.epoch)
        self.served[place] = proxy
        for rank, at in zip(self.ranks, self._places, strict=True):
            if at == place:
                proxy.attach(rank.client, journal=self._journal, epoch=self.epoch)

    def kill(self, place: int) -> None:
        self.served[place].kill()
        self.kills += 1
        self.serve(place)

    def move(self, places: list[int]) -> None:
        """Kill all proxies; others serve the ranks elsewhere, without asking where these are."""
        for proxy in self.served.values():
            proxy.kill()
            self.kills += 1
        self.served.clear()
        self._places = places
        for place in dict.fromkeys(places):
            self.serve(place)

    def run(self, steps: int, disturb: Callable[[], None] | None = None) -> list[list[bytes]]:
        results: list[list[bytes]] = [[] for _ in self.ranks]
        for rank in self.ranks:
            rank.join(Group(SIZE, fast=self._fast))
        rng = random.Random(1)

        def pause() -> None:
            time.sleep(rng.random() * 0.003)

        def work(rank: Rank) -> None:
            results[rank.rank] = program(rank, steps, pause)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in self.ranks]
        for thread in threads:
            thread.start()
        while disturb and any(thread.is_alive() for thread in threads):
            disturb()
        for thread in threads:
            thread.join()
        for rank in self.ranks:
            assert rank.client.error_seq == 0, rank.client.failure
            rank.client.close()
        return results


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    return {}


def undisturbed(
    expected: dict[int, Any], steps: int, shm: Path, proxies: Proxies
) -> list[list[bytes]]:
    if steps not in expected:
        folder = shm / "undisturbed"
        folder.mkdir()
        expected[steps] = Session(folder, proxies.bound, PLACES["p1"], 0).run(steps)
    return list(expected[steps])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("places", PLACES)
def test_the_bits_do_not_depend_on_the_number_of_proxies(
    places: str, shm: Path, proxies: Proxies, expected: dict[int, Any]
) -> None:
    same = undisturbed(expected, 20, shm, proxies)
    assert Session(shm, proxies.bound, PLACES[places], 1 << 20).run(20) == same


@pytest.mark.timeout(600)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("journal", [1 << 16, 8 << 20], ids=["short", "long"])
def test_proxies_that_are_killed_change_no_bit(
    places: str, journal: int, shm: Path, proxies: Proxies, expected: dict[int, Any]
) -> None:
    steps = 400 if matrix.is_full() else 300
    same = undisturbed(expected, steps, shm, proxies)
    session = Session(shm, proxies.bound, PLACES[places], journal)
    rng = random.Random(f"{places} {journal}")

    def disturb() -> None:
        time.sleep(rng.random() * 0.15)
        session.kill(rng.choice(sorted(session.served)))

    assert session.run(steps, disturb) == same
    assert session.kills >= 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("journal", [1 << 16, 8 << 20], ids=["short", "long"])
@pytest.mark.parametrize("places", [[0, 0, 1, 1], [0, 1, 1, 0]], ids=["p2", "p2-crossed"])
def test_fast_sums_are_the_same_after_a_kill(
    places: list[int], journal: int, shm: Path, proxies: Proxies
) -> None:
    """They depend on what shares a device, and on nothing else."""
    steps = 400 if matrix.is_full() else 200
    folder = shm / "undisturbed"
    folder.mkdir()
    same = Session(folder, proxies.bound, places, 0, fast=True).run(steps)
    session = Session(shm, proxies.bound, places, journal, fast=True)
    rng = random.Random(f"{places} {journal}")

    def disturb() -> None:
        time.sleep(rng.random() * 0.15)
        session.kill(rng.choice(sorted(session.served)))

    assert session.run(steps, disturb) == same
    assert session.kills >= 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("places", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["p1", "p4"])
def test_fast_is_bitwise_where_devices_have_all_ranks_or_one(
    places: list[int], shm: Path, proxies: Proxies, expected: dict[int, Any]
) -> None:
    same = undisturbed(expected, 20, shm, proxies)
    session = Session(shm, proxies.bound, places, 1 << 20, fast=True)
    rng = random.Random(3)

    def disturb() -> None:
        time.sleep(rng.random() * 0.3)
        session.kill(rng.choice(sorted(session.served)))

    assert session.run(20, disturb) == same
    assert session.kills >= 1


@pytest.mark.timeout(600)
def test_ranks_that_come_back_elsewhere_agree_about_fast_sums(
    shm: Path, proxies: Proxies, expected: dict[int, Any]
) -> None:
    """Some have a result already and others compute it again, from sums of other devices."""
    steps = 300 if matrix.is_full() else 150
    layouts = [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3], [0, 1, 1, 1]]
    session = Session(shm, proxies.bound, layouts[0], 8 << 20, fast=True)
    rng = random.Random(4)

    def disturb() -> None:
        time.sleep(rng.random() * 0.3)
        session.move(rng.choice(layouts))

    found = session.run(steps, disturb)
    assert session.kills >= 3
    assert len({seen[-1] for seen in found}) == 1  # the weights, on all ranks
    mine = struct.unpack(f"<{COUNT}f", found[0][-1])
    theirs = struct.unpack(f"<{COUNT}f", undisturbed(expected, steps, shm, proxies)[0][-1])
    assert mine == pytest.approx(theirs, rel=1e-4)


@pytest.mark.timeout(sanitizer.BUILD_SECONDS + 300)
@pytest.mark.parametrize("fast", [False, True], ids=["bitwise", "fast"])
def test_no_memory_is_touched_that_should_not_be(
    fast: bool, short_dir: Path, shm: Path, proxies: Proxies, expected: dict[int, Any]
) -> None:
    """The same with AddressSanitizer: one wrong access ends a proxy in the middle of its work."""
    started: list[Program] = []

    def bound(**params: Any) -> Proxy:
        proxy = Program(short_dir, sanitizer.environment())
        started.append(proxy)
        proxy.bind(**params)
        return proxy

    if fast:
        folder = shm / "fast"
        folder.mkdir()
        same = Session(folder, proxies.bound, PLACES["p2"], 0, fast=True).run(20)
    else:
        same = undisturbed(expected, 20, shm, proxies)
    session = Session(shm, bound, PLACES["p2"], 1 << 16, fast)
    rng = random.Random(2)

    def disturb() -> None:
        time.sleep(rng.random() * 0.5)
        for proxy in session.served.values():
            assert proxy.process.poll() is None, "a proxy ended by itself"
        session.kill(rng.choice(sorted(session.served)))

    try:
        assert session.run(20, disturb) == same
    finally:
        for proxy in started:
            proxy.close()
    assert session.kills >= 1
