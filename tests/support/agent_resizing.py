"""A training that is split over four virtual devices, for tests that change the physical ones."""

from __future__ import annotations

import asyncio
import re

from support.agent import AgentBox

TRAINING = """
import signal, time, torch
torch.manual_seed(3)
sizes = [12, 24, 24, 24, 6]
parts = [torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.Tanh(), torch.nn.Dropout(0.1))
         for a, b in zip(sizes, sizes[1:])]
parts = [part.to(f"cuda:{number}") for number, part in enumerate(parts)]
optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=0.01)
data = torch.randn(64, 12)
PAUSES = [PAUSE]
signal.signal(signal.SIGUSR1, lambda *_: PAUSES.clear())
for step in range(STEPS):
    x = data
    for number, part in enumerate(parts):
        x = part(x.to(f"cuda:{number}"))
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(sum(PAUSES))
    print("step", step, loss.item().hex(), flush=True)
total = sum(p.double().sum().item() for part in parts for p in part.parameters())
print("done", total.hex(), flush=True)
"""


def training(steps: int, pause_s: float = 0.0) -> str:
    """The program; it waits so long in each step, until it gets SIGUSR1."""
    return f"STEPS, PAUSE = {steps}, {pause_s}\n{TRAINING}"


def printed(text: str) -> list[str]:
    """Its losses and the sum of its weights at the end, to the last bit."""
    return re.findall(r"^(?:step|done) .*$", text, re.MULTILINE)


def undisturbed(steps: int) -> list[str]:
    """What the program prints on four devices with nothing in its way."""

    async def run() -> list[str]:
        async with AgentBox(cpu_devices=4) as box:
            session = await box.python(training(steps), virtual_devices=4)
            await box.event("device.need", session)
            await box.attach(session, 1, "cpu:0", "cpu:1", "cpu:2", "cpu:3")
            await box.logged(session, "done")
            return printed(box.log(session))

    return asyncio.run(run())
