"""Virtual devices that move between physical ones, with the real device proxies, in training.

One process trains a model that is split over four virtual devices. However often the physical ones
behind them change, and whatever is killed meanwhile, it prints the losses of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest
from singularity_proxy.errors import Conflict
from support.agent import AgentBox, until
from support.agent_resizing import printed, training

STEPS = 150
PAUSE_S = 0.5
"""After each step, until the test has resized it often enough."""
MAPPINGS = (
    ["cpu:0", "cpu:1", "cpu:2", "cpu:3"],
    ["cpu:0", "cpu:0", "cpu:2", "cpu:2"],
    ["cpu:0", "cpu:0", "cpu:0", "cpu:0"],
    ["cpu:3", "cpu:3", "cpu:3", "cpu:1"],
)


async def trains(box: AgentBox, devices: list[str], pause_s: float = 0.0) -> str:
    session = await box.python(training(STEPS, pause_s), virtual_devices=4)
    await box.event("device.need", session)
    await box.attach(session, 1, *devices)
    return session


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    async def run() -> list[str]:
        async with AgentBox(cpu_devices=4) as box:
            session = await trains(box, MAPPINGS[0])
            await box.logged(session, "done")
            return printed(box.log(session))

    return asyncio.run(run())


@pytest.mark.asyncio
async def test_resized_again_and_again_the_numbers_stay(undisturbed: list[str]) -> None:
    async with AgentBox(cpu_devices=4, warm=2) as box:
        session = await trains(box, MAPPINGS[2], PAUSE_S)
        chance = random.Random(5)
        for epoch in range(2, 12):
            await box.resize(session, epoch, *chance.choice(MAPPINGS))
            await asyncio.sleep(chance.random())
        assert "done" not in box.log(session)
        await box.call("session.signal", session=session, signum=signal.SIGUSR1)
        await box.logged(session, "done")
        assert printed(box.log(session)) == undisturbed


@pytest.mark.asyncio
async def test_kill_minus_9_of_agent_and_proxies_meanwhile(undisturbed: list[str]) -> None:
    async with AgentBox(cpu_devices=4, warm=2) as box:
        session = await trains(box, MAPPINGS[0])
        await until(lambda: "step 3 " in box.log(session))
        for epoch, target in enumerate((MAPPINGS[2], MAPPINGS[0], MAPPINGS[1]), 2):
            resize = asyncio.ensure_future(box.resize(session, epoch, *target, seq=100 + epoch))
            await asyncio.sleep(0.03 * epoch)
            for pid in box.proxies_of(session)[:2]:
                os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(180):  # mostly that of starting interpreters
                await box.kill_agent()
                await asyncio.gather(resize, return_exceptions=True)
                await box.resize(session, epoch, *target, seq=100 + epoch)
            assert (await box.session(session))["devices"] == target
        await box.logged(session, "done")
        assert printed(box.log(session)) == undisturbed


FULL = """
import time, torch
M = 3 << 20
kept = [torch.arange(n, n + M, dtype=torch.float64, device=f"cuda:{n}") for n in (0, 1)]
for number in range(10_000):
    print("sums", *(t.sum().item() for t in kept), flush=True)
    time.sleep(0.05)
"""
"""24 MiB on each of two devices, summed without a copy in another dtype: 40 MiB have no room for
that."""

SUM = (3 << 20) * ((3 << 20) - 1) / 2


async def goes_on(box: AgentBox, session: str, line: str) -> None:
    """Wait until the session has printed `line` three times more. It has printed nothing else; its
    last line may be half written at any moment."""
    before = box.log(session).count(line)
    await until(lambda: box.log(session).count(line) >= before + 3)
    whole, newline, _ = box.log(session).rpartition("\n")
    assert set((whole + newline).splitlines(keepends=True)) == {line}


@pytest.mark.asyncio
async def test_a_resize_that_does_not_fit_leaves_everything_as_it_was() -> None:
    async with AgentBox(cpu_devices=2, cpu_capacity="40MiB") as box:
        session = await box.python(FULL, virtual_devices=2)
        await box.event("device.need", session)
        await box.attach(session, 1, "cpu:0", "cpu:1")
        sums = f"sums {SUM} {SUM + (3 << 20)}\n"
        await box.logged(session, sums * 3)
        with pytest.raises(Conflict, match=r"do not fit .* goes on with the devices it had$"):
            await box.resize(session, 2, "cpu:0", "cpu:0")
        report = await box.session(session)
        assert (report["devices"], report["epoch"]) == (["cpu:0", "cpu:1"], 2)
        await goes_on(box, session, sums)
        assert len(box.proxies_of(session)) == 2
        # Not less than before: each of its devices has room for what is on it alone.
        assert (await box.resize(session, 3, "cpu:1", "cpu:0"))["moved"] == [0, 1]
        await goes_on(box, session, sums)
