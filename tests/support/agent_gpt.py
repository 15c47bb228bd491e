"""A GPT with dropout that trains in one cell of a kernel, while the kernel moves between two nodes
in the middle of whatever it does."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from support.agent import SUPPORT, AgentBox, until
from support.agent_kernels import NO_HISTORY, client_of, start_kernel
from support.agent_moves import resume, suspend

CELL = """
import itertools, sys
sys.path.insert(0, {folder!r})
import torch
from training import GPT, batch_of
torch.set_num_threads(1)
torch.manual_seed(1337)
model = GPT(0.1, width=64, layers=2, heads=4).to({device!r})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(7)
torch.manual_seed(4242)
for step in itertools.islice(itertools.count(), {steps}):
    loss = model(*batch_of("gpt", {device!r}, generator, 4))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {{step}} {{loss.item().hex()}}\\n", end="", flush=True)  # a whole line or none
"""
BENCHMARKS = SUPPORT.parents[1] / "benchmarks"


def _cell(device: str, steps: int | None) -> str:
    return CELL.format(folder=str(BENCHMARKS), device=device, steps=steps)


def _losses(text: str) -> list[tuple[int, str]]:
    return [(int(n), x) for n, x in re.findall(r"^step (\d+) (\S+)$", text, re.M)]


def uninterrupted(steps: int) -> list[tuple[int, str]]:
    """(step, loss as an exact number) of a plain run on the CPU."""
    code = _cell("cpu", steps)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return _losses(done.stdout)


async def migrated(steps: int, migrations: int, seed: int) -> list[tuple[int, str]]:
    """What one cell printed whose kernel was moved `migrations` times at random moments of these
    `steps` or soon after them; it goes on until all moves are done and is interrupted then."""
    chosen = random.Random(seed)
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpt-") as shared:
        options = (f"--NodeAgent.checkpoint_store={shared}/store", "--NodeAgent.proxy_threads=1")
        async with AgentBox(*options, warm=1) as home, AgentBox(*options, warm=1) as other:
            session, info = await start_kernel(home, NO_HISTORY)
            client = await client_of(info)
            cell = asyncio.ensure_future(_hear(client, _cell("cuda", None), said))
            try:
                await home.event("device.need", session)
                await home.attach(session, 1)
                here, there = home, other
                for number in range(migrations):
                    share = steps * (number + 1) // (migrations + 1)
                    await _reach(said, cell, share - chosen.randrange(3))
                    await asyncio.sleep(chosen.random() * 0.2)
                    await _move(home, here, there, session, number + 2)
                    here, there = there, here
                await _reach(said, cell, steps - 1)
                await here.call("session.signal", session=session, signum=signal.SIGINT)
                await asyncio.wait_for(cell, 60)
                assert "KeyboardInterrupt" in "".join(said)
            finally:
                cell.cancel()
                client.stop_channels()
            await here.end(session)
            await home.end(session)
    found = _losses("".join(said))
    assert len(found) >= steps
    return found


async def _hear(client: AsyncKernelClient, code: str, said: list[str]) -> None:
    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        said.append(content.get("text") or "\n".join(content.get("traceback", [])))

    await client.execute_interactive(code, output_hook=hear, timeout=None)


async def _reach(said: list[str], cell: asyncio.Future[None], step: int) -> None:
    await until(lambda: cell.done() or f"step {step} " in "".join(said), lambda: "".join(said))
    assert not cell.done(), f"the cell ended before step {step}: {''.join(said)[-1000:]}"


async def _move(home: AgentBox, here: AgentBox, there: AgentBox, session: str, epoch: int) -> None:
    done = await suspend(here, session, epoch - 1, seq=epoch)
    told = await home.call("session.connection", session=session)
    there.forget_events()
    id = done["checkpoint"]["id"]
    await resume(there, session, epoch, id, seq=epoch, connection=told["connection"])
    await there.event("device.need", session)
    await there.attach(session, epoch)
