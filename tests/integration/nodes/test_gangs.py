"""A command on two nodes, through the service: its ranks compute together, are parked and killed
together, and find each other again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.batch.submitting.submission import passed_on
from singularity_proxy.errors import SingularityError
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


TRAINING = f"""
import hashlib, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(16, 16).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range({STEPS}):
    loss = model(torch.randn(8, 16).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item().hex(), flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.1)
weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
"""


def numbers(log: str) -> set[str]:
    """The losses and the weights; steps that were made again say the same or stand there twice."""
    return {line for line in log.splitlines() if line.startswith(("step ", "weights "))}


def expected() -> str:
    total = 0.0
    for step in range(STEPS):
        total = total * 0.5 + 3.0 * (step + 1)
    return f"total {[total] * 4}"


async def submit(nodes: TwoNodes, program: str = PROGRAM, **more: Any) -> list[str]:
    """The run; the sessions of its parts."""
    (nodes.home / "train.py").write_text(program)
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


def kill_a_rank(session: str) -> None:
    lines = processes_of(session).items()
    [rank] = [pid for pid, line in lines if "-u train.py" in line and "bash" not in line]
    os.kill(rank, signal.SIGKILL)


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

        kill_a_rank(second)
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


async def newest(nodes: TwoNodes, session: str) -> str:
    """The id of its newest checkpoint."""
    return str((await nodes.session(session))["last_checkpoint"]["id"])


async def until_back_from(nodes: TwoNodes, sessions: list[str], stored: list[str]) -> None:
    """Wait until each part has come back from its checkpoint."""
    for sid, checkpoint in zip(sessions, stored, strict=True):
        found = await nodes.until(
            sid,
            lambda f, c=checkpoint: (
                f["state"] == "running" and (f["loss"] or {}).get("checkpoint") == c
            ),
            90,
        )
        assert found["loss"]["rolled_back"], found["loss"]


async def test_all_go_back_to_what_they_stored_together_and_compute_the_same(
    tmp_path: Path,
) -> None:
    names = ("node-1", "node-2", "node-3")
    async with two_nodes(tmp_path, names) as nodes:
        (nodes.home / "hurry").touch()
        alone = await submit(nodes, TRAINING)
        assert await ended(nodes, alone) == ["completed", "completed"]
        undisturbed = [numbers(await nodes.printed(sid)) for sid in alone]
        assert [len(one) for one in undisturbed] == [STEPS + 1] * 2
        (nodes.home / "hurry").unlink()

        sessions = await submit(nodes, TRAINING, max_retries=1)
        first, second = sessions
        for sid in sessions:
            await nodes.until_printed(sid, "step 3 ")

        await nodes.client.checkpoint(second)
        stored = [await newest(nodes, sid) for sid in sessions]
        for sid in sessions:
            done = (await nodes.printed(sid)).count("step")
            await nodes.until_printed(sid, f"step {done + 3} ")  # all go on meanwhile
        kill_a_rank(second)
        await until_back_from(nodes, sessions, stored)
        for sid in sessions:
            assert (await nodes.session(sid))["attempt"] == 2
            reasons = [c["reason"] for c in await nodes.client.history(sid)]
            assert any("attempt 2 of 2 goes on from checkpoint" in why for why in reasons), reasons

        await nodes.client.checkpoint(first)
        stored = [await newest(nodes, sid) for sid in sessions]
        lost, kept = [(await nodes.session(sid))["node"] for sid in sessions]
        [spare] = {*names} - {lost, kept}
        nodes.kill(lost)
        await until_back_from(nodes, sessions, stored)
        assert {(await nodes.session(sid))["node"] for sid in sessions} == {spare, kept}
        (nodes.home / "hurry").touch()
        assert await ended(nodes, sessions) == ["completed", "completed"]
        for sid, same in zip(sessions, undisturbed, strict=True):
            printed = numbers(await nodes.printed(sid))
            assert printed <= same
            assert {f"step {STEPS - 1}", "weights"} <= {line.rsplit(" ", 1)[0] for line in printed}
            assert (await nodes.session(sid))["attempt"] == 2  # a lost node is no retry


async def test_nobody_goes_back_to_what_was_under_way_when_a_part_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path) as nodes:
        sessions = await submit(nodes, max_retries=1)
        first, second = sessions
        for sid in sessions:
            await nodes.until_printed(sid, "step 3\n")
        await nodes.client.checkpoint(second, "before")
        stored = [await newest(nodes, sid) for sid in sessions]

        call, told = nodes.fleet.call, asyncio.Event()

        async def late(node: str, method: str, timeout: float | None = 60.0, **params: Any) -> Any:
            """The command for the second part comes when the first one is stored."""
            if method == "session.checkpoint" and params["session"] == second:
                await told.wait()
                kill_a_rank(second)
            answer = await call(node, method, timeout, **params)
            if method == "session.checkpoint":
                told.set()
            return answer

        monkeypatch.setattr(nodes.fleet, "call", late)
        with pytest.raises(SingularityError):
            await nodes.client.checkpoint(first)
        await until_back_from(nodes, sessions, stored)
        for sid in sessions:
            left = [one["id"] for one in await nodes.client.checkpoints(sid)]
            assert left == [stored[sessions.index(sid)]]
            assert (await nodes.session(sid))["attempt"] == 2
        (nodes.home / "hurry").touch()
        assert await ended(nodes, sessions) == ["completed", "completed"]
        for sid in sessions:
            assert expected() in await nodes.printed(sid)


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
