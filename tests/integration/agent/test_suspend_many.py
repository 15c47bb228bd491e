"""Many sessions of one node leave it at once, as when a server with many notebooks stops."""

from __future__ import annotations

import asyncio
import os

import pytest
from support.agent import AgentBox, until
from support.agent_moves import gone, resume, suspend
from support.capsules import needs_criu

pytestmark = needs_criu


@pytest.mark.asyncio
async def test_more_leave_at_once_than_the_agent_has_threads() -> None:
    threads = min(32, (os.cpu_count() or 1) + 4)  # of an event loop, says asyncio
    async with AgentBox(f"--NodeAgent.checkpoints_at_once={threads + 2}") as box:
        starts = [box.start(["/bin/sleep", "1000"]) for _ in range(threads + 2)]
        sessions = [await start for start in starts]
        done = await asyncio.wait_for(
            asyncio.gather(*(suspend(box, session, 1) for session in sessions)), 100
        )
        assert len({one["checkpoint"]["id"] for one in done}) == len(sessions)
        for session in sessions:
            await gone(box, session)


@pytest.mark.asyncio
async def test_those_whose_turn_has_not_come_run_on() -> None:
    code = "import time\nwhile True: print('tick', flush=True); time.sleep(0.05)"
    async with AgentBox("--NodeAgent.checkpoints_at_once=1") as box:
        sessions = [await box.python(code) for _ in range(3)]
        commands = [asyncio.ensure_future(suspend(box, session, 1)) for session in sessions]
        await asyncio.wait(commands, return_when=asyncio.FIRST_COMPLETED)
        last = sessions[-1]
        ticks = box.log(last).count("tick")
        await until(lambda: box.log(last).count("tick") > ticks, lambda: "it stands still")
        assert not commands[-1].done()
        done = await asyncio.gather(*commands)
        back = await resume(box, last, 2, done[-1]["checkpoint"]["id"])
        assert back["loss"]["level"] == "process"
        await box.end(last)
