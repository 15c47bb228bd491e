"""Accelerate's own launchers in a notebook with two virtual devices: `accelerate launch` from a
cell, and `notebook_launcher` of a function that the notebook has defined."""

from __future__ import annotations

import sys

import pytest
from singularity_spawner.platform.ports import free_ports
from support.agent_kernels import run
from support.agent_notebooks import notebook

pytest.importorskip("accelerate", reason="requirements/libraries.lock is not installed")

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio]

LAUNCH_PORT, NOTEBOOK_PORT = free_ports(2)
"""Tests beside these have the same loopback."""

TRAIN = """
import sys

import torch

def train():
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator()
    set_seed(7)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.arange(64.0).reshape(16, 4) / 64
    data = torch.utils.data.DataLoader(rows, batch_size=2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach()).tolist())
    weights = accelerator.unwrap_model(model).weight.detach().cpu().tolist()
    line = f"done {accelerator.process_index} of {accelerator.num_processes} "
    line += f"on {accelerator.device} with {type(model).__name__}: {losses} {weights}\\n"
    sys.stdout.write(line)  # at once: the other rank writes there too
    sys.stdout.flush()
    accelerator.end_training()

if __name__ == "__main__" and "launched" in sys.argv:
    train()
"""

NOTEBOOK = f"""
{TRAIN}
from accelerate import notebook_launcher
notebook_launcher(train, num_processes=2, use_port="{NOTEBOOK_PORT}")
"""


def results(said: str) -> set[str]:
    """Losses and weights, which both ranks must have; the last part is the same for both."""
    lines = sorted(line.partition("done ")[2] for line in said.splitlines() if "done " in line)
    heads = [line.partition(": ")[0] for line in lines]
    wrapped = "with DistributedDataParallel"
    assert heads == [f"{rank} of 2 on cuda:{rank} {wrapped}" for rank in (0, 1)], said
    return {line.partition(": ")[2] for line in lines}


@pytest.mark.parametrize("devices", [("cpu:0", "cpu:0"), ("cpu:0", "cpu:1")])
async def test_both_launchers_compute_the_same(devices: tuple[str, ...]) -> None:
    launch = f"!{sys.executable} -m accelerate.commands.launch --multi_gpu --num_processes 2"
    launch += f" --main_process_port {LAUNCH_PORT}"
    async with notebook({"train.py": TRAIN}, *devices) as (_, _, client):
        launched = results(await run(client, f"{launch} train.py launched"))
        forked = results(await run(client, NOTEBOOK))
        assert len(launched) == 1
        assert launched == forked
        # The notebook itself goes on with a device.
        ones = "print(torch.ones(2, device='cuda:1').sum().item())"
        assert await run(client, ones) == "2.0\n"
