"""One program on two nodes: its parts are parked, resized and killed, and compute the same bits."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from support.agent import until
from support.agent_gang import (
    BOTH,
    ONE,
    PARTS,
    RANKS,
    START_S,
    Gang,
    Numbers,
    on_one_node,
    ours,
    result,
    torchrun,
    training,
    two_nodes,
)

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio]

STEPS = 150
HANGS_S = 10.0
TOLD_S = 60.0  # nobody would tell them for 300 s; a machine at its limit ends a session slowly


@pytest.fixture(scope="module")
def undisturbed() -> Numbers:
    return asyncio.run(on_one_node(STEPS))


async def stands(gang: Gang) -> bool:
    """Whether part 0 makes no step for a while."""
    before = gang.step(0)
    await asyncio.sleep(0.5)
    return gang.step(0) == before


async def test_parked_resized_and_without_a_bridge_the_bits_stay(
    out: Path, undisturbed: Numbers
) -> None:
    async with two_nodes() as gang:
        await gang.start(ours(training(out, STEPS)))
        await gang.attach()
        await gang.goes_on()
        first, second = gang.boxes
        part0, part1 = gang.sessions

        # One part is parked: the other waits for it and can be parked meanwhile.
        assert (await second.park(part1, 1))["bytes"] > 0
        async with asyncio.timeout(60):
            while not await stands(gang):
                pass
        await first.park(part0, 1)
        await first.attach(part0, 2, *BOTH)
        await second.attach(part1, 2, *BOTH)
        await gang.goes_on()

        # Both at the same time: neither can wait for the other.
        began = time.monotonic()
        await asyncio.gather(first.park(part0, 2), second.park(part1, 2))
        assert time.monotonic() - began < HANGS_S
        await asyncio.gather(first.attach(part0, 3, *BOTH), second.attach(part1, 3, *BOTH))
        await gang.goes_on()

        done = await first.resize(part0, 4, *ONE)
        assert done["moved"] == [1]
        await gang.goes_on()
        await first.resize(part0, 5, *BOTH)
        await gang.goes_on()

        for number in range(PARTS):
            os.kill(gang.bridge(number), signal.SIGKILL)
            await gang.goes_on()

        for reason in await gang.ended():
            assert "exit code 0" in reason, gang.log()
        assert result(out) == undisturbed
        await until(lambda: gang.left() == [], lambda: str(gang.left()))


async def test_torchrun_loses_nothing_with_a_bridge(out: Path, undisturbed: Numbers) -> None:
    """Its launchers meet in the store of part 0 all the time, and at the end once more."""
    async with two_nodes() as gang:
        await gang.start(torchrun(training(out, STEPS)))
        await gang.attach()
        await gang.goes_on()
        for number in range(PARTS):
            os.kill(gang.bridge(number), signal.SIGKILL)
            await gang.goes_on()
        for reason in await gang.ended(60.0):
            assert "exit code 0" in reason, gang.log()
        assert result(out) == undisturbed


FAULTS = """
import os, sys, time, torch, torch.distributed as dist
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
x = torch.ones(1000, device="cuda")
dist.all_reduce(x)
print("step 0", rank, x[0].item(), flush=True)
if rank == 3:
    time.sleep(300)  # until it is killed
try:
    dist.all_reduce(x)
    print("got", x[0].item(), flush=True)
except RuntimeError as error:
    print("error of", rank, type(error).__name__, error, flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("end", ["rank", "session"])
async def test_ranks_are_told_when_those_of_another_node_end(end: str, out: Path) -> None:
    """Started by our launcher, or by torchrun with the variables that a part's command finds."""
    program = out / "faults.py"
    program.write_text(FAULTS)
    async with two_nodes() as gang:
        await gang.start((ours if end == "rank" else torchrun)([str(program)]))
        await gang.attach()
        for rank in range(PARTS * RANKS):
            wanted = f"step 0 {rank} {float(PARTS * RANKS)}"
            await until(lambda wanted=wanted: wanted in gang.log(), gang.log, START_S)  # type: ignore[misc]
        await asyncio.sleep(0.5)
        first, second = gang.boxes
        if end == "rank":
            os.kill(gang.rank(3), signal.SIGKILL)
        else:
            await second.end(gang.sessions[1])
        for rank in (0, 1):
            wanted = f"error of {rank} DistBackendError"
            await until(
                lambda wanted=wanted: wanted in first.log(gang.sessions[0]),  # type: ignore[misc]
                gang.log,
                timeout=TOLD_S,
            )
        assert "all_reduce" in first.log(gang.sessions[0])
        await first.end(gang.sessions[0])
        await gang.ended()
        await until(lambda: gang.left() == [], lambda: str(gang.left()))
