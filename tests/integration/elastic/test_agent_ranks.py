"""Ranks of `torchrun` in a session of a real node agent: resized, parked and killed in training."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from singularity_proxy.errors import Conflict
from support.agent import AgentBox, until
from support.agent_moves import gone, resume, suspend
from support.agent_ranks import PHYSICAL, RANKS, processes, result, step, trains
from support.capsules import needs_criu
from support.processes import stop_process

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio]

STEPS = 200
HANGS_S = 10.0
FEW = "--NodeAgent.proxy_threads=1"

Numbers = list[tuple[list[str], str]]


async def ended(box: AgentBox, session: str) -> str:
    """How the session ended."""
    await until(lambda: any(t == "process.exited" for _, t, _ in box.events), timeout=120)
    return str((await box.event("process.exited", session))["reason"])


@pytest.fixture(scope="module")
def undisturbed() -> Numbers:
    async def run() -> Numbers:
        async with AgentBox(FEW, cpu_devices=RANKS, warm=2) as box:
            assert "exit code 0" in await ended(box, await trains(box, STEPS))
            return result(box)

    return asyncio.run(run())


async def goes_on(box: AgentBox, session: str) -> None:
    before = step(box, session)
    await until(lambda: step(box, session) > before, lambda: box.log(session))


async def stands(box: AgentBox, session: str) -> None:
    """Wait until its ranks wait for one that is stopped: they are ahead of it then."""
    before = -1
    while before != (now := step(box, session)):
        before = now
        await asyncio.sleep(0.5)


@needs_criu
@pytest.mark.parametrize("torchrun", [True, False], ids=["torchrun", "singularity run"])
async def test_launcher_and_ranks_are_suspended_and_come_back(
    torchrun: bool, undisturbed: Numbers
) -> None:
    """All of them in one image, on fewer devices then. They are still connected to their store."""
    async with AgentBox(FEW, cpu_devices=RANKS, warm=2) as box:
        session = await trains(box, STEPS, torchrun=torchrun)
        done = await suspend(box, session, 1)
        await gone(box, session)
        box.forget_events()
        stored = done["checkpoint"]["id"]
        back = await resume(box, session, 2, stored, virtual_devices=RANKS)
        assert f"{RANKS + 1} processes" in back["loss"]["back"]
        assert not [lost for lost in back["loss"]["lost"] if "connection" in lost]
        await box.event("device.need", session)
        await box.attach(session, 2, *PHYSICAL[1])
        assert "exit code 0" in await ended(box, session)
        assert result(box) == undisturbed


async def test_resized_and_parked_in_training_the_bits_stay(undisturbed: Numbers) -> None:
    async with AgentBox(FEW, cpu_devices=RANKS, warm=2) as box:
        session = await trains(box, STEPS)
        done = await box.resize(session, 2, *PHYSICAL[1])
        assert done["moved"] == [1, 2]
        assert len(box.proxies_of(session)) == 1
        await goes_on(box, session)
        assert (await box.park(session, 2))["bytes"] > 0
        assert box.proxies_of(session) == []
        stood = step(box, session)
        await asyncio.sleep(0.5)
        assert step(box, session) == stood
        await box.attach(session, 3, *PHYSICAL[2])
        await goes_on(box, session)
        await box.resize(session, 4, *PHYSICAL[3])
        assert len(box.proxies_of(session)) == RANKS
        await goes_on(box, session)
        assert "exit code 0" in await ended(box, session)
        assert result(box) == undisturbed


@pytest.mark.parametrize("victim", ["rank", "launcher"])
async def test_killed_in_the_middle_of_a_resize(victim: str) -> None:
    """One rank is stopped, so that the others wait for it at the barrier."""
    async with AgentBox(FEW, cpu_devices=RANKS, warm=2) as box:
        session = await trains(box, 1_000_000)
        launcher, ranks = processes(box, session)
        assert list(ranks) == list(range(RANKS))
        stop_process(ranks[1])
        await stands(box, session)
        resize = asyncio.ensure_future(box.resize(session, 2, *PHYSICAL[1]))
        await asyncio.sleep(1.0)
        assert not resize.done()
        killed = time.monotonic()
        os.kill(ranks[1] if victim == "rank" else launcher, signal.SIGKILL)
        how = await ended(box, session)
        assert "signal 9" in how.lower()  # torchrun says it of its rank
        await until(lambda: box.everything_of(session) == [])
        assert time.monotonic() - killed < HANGS_S
        [outcome] = await asyncio.gather(resize, return_exceptions=True)
        assert time.monotonic() - killed < HANGS_S
        assert isinstance(outcome, Conflict)
        assert "has ended" in outcome.message
        await until(lambda: box.proxies_of(session) == [])
        [hello] = await box.fleet.hello()
        assert not [s for s in hello["sessions"] if s["session"] == session and s["devices"]]
