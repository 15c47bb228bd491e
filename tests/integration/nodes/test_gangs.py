"""A command on two nodes, through the service: its ranks compute together, are parked and killed
together, and find each other again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.batch.submission import passed_on
from support.batch_runs import ENDED, processes_of
from support.two_nodes import TwoNodes, two_nodes

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

STEPS = 60

PROGRAM = f"""
import os, time
import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
print("rank", rank, "of", size, flush=True)
total = torch.zeros(4, device=device)
for step in range({STEPS}):
    part = torch.full((4,), float(rank + 1) * (step + 1), device=device)
    dist.all_reduce(part)
    total = total * 0.5 + part
    print("step", step, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.1)
print("total", total.tolist(), flush=True)
dist.destroy_process_group()
"""


def expected() -> str:
    total = 0.0
    for step in range(STEPS):
        total = total * 0.5 + 3.0 * (step + 1)
    return f"total {[total] * 4}"


async def submit(nodes: TwoNodes, **more: Any) -> list[str]:
    """The run; the sessions of its parts."""
    (nodes.home / "train.py").write_text(PROGRAM)
    run = {
        "command": f"exec {sys.executable} -u train.py",
        "folder": str(nodes.home),
        "ranked": True,
        "python": sys.executable,
        "variables": passed_on({**os.environ, "HOME": str(nodes.home)}),
        **more,
    }
    made = await nodes.client.submit(run=run, devices=2, nodes=2, name="train")
    return list(made["part"]["sessions"])


async def ended(nodes: TwoNodes, sessions: list[str]) -> list[str]:
    """How each of them ended."""
    found = [await nodes.until(s, lambda f: f["process_state"] in ENDED, 150) for s in sessions]
    return [session["state"] for session in found]


async def test_it_is_parked_and_killed_and_computes_the_same(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        sessions = await submit(nodes, max_retries=1)
        first, second = sessions
        for sid in sessions:
            await nodes.until_printed(sid, "step 3\n")
        documents = [await nodes.session(sid) for sid in sessions]
        assert {d["node"] for d in documents} == {"node-1", "node-2"}
        assert [d["state"] for d in documents] == ["running", "running"]

        await nodes.client.park(second)
        for sid in sessions:
            history = [c["reason"] for c in await nodes.client.history(sid)]
            assert any("parked by alice" in reason for reason in history), history
        before = (await nodes.printed(first)).count("step")
        await nodes.until_printed(first, f"step {before + 3}\n")  # back by their own calls

        lines = processes_of(second).items()
        [rank] = [pid for pid, line in lines if "-u train.py" in line and "bash" not in line]
        os.kill(rank, signal.SIGKILL)
        for sid in sessions:
            await nodes.until(sid, lambda found: found["attempt"] == 2, 60)
        (nodes.home / "hurry").touch()
        assert await ended(nodes, sessions) == ["completed", "completed"]
        for sid in sessions:
            assert expected() in await nodes.printed(sid)


async def test_it_is_suspended_and_comes_back_on_other_nodes_and_computes_the_same(
    tmp_path: Path,
) -> None:
    names = ("node-1", "node-2", "node-3")
    async with two_nodes(tmp_path, names) as nodes:
        sessions = await submit(nodes)
        first, second = sessions
        for sid in sessions:
            await nodes.until_printed(sid, "step 3\n")
        before = {(await nodes.session(sid))["node"] for sid in sessions}
        [spare] = {*names} - before
        closed = (await nodes.session(second))["node"]

        await nodes.client.suspend(second, "lunch")
        for sid in sessions:
            await nodes.until(sid, lambda found: found["state"] == "suspended", 60)
        for sid in sessions:
            assert not [path for node in names for path in nodes.left(sid, node)]
        await nodes.service.client("admin").drain_node(closed)

        await nodes.client.resume(first)
        for sid in sessions:
            await nodes.until(sid, lambda found: found["state"] == "running", 60)
        after = {(await nodes.session(sid))["node"] for sid in sessions}
        assert after == {*names} - {closed}
        assert spare in after
        (nodes.home / "hurry").touch()
        assert await ended(nodes, sessions) == ["completed", "completed"]
        for sid in sessions:
            assert expected() in await nodes.printed(sid)
            assert (await nodes.session(sid))["attempt"] == 1


async def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        fails = 'test "$NODE_RANK" = 0 || { sleep 1; exit 3; }; sleep 60'
        sessions = await submit(nodes, command=fails, ranked=False)
        assert await ended(nodes, sessions) == ["failed", "failed"]
        found = await nodes.session(sessions[0])
        assert found["reason"] == "part 1 of its gang ended with exit code 3"


async def test_a_lost_node_lets_all_begin_again_on_another(tmp_path: Path) -> None:
    names = ("node-1", "node-2", "node-3")
    async with two_nodes(tmp_path, names) as nodes:
        waits = 'echo "part $NODE_RANK of $NNODES"; while [ ! -e hurry ]; do sleep 0.1; done'
        sessions = await submit(nodes, command=waits, ranked=False, max_retries=1)
        for number, sid in enumerate(sessions):
            await nodes.until_printed(sid, f"part {number} of 2\n")
        lost, kept = [(await nodes.session(sid))["node"] for sid in sessions]
        [spare] = {*names} - {lost, kept}
        nodes.kill(lost)
        for sid in sessions:
            await nodes.until(sid, lambda f: f["attempt"] == 2 and f["state"] == "ready", 90)
        assert [(await nodes.session(sid))["node"] for sid in sessions] == [spare, kept]
        (nodes.home / "hurry").touch()
        assert await ended(nodes, sessions) == ["completed", "completed"]
