"""Ranks of one program in sessions of their own on several nodes: what they exchange, and what
happens to it while sessions lose devices, change their number, or lose a bridge."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.standalone import Standalone
from support.kernel_relay import wait_until

from benchmarks.gangs import Gang
from benchmarks.jobs import Job, numbers

GPT = ("gpt_small", "--steps", "10", "--dropout", "0.1", "--batch", "2")


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[list[tuple[list[str], str]]]:
    """Four ranks in one session."""
    with Standalone(devices=4, physical=4) as one:
        yield numbers(Job(one, *GPT).result(200))


def test_two_nodes_compute_what_one_does(undisturbed: list[tuple[list[str], str]]) -> None:
    with Gang(2, devices=2) as parts:
        jobs = [Job(part, *GPT, ranks=2) for part in parts]
        assert [n for job in jobs for n in numbers(job.result(200))] == undisturbed


def test_parts_lose_devices_and_bridges(undisturbed: list[tuple[list[str], str]]) -> None:
    """Nobody notices: a part that is parked, or changes its number of devices, lets the others
    wait; a bridge that is killed is replaced."""
    with Gang(2, devices=2, spares=2) as parts:
        first, second = parts
        jobs = [Job(part, *GPT, ranks=2) for part in parts]
        jobs[0].wait_for_step(1)
        first.resize(1)
        jobs[0].wait_for_step(2)
        second.automatic = False
        second.park()
        behind = jobs[0].step
        time.sleep(1.0)
        assert jobs[0].running
        assert jobs[0].step <= behind + 1
        rings = [ring for proxy in first.stats() for ring in proxy["rings"].values()]
        assert any("rank 2" in ring["waits_for"] for ring in rings)
        second.automatic = True
        second.attach(["cpu:0", "cpu:0"])
        jobs[0].wait_for_step(behind + 2)
        for part in parts:
            assert part.end_bridge(signal.SIGKILL) == -signal.SIGKILL
            part.start_bridge()
        jobs[0].wait_for_step(jobs[0].step + 2)
        first.resize(2)
        assert [n for job in jobs for n in numbers(job.result(200))] == undisturbed
        # A part learns from the bridge that the others' ranks have left.
        wait_until(lambda: not any(list(part.shm.glob("group-*")) for part in parts), 30.0)


VALUES = """
import os, sys, torch, torch.distributed as dist
local = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(local)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
def made(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(97 * rank + seed)).cuda()
said = []
def say(*tensors): said.extend(t.double().sum().item().hex() for t in tensors)
for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
    x = made(1000); dist.all_reduce(x, op); say(x)
for root in range(world):
    x = made(10, root); dist.broadcast(x, root); say(x)
    x = made(10, root); dist.reduce(x, root); say(x if rank == root else torch.zeros(1))
    into = [torch.empty(5).cuda() for _ in range(world)] if rank == root else None
    dist.gather(made(5, root), into, dst=root); say(*(into or []))
    out = torch.empty(5).cuda()
    parts = [made(5, i) for i in range(world)] if rank == root else None
    dist.scatter(out, parts, src=root); say(out)
into = torch.empty(world * 7).cuda(); dist.all_gather_into_tensor(into, made(7)); say(into)
out = torch.empty(3).cuda(); dist.reduce_scatter_tensor(out, made(3 * world)); say(out)
out = torch.empty(2 * world).cuda(); dist.all_to_all_single(out, made(2 * world)); say(out)
objects = [None] * world; dist.all_gather_object(objects, {"rank": rank}); said.append(str(objects))
# messages around the ring, several at a time, and large ones
for n in (1, 100_000):
    there, back = (rank + 1) % world, (rank - 1) % world
    come = [torch.empty(n).cuda() for _ in range(3)]
    works = [dist.isend(made(n, i), there) for i in range(3)] + [dist.irecv(c, back) for c in come]
    for work in works: work.wait()
    say(*come)
# groups: neighbours, and across the nodes
for ranks in ([0, 1], [2, 3], [0, 2], [1, 3]):
    group = dist.new_group(ranks)
    if rank in ranks:
        x = made(50); dist.all_reduce(x, group=group); say(x)
dist.barrier()
print("said", rank, *said, flush=True)
dist.destroy_process_group()
"""


def said(jobs: list[Job]) -> list[str]:
    for job in jobs:
        job.wait(120)
        assert job.failure is None, job.printed()
        job.stop()
    return sorted(line for job in jobs for _, line in job.lines if line.startswith("said"))


def test_every_collective(tmp_path: Path) -> None:
    file = tmp_path / "values.py"
    file.write_text(VALUES)
    with Standalone(devices=4, physical=2) as one:
        expected = said([Job(one, "", file=file)])
    assert len(expected) == 4
    with Gang(2, devices=2, physical=1) as parts:
        assert said([Job(part, "", ranks=2, file=file) for part in parts]) == expected


SUMS = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(30):
    x = torch.randn(10_000, generator=generator).cuda(); dist.all_reduce(x)
    y = torch.full((3,), 2.0**dist.get_rank()).cuda(); dist.all_reduce(y)
    assert y.tolist() == [15.0] * 3
print("said", hash(tuple(x.tolist())), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_fast_sums_are_the_same_on_all_nodes(tmp_path: Path) -> None:
    """In the mode `fast` a node sends one sum for each of its devices."""
    file = tmp_path / "sums.py"
    file.write_text(SUMS)
    with Gang(2, devices=2, physical=1, collectives="fast") as parts:
        answers = said([Job(part, "", ranks=2, file=file) for part in parts])
    assert len(answers) == 4
    assert len(set(answers)) == 1


LOOP = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
for step in range(1_000_000):
    x = torch.ones(10).cuda(); dist.all_reduce(x); x.sum().item()
    print("step", step, flush=True)
"""


def test_three_parts_and_one_that_is_over(tmp_path: Path) -> None:
    """Ranks learn of the end of a part as they do of the end of a rank: of one that was killed from
    its node, of all of a part from its bridge."""
    file = tmp_path / "loop.py"
    file.write_text(LOOP)
    with Gang(3, devices=1) as parts:
        jobs = [Job(part, "", ranks=1, file=file) for part in parts]
        for job in jobs:
            job.wait_for_step(20)
        (pid,) = jobs[2].pids()
        os.kill(pid, signal.SIGKILL)
        for job in jobs[:2]:
            job.wait(60)  # they would wait for rank 2 for half an hour
            assert "DistBackendError" in job.printed(), job.printed()
            assert "rank 2 has ended" in job.printed()
            job.stop()
        jobs[2].stop()
    with Gang(2, devices=1) as parts:
        jobs = [Job(part, "", ranks=1, file=file) for part in parts]
        for job in jobs:
            job.wait_for_step(20)
        parts[1].automatic = False
        parts[1].park()  # its ranks can say nothing any more
        assert parts[1].end_bridge() == 0
        jobs[0].wait(60)
        assert "rank 1 has ended" in jobs[0].printed(), jobs[0].printed()
        for job in jobs:
            job.stop()
        parts[1].start_bridge()  # the fixture's end ends it
