"""Many sessions of one node leave it at once, as when a server with many notebooks stops."""

from __future__ import annotations

import asyncio
import os

import pytest
from support.agent import AgentBox, until
from support.agent_held import Held
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
    """The first one is in the store's hands; the others are not stopped before they are, too."""
    code = "import time\nwhile True: print('tick', flush=True); time.sleep(0.05)"
    one = "--NodeAgent.checkpoints_at_once=1"
    async with AgentBox(one, script="agent_with_fault.py") as box:
        sessions = [await box.python(code) for _ in range(3)]
        held = Held(box, "suspend.dumped")
        commands = [asyncio.ensure_future(suspend(box, session, 1)) for session in sessions]
        await held.wait()
        before = [box.log(session).count("tick") for session in sessions]

        def going() -> int:
            ticks = [box.log(session).count("tick") for session in sessions]
            return sum(now > then for now, then in zip(ticks, before, strict=True))

        await until(lambda: going() == 2, lambda: f"{going()} go on")
        assert not any(command.done() for command in commands)
        held.release()
        done = await asyncio.gather(*commands)
        last = sessions[-1]
        back = await resume(box, last, 2, done[-1]["checkpoint"]["id"])
        assert back["loss"]["level"] == "process"
        await box.end(last)
