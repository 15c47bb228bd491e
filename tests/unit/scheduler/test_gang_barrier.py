"""The service has the ranks of all parts of a gang stop, through the agents of the parts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from singularity_proxy.elastic.coordinator import Barrier
from singularity_proxy.errors import BarrierFailed, Conflict, Unavailable
from singularity_scheduler.agent.ranks.joint import merged
from singularity_scheduler.service.nodes.gang_barrier import PartAt, standing
from support.elastic_ranks import Collective, Compute, Proxy, Rank, Step, Use, World, run

PARTS, RANKS = 2, 4
EPOCH = 7


class Agents:
    """A fleet whose agents know one call, for the device proxies of one part each."""

    def __init__(self, parts: Mapping[str, list[Proxy]]) -> None:
        self._parts = parts
        self.calls: list[tuple[str, str]] = []
        self.fails: dict[str, Exception] = {}

    async def call(self, node: str, method: str, timeout: float | None = 60.0, **it: Any) -> Any:
        assert (method, it.pop("session"), it.pop("epoch")) == ("session.barrier", node, EPOCH)
        call = it.pop("call")
        self.calls.append((node, call))
        if call == "hold" and node in self.fails:
            raise self.fails[node]
        work = [getattr(proxy, f"barrier_{call}")(**it) for proxy in self._parts[node]]
        answers = await asyncio.gather(*work)
        return {} if call == "release" else merged(answers)


def steps(rank: int, count: int) -> list[Step]:
    one = [Compute(0.01 + rank / 1000), Collective("dp", tuple(range(RANKS))), Use("dp")]
    return [*one, Compute(0.002)] * count


def gang(programs: list[list[Step]]) -> tuple[World, list[Rank], Agents]:
    world = World(programs)
    ranks = [Rank(world, number) for number in range(RANKS)]
    proxies = [Proxy(world, [rank]) for rank in ranks]
    return world, ranks, Agents({"one": proxies[:2], "two": proxies[2:]})


def parts(agents: Agents) -> list[PartAt]:
    return [PartAt(agents, node, node, EPOCH) for node in ("one", "two")]  # type: ignore[arg-type]


def test_ranks_of_all_parts_stand_at_one_place_and_go_on() -> None:
    async def go() -> None:
        world, ranks, agents = gang([steps(rank, 50) for rank in range(RANKS)])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        for _ in range(5):
            await asyncio.sleep(0.05)
            async with standing(parts(agents), 10) as cut:
                assert set(world.contributed["dp"].values()) == {cut.contributed["dp"]}
                held = [rank.position for rank in ranks]
                await asyncio.sleep(5)
                assert held == [rank.position for rank in ranks]
            assert agents.calls[-PARTS:] == [("one", "release"), ("two", "release")]
        await asyncio.wait_for(asyncio.gather(*tasks), 100)
        assert set(world.contributed["dp"].values()) == {50}

    run(go())


@pytest.mark.parametrize("error", [Conflict("it has no devices"), Unavailable("it is gone")])
def test_one_agent_that_refuses_lets_all_go_on(error: Exception) -> None:
    async def go() -> None:
        _, ranks, agents = gang([steps(rank, 50) for rank in range(RANKS)])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.05)
        agents.fails["two"] = error
        with pytest.raises(type(error)):
            async with standing(parts(agents), 10):
                raise AssertionError
        await asyncio.wait_for(asyncio.gather(*tasks), 100)

    run(go())


def test_a_gang_without_groups_and_a_group_that_is_not_whole_are_refused() -> None:
    async def go() -> None:
        _, ranks, agents = gang([[Compute(5.0)] for _ in range(RANKS)])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.05)
        with pytest.raises(BarrierFailed, match="have formed no process group on their devices"):
            async with standing(parts(agents), 10):
                raise AssertionError
        await asyncio.wait_for(asyncio.gather(*tasks), 100)

        _, ranks, agents = gang([steps(rank, 50) for rank in range(RANKS)])
        tasks = [asyncio.create_task(rank.run()) for rank in ranks]
        await asyncio.sleep(0.05)
        async with Barrier(parts(agents)) as whole:  # so that those of one part stand
            await whole.reach(10)
            with pytest.raises(BarrierFailed, match="are forming the process group '', or leave"):
                async with standing(parts(agents)[:1], 10):
                    raise AssertionError
        await asyncio.wait_for(asyncio.gather(*tasks), 100)

    run(go())
