"""The barrier on simulated ranks: it is reached where it can be, and gives up where it cannot."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_proxy.elastic.coordinator import ELSEWHERE_S, Barrier, Cut, look
from singularity_proxy.elastic.placement import Group
from singularity_proxy.errors import BarrierFailed, Unavailable
from support import matrix
from support.elastic_ranks import (
    Collective,
    Compute,
    Die,
    Meet,
    Proxy,
    Rank,
    Step,
    Use,
    World,
    run,
)  # fmt: skip

FOUR = (0, 1, 2, 3)


def steps(rank: int, count: int, *, buckets: int = 3, seconds: float = 0.01) -> list[Step]:
    """Training steps with gradient buckets: the results are used at the end of a step."""
    one: list[Step] = [Compute(seconds * (1 + 0.1 * rank))]
    for _ in range(buckets):
        one += [Compute(seconds / 2), Collective("dp", FOUR)]
    return [*one, Use("dp"), Compute(seconds / 5)] * count


def make(
    programs: list[list[Step]], places: list[list[int]], chance: random.Random | None = None
) -> tuple[World, list[Rank], list[Proxy]]:
    world = World(programs, chance)
    ranks = [Rank(world, i) for i in range(len(programs))]
    return world, ranks, [Proxy(world, [ranks[i] for i in place]) for place in places]


async def finish(ranks: list[Rank], tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait_for(asyncio.gather(*tasks), 1000)
    for rank in ranks:
        assert rank.failed or rank.ended


def check(world: World, ranks: list[Rank], cut: Cut) -> None:
    """It is a consistent cut, and it stays one."""
    for key, contributed in world.contributed.items():
        present = {c for r, c in contributed.items() if not ranks[r].ended}
        assert len(present) <= 1, (key, contributed)
        if present:
            assert present == {cut.contributed[key]}
    for rank in ranks:
        assert rank.stopped or rank.ended or not rank.groups()


async def check_for_a_second(world: World, ranks: list[Rank], cut: Cut) -> None:
    """It is a consistent cut, and nobody goes on behind it."""
    check(world, ranks, cut)
    await asyncio.sleep(1)
    check(world, ranks, cut)


@pytest.mark.parametrize("places", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2], [3]]])
def test_a_step_or_two_until_all_stand(places: list[list[int]]) -> None:
    async def go() -> None:
        world, ranks, proxies = make([steps(r, 60) for r in FOUR], places)
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        late = []
        for trigger in range(20):
            await asyncio.sleep(random.Random(trigger).uniform(0.0, 0.08))
            before = [rank.position for rank in ranks]
            async with Barrier(proxies) as barrier:
                cut = await barrier.reach(10)
                check(world, ranks, cut)
                late.append(max(r.position - b for r, b in zip(ranks, before, strict=True)) / 9)
                held = [rank.position for rank in ranks]
                await asyncio.sleep(5)
                assert held == [rank.position for rank in ranks]
                check(world, ranks, cut)
        assert max(late) <= 2
        await finish(ranks, tasks)
        assert set(world.contributed["dp"].values()) == {180}

    run(go())


def test_ranks_held_and_ranks_waiting_for_them() -> None:
    """Two stand at n, two wait for them at n + 1: the next round lets the first two go on."""

    async def go() -> None:
        slow: list[Step] = [Collective("g", FOUR), Use("g"), Compute(0.2), *steps(0, 1)[:1]]
        fast: list[Step] = [Collective("g", FOUR), Use("g")]
        more: list[Step] = [Collective("g", FOUR), Use("g"), Compute(1.0)]
        world, ranks, proxies = make(
            [slow + more, fast + more, slow + more, fast + more], [[0, 1], [2, 3]]
        )
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.05)
        async with Barrier(proxies, grace_s=0.0) as barrier:
            cut = await barrier.reach(10)
            check(world, ranks, cut)
            assert cut.seconds < 1.0
        await finish(ranks, tasks)

    run(go())


def test_ranks_that_wait_for_each_other_outside_of_the_device() -> None:
    async def go() -> None:
        first: list[Step] = [Collective("g", FOUR), Use("g")]
        then: list[Step] = [Meet("m", FOUR), Collective("g", FOUR), Use("g"), Compute(2)]
        pair = Collective("h", (1, 2))
        programs: list[list[Step]] = [
            [*first, Compute(0.5), *then],
            [*first, Compute(1e-3), pair, Compute(3.0), *then],
            [*first, Meet("n", (1, 2)), pair, Use("h"), *then],
            [*first, *then],
        ]
        programs[1].insert(5, Meet("n", (1, 2)))  # rank 2 comes to "h" only when rank 1 was here
        world, ranks, proxies = make(programs, [[0, 1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.02)
        async with Barrier(proxies, grace_s=0.0) as barrier:
            cut = await barrier.reach(30)
            check(world, ranks, cut)
            assert cut.seconds > 1.0
        await finish(ranks, tasks)

    run(go())


def test_ranks_that_were_just_let_go_do_not_stand() -> None:
    """Rank 0 can come to where rank 2 waits only when rank 1 goes on: all are let go on to one more
    collective. Ranks 1 and 3 are told as standing, level, just before they do."""

    async def go() -> None:
        one, other = Collective("one", (0, 2)), Collective("other", (1, 3))
        twice: list[Step] = [one, Use("one"), one, Use("one"), Compute(9)]
        once: list[Step] = [other, Use("other"), Compute(9)]
        programs: list[list[Step]] = [
            [Meet("m", (0, 1)), *twice],
            [Compute(0.01), Meet("m", (0, 1)), Compute(0.05), *once],
            twice,
            [Compute(0.01), *once],
        ]
        world, ranks, proxies = make(programs, [[0, 2], [1, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        async with Barrier(proxies, grace_s=0.0) as barrier:
            cut = await barrier.reach(10)
            await check_for_a_second(world, ranks, cut)
        await finish(ranks, tasks)

    run(go())


def test_messages_between_two_ranks_count_on_their_own() -> None:
    async def go() -> None:
        pipe = (0, 1)

        def program(rank: int) -> list[Step]:
            forward: list[Step] = []
            for _ in range(8):  # a pipeline: the first stage is far ahead
                forward += [Compute(0.002 if rank == 0 else 0.02), Collective("g:0>1", pipe)]
                forward += [Use("g:0>1")] if rank == 1 else []
            return [*forward, Collective("g", pipe), Use("g")] * 3

        world, ranks, proxies = make([program(0), program(1)], [[0], [1]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        for seed in range(6):
            await asyncio.sleep(random.Random(seed).uniform(0.0, 0.1))
            async with Barrier(proxies) as barrier:
                check(world, ranks, await barrier.reach(10))
        await finish(ranks, tasks)

    run(go())


def test_a_rank_that_does_not_come_costs_nothing_but_the_deadline() -> None:
    async def go() -> None:
        lazy: list[Step] = [Compute(100.0), *steps(3, 5)]
        world, ranks, proxies = make([*(steps(r, 5) for r in range(3)), lazy], [[0, 1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            BarrierFailed, match=r"within 5 s .rank 3 of group 'dp' has not come"
        ) as it:
            await Barrier(proxies).reach(5)
        assert asyncio.get_running_loop().time() - began < 5.1
        assert "nothing was changed and all of them go on" in it.value.message
        assert all(proxy.targets is None for proxy in proxies)
        await finish(ranks, tasks)
        assert set(world.contributed["dp"].values()) == {15}

    run(go())


def test_a_rank_that_dies_meanwhile() -> None:
    async def go() -> None:
        dies: list[Step] = [*steps(3, 3)[:-4], Die()]
        _, ranks, proxies = make([*(steps(r, 9) for r in range(3)), dies], [[0, 1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.1)
        async with Barrier(proxies) as barrier:
            await barrier.reach(5)  # of those that are left, when the others have failed
        await finish(ranks, tasks)
        assert [rank.failed for rank in ranks] == [True, True, True, False]

    run(go())


@pytest.mark.parametrize("call", [1, 2])
def test_a_proxy_that_dies_meanwhile(call: int) -> None:
    async def go() -> None:
        _, ranks, proxies = make([steps(r, 20) for r in FOUR], [[0, 1], [2, 3]])
        proxies[1].fails_at = call
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable, match="closed the connection"):
            await Barrier(proxies, grace_s=10).reach(5)
        assert all(proxy.targets is None for proxy in proxies)
        await finish(ranks, tasks)

    run(go())


def test_a_barrier_that_is_cancelled_lets_everybody_go() -> None:
    async def go() -> None:
        _, ranks, proxies = make([steps(r, 20) for r in FOUR], [[0, 1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.1)
        reaching = asyncio.create_task(Barrier(proxies, grace_s=10).reach(5))
        await asyncio.sleep(0.003)
        reaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reaching
        assert all(proxy.targets is None for proxy in proxies)
        await finish(ranks, tasks)

    run(go())


def test_ranks_that_were_moved_are_held_by_their_new_proxy() -> None:
    async def go() -> None:
        world, ranks, proxies = make([steps(r, 20) for r in FOUR], [[0, 1, 2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.1)
        barrier = Barrier(proxies)
        cut = await barrier.reach(5)
        new = Proxy(world, [])
        await barrier.join(new)
        proxies[0].ranks, new.ranks = ranks[:2], ranks[2:]
        for rank in new.ranks:
            rank.proxy = new
        world.notify()
        await check_for_a_second(world, ranks, cut)
        await barrier.release()
        await finish(ranks, tasks)

    run(go())


def test_who_is_where() -> None:
    async def go() -> None:
        _, ranks, proxies = make([steps(r, 5) for r in FOUR], [[0, 1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        view = await look(proxies)
        assert view.groups() == [Group("", FOUR)]
        assert view.targets() == {"dp": 0}
        await finish(ranks, tasks)

    run(go())


# ---- any job


Job = tuple[list[list[Step]], list[list[int]], list[float], float]
"""Programs, the ranks of each proxy, the pauses before barriers, and their `grace_s`."""


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Programs that end without a barrier: every rank meets its collectives in one common order."""
    count = draw(st.integers(2, 5))
    everyone = tuple(range(count))
    tangled = draw(st.booleans())  # small groups whose ranks often wait outside of the device
    subsets = st.lists(
        st.sampled_from(everyone), min_size=2, max_size=2 if tangled else None, unique=True
    ).map(lambda x: tuple(sorted(x)))
    groups = {} if tangled else {"all": everyone}
    few = draw(st.lists(subsets, min_size=1 if tangled else 0, max_size=4 if tangled else 3))
    groups |= {f"g{i}": members for i, members in enumerate(few)}
    seconds = st.sampled_from([0.0, 0.001, 0.01, 0.1])
    programs: list[list[Step]] = [[] for _ in everyone]
    for number in range(draw(st.integers(1, 12))):
        key = draw(st.sampled_from(sorted(groups)))
        outside = draw(st.integers(0, 9)) < (5 if tangled else 1)
        for rank in groups[key]:
            programs[rank].append(Compute(draw(seconds)))
            if outside:
                programs[rank].append(Meet(f"m{number}", groups[key]))
            else:
                programs[rank].append(Collective(key, groups[key]))
                if draw(st.booleans()):
                    programs[rank].append(Use(key))
    for rank in everyone:
        brought = {step.key for step in programs[rank] if isinstance(step, Collective)}
        programs[rank] += [Use(key) for key in sorted(brought)]
    proxies = draw(st.integers(1, count))
    places: list[list[int]] = [[] for _ in range(proxies)]
    for rank in everyone:
        places[draw(st.integers(0, proxies - 1))].append(rank)
    triggers = draw(st.lists(st.floats(0, 0.3), min_size=1, max_size=4))
    return programs, places, triggers, draw(st.sampled_from([0.0, 0.02, 0.5]))


