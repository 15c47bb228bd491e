"""Whole sessions: how long until a node is free, until they run again elsewhere, and both."""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
import time
from typing import Any

from singularity_proxy.capsule.images import criu

from .figures import Figure
from .tools import see_support

CELL = """
import os, time, torch
host = bytearray(os.urandom({host_mb} << 20))
state = torch.empty({state_mb} << 18, device="cuda").uniform_()
print("made", int(state.numel()), flush=True)
tick = 0
while True:
    if tick % 64 == 8:
        state.mul_(1.0001)  # all of it is new for the store
        print("changed", float(state[-1]), flush=True)
    state[:1024].add_(1)
    tick += int(state[0].item() > 0)
    print("tick", tick, flush=True)
    time.sleep(0.02)
"""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "session_state_mb": 256 if quick else 1000,
        "session_host_mb": 32 if quick else 100,
        "session_rounds": 1 if quick else 3,
    }


async def measure_moves(size: dict[str, Any]) -> dict[str, Figure]:
    """A kernel in the middle of a cell goes from one node to another one and back, through a store
    in a folder. Nothing is measured where CRIU is missing."""
    if not criu.probe().ok:
        return {}
    see_support()
    from support.agent import AgentBox
    from support.agent_kernels import client_of, start_kernel

    found: dict[str, list[float]] = {"suspend_s": [], "resume_s": [], "migrate_s": []}
    _touch(4 * (size["session_state_mb"] + size["session_host_mb"]) << 20)
    with tempfile.TemporaryDirectory(prefix="singularity-bench-") as store:
        options = (f"--NodeAgent.checkpoint_store={store}/store",)
        async with AgentBox(*options, warm=1) as one, AgentBox(*options, warm=1) as two:
            session, info = await start_kernel(one)
            client = await client_of(info)
            client.execute(
                CELL.format(host_mb=size["session_host_mb"], state_mb=size["session_state_mb"])
            )
            await one.event("device.need", session)
            await one.attach(session, 1)
            await _until_printed(client, "made")
            here, there = one, two
            for round_ in range(size["session_rounds"]):
                await asyncio.to_thread(os.sync)  # what was measured before is still being written
                await _until_printed(client, "changed")
                times = await _move(session, here, there, one, client, epoch=2 * round_ + 2)
                for name, seconds in zip(found, times, strict=True):
                    found[name].append(seconds)
                here, there = there, here
            client.stop_channels()
            await here.end(session)
            await one.end(session)
    return {name: Figure(values) for name, values in found.items()}


def _touch(count: int) -> None:
    """Use so much memory once: the first use of memory that a virtual machine was not given yet
    waits for its host, which is no cost of a checkpoint."""
    with mmap.mmap(-1, count) as memory:
        for at in range(0, count, mmap.PAGESIZE):
            memory[at] = 1


async def _move(
    session: str, here: Any, there: Any, home: Any, client: Any, *, epoch: int
) -> tuple[float, float, float]:
    from support.agent_moves import resume, suspend

    began = time.perf_counter()
    done = await suspend(here, session, epoch - 1, seq=epoch)
    free = time.perf_counter()
    await _drain(client)
    told = await home.call("session.connection", session=session)
    there.forget_events()
    resuming = time.perf_counter()
    id = done["checkpoint"]["id"]
    await resume(there, session, epoch, id, seq=epoch, connection=told["connection"])
    await there.event("device.need", session)
    await there.attach(session, epoch)
    await _until_printed(client, "tick")
    back = time.perf_counter()
    return free - began, back - resuming, free - began + back - resuming


async def _until_printed(client: Any, word: str) -> None:
    async def look() -> None:
        while True:
            message = await client.get_iopub_msg(timeout=120)
            if word in message["content"].get("text", ""):
                return
            if message["msg_type"] == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))

    await asyncio.wait_for(look(), 300)


async def _drain(client: Any) -> None:
    """What was printed before the session left."""
    while await client.iopub_channel.msg_ready():
        await client.get_iopub_msg(timeout=1)
