"""What `torchrun` has beside its ranks lives on over a move: its stores and their connections, the
rendezvous with its heartbeats, the restart of ranks that fail. Ranks make new groups afterwards."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest
from singularity_proxy.errors import Unsupported
from support.agent import AgentBox, until
from support.agent_moves import checkpoint, gone, resume, suspend
from support.capsules import needs_criu

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio]

PROGRAM = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
out = Path(sys.argv[1])

def total(group=None, device="cuda"):
    ours = torch.full((4,), rank + 1.0, device=device)
    dist.all_reduce(ours, group=group)
    return ours.sum().item()

torch.cuda.set_device(rank)
dist.init_process_group("nccl")
# gloo's own addresses of the first attempt are still in the store when torchrun starts the next.
host = dist.new_group(backend="gloo") if attempt == 0 else None
step = 0
while True:
    total()
    if host is not None:
        total(host, "cpu")
    stop = torch.tensor(float((out / "go").exists()), device="cuda")
    dist.all_reduce(stop)
    sys.stdout.write(f"attempt {attempt} rank {rank} step {step}\\n")
    sys.stdout.flush()
    step += 1
    if stop.item() == world:
        break
pair = total(dist.new_group([0, 1]))
of_host = total(dist.new_group(backend="gloo"), "cpu") if attempt == 0 else 12.0
dist.destroy_process_group()
dist.init_process_group("nccl")
(out / f"groups-{attempt}-{rank}").write_text(f"{pair} {of_host} {total()}")
dist.barrier()
sys.exit(3 if attempt == 0 and rank == 1 else 0)
"""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
DEAD_S = 2.0
"""A node of the rendezvous "c10d" that is silent for so long, by the wall clock, counts as dead."""
BRIEF = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2"


async def started(box: AgentBox, *options: str, libuv: str = "") -> str:
    """A session whose ranks are at work."""
    program = box.work / "program.py"
    program.write_text(PROGRAM)
    out = box.work / "out"
    out.mkdir()
    out.chmod(0o777)
    argv = [*TORCHRUN, *options, str(program), str(out)]
    if libuv:
        argv = ["env", f"USE_LIBUV={libuv}", *argv]
    session = await box.start(argv, virtual_devices=2)
    needs = ("device.need", session)
    await until(lambda: needs in [(t, s) for s, t, _ in box.events], timeout=120)
    await box.attach(session, 1, "cpu:0", "cpu:1")
    await steps(box, session)
    return session


async def steps(box: AgentBox, session: str) -> None:
    """Both ranks do some."""
    counts = {rank: len(re.findall(rf"rank {rank} step", box.log(session))) for rank in (0, 1)}

    def more() -> bool:
        said = box.log(session)
        return all(len(re.findall(rf"rank {r} step", said)) > n + 2 for r, n in counts.items())

    await until(more, lambda: box.log(session), timeout=120)


@needs_criu
@pytest.mark.parametrize(
    "how", [["--standalone", BRIEF], ["--master-port=29733"]], ids=["c10d", "static"]
)
async def test_the_rendezvous_outlives_a_move(how: list[str]) -> None:
    async with AgentBox("--NodeAgent.proxy_threads=1", cpu_devices=2, warm=2) as box:
        session = await started(box, *how)
        done = await suspend(box, session, 1)
        await gone(box, session)
        await asyncio.sleep(DEAD_S + 1)
        box.forget_events()
        stored = done["checkpoint"]["id"]
        back = await resume(box, session, 2, stored, virtual_devices=2)
        assert back["loss"]["lost"] == []
        await box.event("device.need", session)
        await box.attach(session, 2, "cpu:0", "cpu:0")
        await steps(box, session)
        (box.work / "out" / "go").touch()
        await until(lambda: "process.exited" in [t for _, t, _ in box.events], timeout=120)
        assert "exit code 0" in (await box.event("process.exited", session))["reason"]
        found = {file.name: file.read_text() for file in (box.work / "out").glob("groups-*")}
        # The second attempt is the launcher's: it has ended the ranks and started new ones.
        names = [f"groups-{attempt}-{rank}" for attempt in (0, 1) for rank in (0, 1)]
        assert found == dict.fromkeys(names, "12.0 12.0 12.0")


@needs_criu
async def test_a_store_on_libuv_that_the_user_asks_for_is_refused_with_a_sentence() -> None:
    """Its io_uring cannot be saved; the session goes on, and its device state can be saved."""
    async with AgentBox("--NodeAgent.proxy_threads=1", cpu_devices=2, warm=2) as box:
        session = await started(box, "--standalone", libuv="1")
        with pytest.raises(Unsupported, match=r"cannot be suspended: .* io_uring.*goes on here$"):
            await suspend(box, session, 1)
        with pytest.raises(Unsupported, match=r"no process image .* io_uring"):
            await checkpoint(box, session, 1, level="process", seq=2)
        saved = await checkpoint(box, session, 1, seq=3)
        assert saved["level"] == "device"
        assert "io_uring" in saved["reason"]
        await steps(box, session)
        await box.end(session)
        assert box.proxies_of(session) == []