@settings(deadline=None, max_examples=300 if matrix.is_full() else 100)
@given(jobs(), st.none() | st.integers(0, 1 << 32))
def test_any_job_stands_and_goes_on(job: Job, seed: int | None) -> None:
    """In any order of what happens at one moment, and with messages and threads of any speed; or,
    without a `seed`, in the usual order."""
    programs, places, triggers, grace = job
    chance = None if seed is None else random.Random(seed)

    async def go() -> None:
        world, ranks, proxies = make(programs, places, chance)
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        for pause in triggers:
            await asyncio.sleep(pause)
            async with Barrier(proxies, grace_s=grace) as barrier:
                cut = await barrier.reach(60)
                await check_for_a_second(world, ranks, cut)
        await finish(ranks, tasks)
        for key, contributed in world.contributed.items():
            assert len(set(contributed.values())) == 1, key

    run(go(), chance)


def test_a_thousand_triggers() -> None:
    """At random moments of a job with two kinds of groups: no hang, and never far."""
    pairs, crosses = [(0, 1), (2, 3)], [(0, 2), (1, 3)]

    def program(rank: int) -> list[Step]:
        tensor = next(p for p in pairs if rank in p)
        data = next(p for p in crosses if rank in p)
        one: list[Step] = []
        for _ in range(3):
            one += [
                Compute(0.002 * (1 + rank % 3)),
                Collective(f"tp{tensor[0]}", tensor),
                Use(f"tp{tensor[0]}"),
            ]
        for _ in range(2):
            one += [Compute(0.001), Collective(f"dp{data[0]}", data)]
        return [*one, Use(f"dp{data[0]}"), Compute(0.004)] * 4000

    async def go() -> None:
        chance = random.Random(9)
        world, ranks, proxies = make([program(r) for r in FOUR], [[0, 2], [1, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        late = []
        for _ in range(1000):
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            before = [rank.position for rank in ranks]
            async with Barrier(proxies) as barrier:
                check(world, ranks, await barrier.reach(5))
            late.append(max(r.position - b for r, b in zip(ranks, before, strict=True)) / 15)
        assert sorted(late)[500] <= 1
        assert max(late) <= 2
        for task in tasks:
            task.cancel()

    run(go())


def test_a_part_does_not_wait_for_ranks_of_other_nodes_that_stand() -> None:
    """Ranks 2 and 3 stand, on another node, behind a collective that the others wait in."""

    async def main() -> None:
        programs = [steps(rank, 50) for rank in FOUR]
        world, ranks, proxies = make(programs, [[0], [1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.2)
        elsewhere = proxies[2]
        elsewhere.targets, elsewhere.grace_s = {"dp": 1}, 0.0  # they stand from now on
        world.notify()
        await asyncio.sleep(1.0)
        with pytest.raises(BarrierFailed, match="a result in group 'dp' is not there yet"):
            await Barrier(proxies[:2]).reach(5)
        async with Barrier(proxies[:2], part=True) as barrier:
            cut = await barrier.reach(5)
            assert cut.seconds < 2 * ELSEWHERE_S
            assert all(rank.stopped or rank.blocked for rank in ranks)
            assert cut.groups == [Group("", (0, 1), elsewhere=2)]
        await elsewhere.barrier_release()
        await finish(ranks, tasks)

    run(main())


@pytest.mark.parametrize("seconds", [1.0, 1.005, 1.01, 1.015, 1.02, 1.025])
def test_ranks_of_a_part_that_were_just_let_go_do_not_stand(seconds: float) -> None:
    """Rank 0 comes to wait for rank 3, which stands on another node, just when ranks 1 and 2 were
    let go on to one more collective."""

    async def main() -> None:
        cross, pair = Collective("cross", (0, 3)), Collective("pair", (1, 2))
        here: list[Step] = [Compute(0.01), pair, Use("pair"), Compute(9)]
        programs: list[list[Step]] = [
            [cross, Compute(seconds), Use("cross")],
            here,
            here,
            [Compute(9), cross, Use("cross")],
        ]
        world, ranks, proxies = make(programs, [[0], [1, 2], [3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        async with Barrier(proxies[:2], grace_s=0.0, part=True) as barrier:
            cut = await barrier.reach(5)
            await asyncio.sleep(seconds)
            assert {world.contributed["pair"][rank] for rank in (1, 2)} == {cut.contributed["pair"]}
            assert ranks[0].stopped or ranks[0].blocked
            assert all(rank.stopped for rank in ranks[1:3])
        await finish(ranks, tasks)

    run(main())


def test_a_part_whose_ranks_elsewhere_go_on_comes_to_a_common_place() -> None:
    async def main() -> None:
        world, ranks, proxies = make([steps(rank, 50) for rank in FOUR], [[0], [1], [2, 3]])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.21)
        async with Barrier(proxies[:2], part=True) as barrier:
            cut = await barrier.reach(5)
            here = {world.contributed["dp"][rank] for rank in (0, 1)}
            assert here == {cut.contributed["dp"]}
            assert all(rank.stopped for rank in ranks[:2])
            assert cut.seconds < ELSEWHERE_S
        await finish(ranks, tasks)

    run(main())


def test_two_parts_that_stop_at_the_same_time_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        for after in (0.15, 0.17, 0.2, 0.23):
            _, ranks, proxies = make([steps(rank, 50) for rank in FOUR], [[0], [1], [2], [3]])
            tasks = [asyncio.create_task(rank.run()) for rank in ranks]
            await asyncio.sleep(after)
            one, other = Barrier(proxies[:2], part=True), Barrier(proxies[2:], part=True)
            await asyncio.gather(one.reach(5), other.reach(5))
            assert all(rank.stopped or rank.blocked for rank in ranks)
            await asyncio.gather(one.release(), other.release())
            await finish(ranks, tasks)

    run(main())
