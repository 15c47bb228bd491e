"""Optimizer steps are counted where the agent sees them, whatever carries them out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from singularity_proxy.standalone import Standalone

PROGRAM = """
import sys, torch
from torch import nn
kind = sys.argv[1]
model = nn.Linear(8, 8).to("cuda")
if kind == "parallel":
    model = nn.DataParallel(model, device_ids=[0, 1])
if kind == "compiled":
    model = torch.compile(model)
optimizer = (torch.optim.SGD if kind == "scaled" else torch.optim.AdamW)(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=kind == "scaled", init_scale=4.0)
step = torch.compile(optimizer.step) if kind == "compiled" else None
for number in range(7):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8, device="cuda")).sum()
    if kind == "scaled" and number == 3:
        loss = loss * float("inf")  # the scaler leaves this step out
    scaler.scale(loss).backward()
    if step:
        step()
    else:
        scaler.step(optimizer)
        scaler.update()
if kind == "fork":
    import os
    if (pid := os.fork()) == 0:
        own = torch.nn.Parameter(torch.zeros(2))
        own.sum().backward()
        torch.optim.SGD([own], lr=0.1).step()
        os._exit(0)
    os.waitpid(pid, 0)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("kind", "steps"),
    [("plain", 7), ("scaled", 6), ("parallel", 7), ("compiled", 7), ("fork", 7)],
)
def test_steps_are_counted(kind: str, steps: int) -> None:
    with Standalone(devices=2) as one:
        command = [sys.executable, "-c", PROGRAM, kind]
        subprocess.run(command, env=one.env(), timeout=300, check=True)
        shown = [ring.steps() for ring in one.rings()]
    assert sorted(shown)[-1] == steps
    assert sum(shown) == steps  # one ring of the process shows them


def test_a_process_that_uses_no_device_has_no_ring_to_show_them_in() -> None:
    code = (
        "import torch\nown = torch.nn.Parameter(torch.zeros(2))\nown.sum().backward()\n"
        "torch.optim.SGD([own], lr=0.1).step()\nprint(own.tolist())"
    )
    with Standalone() as one:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=one.env(),
            timeout=300,
            check=True,
            capture_output=True,
        )
        assert done.stdout
        assert not one.rings()
