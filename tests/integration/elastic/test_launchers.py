"""The ways a notebook starts several ranks, in a real kernel behind an agent: torchrun, a cell as
ranks, fork, and spawn from a script and from the notebook itself. Two virtual devices on one
physical device, and on two. The stop button."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import AbstractAsyncContextManager

import pytest
from singularity_spawner.platform.ports import free_ports
from support.agent_kernels import run
from support.agent_notebooks import Notebook, notebook
from support.batch_runs import processes_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio]

FORK_PORT, SPAWN_PORT, SCRIPT_PORT, TORCHRUN_PORT = free_ports(4)
"""Tests beside these have the same loopback."""

TRAIN = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(rank, world):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), rank + 1.0, device="cuda")).square().mean().backward()
        optimizer.step()
    weights = model.module.weight.detach().cpu().flatten().tolist()
    line = f"done {rank} of {dist.get_world_size()} {weights}\\n"
    sys.stdout.write(line)  # at once: the other rank writes there too
    sys.stdout.flush()
    dist.destroy_process_group()

if __name__ == "__main__":
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
"""


def launching(*devices: str) -> AbstractAsyncContextManager[Notebook]:
    """A notebook with the scripts beside it."""
    return notebook({"train.py": TRAIN, "spawning.py": SPAWNING}, *devices)


def weights(said: str) -> set[str]:
    """Of the two ranks; they must be the same."""
    lines = [line.partition("done ")[2] for line in said.splitlines() if "done " in line]
    assert sorted(line[:6] for line in lines) == ["0 of 2", "1 of 2"], said
    return {line[7:] for line in lines}


@pytest.mark.parametrize("devices", [("cpu:0", "cpu:0"), ("cpu:0", "cpu:1")])
async def test_all_ways_compute_the_same(devices: tuple[str, ...]) -> None:
    async with launching(*devices) as (_, _, client):
        torchrun = f"!{sys.executable} -m torch.distributed.run --master-port {TORCHRUN_PORT}"
        torchrun += " --nproc-per-node 2"
        found = [
            weights(await run(client, f"{torchrun} train.py")),
            weights(await run(client, f"%%singularity run --ranks 2\n{TRAIN}")),
            weights(await run(client, FORK)),
            weights(await run(client, f"!{sys.executable} spawning.py")),
            weights(await run(client, SPAWN)),
        ]
        assert len(set.union(*found)) == 1, found
        # The notebook itself goes on with a device.
        assert (
            await run(client, "import torch; print(torch.ones(2, device='cuda:1').sum().item())")
            == "2.0\n"
        )


FORK = f"""
import os
os.environ["MASTER_PORT"] = "{FORK_PORT}"
{TRAIN.split("if __name__", maxsplit=1)[0]}
import torch.multiprocessing as mp
assert not torch.cuda.is_initialized()
mp.start_processes(train, args=(2,), nprocs=2, start_method="fork")
"""


SPAWN = f"""
import os
os.environ["MASTER_PORT"] = "{SPAWN_PORT}"
import time
import torch.multiprocessing as mp
from train import train
mp.spawn(train, args=(2,), nprocs=2)
time.sleep(1)  # what processes say that the kernel has started comes a moment later
"""
"""In a cell: a new process finds the function in its module."""

SPAWNING = f"""
import os
os.environ["MASTER_PORT"] = "{SCRIPT_PORT}"
{TRAIN.split("if __name__", maxsplit=1)[0]}
import torch.multiprocessing as mp
if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
"""


STEPS = """
import os, time
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
while True:
    total = torch.ones(4, device="cuda")
    dist.all_reduce(total)
    print("sum", total.sum().item(), flush=True)
    {wait}
"""


@pytest.mark.parametrize(
    "code",
    [
        STEPS.format(wait="time.sleep(0.1)"),
        STEPS.format(wait="time.sleep(0 if rank == 0 else 1000)"),
    ],
    ids=["steps", "collective"],
)
async def test_the_stop_button_ends_all_ranks_and_the_kernel_goes_on(code: str) -> None:
    """In steps, and while one rank waits for the other in a collective."""
    async with launching("cpu:0", "cpu:1") as (box, session, client):
        await run(client, "x = 5")
        cell = client.execute(f"%%singularity run --ranks 2\n{code}")
        said = ""
        async with asyncio.timeout(120):
            while not all(f"[rank {rank}] sum 8.0" in said for rank in (0, 1)):
                message = await client.get_iopub_msg(timeout=None)
                said += message["content"].get("text", "")
            await asyncio.sleep(0.5)
            await box.call("session.signal", session=session, signum=int(signal.SIGINT))
            while True:
                reply = await client.get_shell_msg(timeout=None)
                if reply["parent_header"].get("msg_id") == cell:
                    break
        assert reply["content"]["ename"] == "KeyboardInterrupt", reply["content"]
        assert not [line for line in processes_of(session).values() if "cell.py" in line]
        # The notebook has kept its variables, its devices work, and so do new ranks.
        assert await run(client, "print(x)") == "5\n"
        assert len(weights(await run(client, f"%%singularity run --ranks 2\n{TRAIN}"))) == 1
        shown = "import torch; print(torch.ones(2, device='cuda:1').sum().item())"
        assert await run(client, shown) == "2.0\n"
