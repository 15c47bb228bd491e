"""How soon a device proxy that is killed, stopped or hung is noticed (`-s` shows the times)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest
from singularity_proxy.wire.ring import RingFile, RingState
from support import matrix
from support.agent import AgentBox, alive

BOUND_S = 5.0
"""The promise is one second, on a machine that has a core to spare."""

USES_A_DEVICE = """
import time, torch
x = torch.ones(10, device="cuda")
print("used", float(x.sum()), flush=True)
time.sleep(600)
"""


async def seconds_until(noticed: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not noticed():
        assert time.monotonic() - began < BOUND_S, "it was not noticed"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def serving(box: AgentBox, double: bool) -> tuple[str, int, RingFile]:
    """A session whose proxy serves a ring, with some beats of its heart behind it."""
    if double:
        session = await box.worker("open", "need", "sleep")
    else:
        session = await box.start([sys.executable, "-c", USES_A_DEVICE])
    await box.event("device.need", session)
    await box.attach(session, 1)
    await box.logged(session, "attached r1" if double else "used 10.0")
    await asyncio.sleep(0.7)
    [pid] = box.proxies_of(session)
    return session, pid, RingFile.open(box.shm / session / "r1.ring")


@pytest.mark.asyncio
@pytest.mark.parametrize("double", [True, *matrix.some_of([False], 0)])
async def test_a_killed_and_a_stopped_proxy_are_noticed(double: bool) -> None:
    async with AgentBox(double=double, warm=1) as box:
        session, pid, ring = await serving(box, double)
        served = ring.read().generation
        os.kill(pid, signal.SIGKILL)

        def noticed() -> bool:  # the next proxy may serve it between two looks
            return ring.state is not RingState.ATTACHED or ring.read().generation != served

        killed = await seconds_until(noticed)
        await box.event("proxy.recovered", session)
        await asyncio.sleep(0.7)
        [pid] = box.proxies_of(session)
        os.kill(pid, signal.SIGSTOP)
        stopped = await seconds_until(lambda: not alive(pid))
        await box.event("proxy.recovered", session, count=2)
        ring.close()
        print(f"noticed after: killed {killed:.3f} s, stopped {stopped:.3f} s")


@pytest.mark.asyncio
async def test_a_proxy_that_hangs_is_noticed() -> None:
    async with AgentBox("--NodeAgent.hung_proxy_s=2", double=True) as box:
        session, pid, ring = await serving(box, True)
        (box.work / f"hush-{pid}").touch()
        said = await seconds_until(lambda: any(t == "proxy.silent" for _, t, _ in box.events))
        await seconds_until(lambda: not alive(pid))  # given up after `hung_proxy_s`
        await box.event("proxy.recovered", session)
        ring.close()
        print(f"noticed after: hung {said:.3f} s")
