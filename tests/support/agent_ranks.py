"""Ranks that train with DistributedDataParallel in one session of an `AgentBox`, as `torchrun`
starts them there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from support.agent import AgentBox, until

from benchmarks.jobs import DDP, numbers

RANKS = 3
START_S = 120.0
"""Four interpreters import torch at once."""

PHYSICAL = {count: [f"cpu:{rank * count // RANKS}" for rank in range(RANKS)] for count in (1, 2, 3)}
"""Number of physical devices -> one for each of the session's virtual devices."""


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]

OURS = f"""
import os, sys
from singularity_proxy.elastic.ranks import run_ranks, script
say = lambda rank, line: print(line, end="", flush=True)
run_ranks(script(*sys.argv[1:]), {RANKS}, os.environ, say)
"""
"""What `%%singularity run` does."""


async def trains(box: AgentBox, steps: int, *, devices: int = RANKS, torchrun: bool = True) -> str:
    """A session whose ranks are in their first steps, on so many physical devices. `torchrun`
    False: they are started as by `%%singularity run`."""
    out = box.work / "out"
    out.mkdir(exist_ok=True)
    out.chmod(0o777)
    launcher = [*TORCHRUN, "--standalone"] if torchrun else [sys.executable, "-c", OURS]
    words = ["mlp", "cuda", f"--steps={steps}", "--batch=4", "--dropout=0.1", "--bucket-mb=0.02"]
    session = await box.start([*launcher, str(DDP), *words, f"--out={out}"], virtual_devices=RANKS)
    needs = ("device.need", session)
    await until(lambda: needs in [(t, s) for s, t, _ in box.events], timeout=START_S)
    await box.attach(session, 1, *PHYSICAL[devices])
    await until(lambda: step(box, session) > 1, lambda: box.log(session), timeout=START_S)
    return session


def step(box: AgentBox, session: str) -> int:
    """The newest step that a rank has finished."""
    return max(map(int, re.findall(r"^step (\d+)$", box.log(session), re.MULTILINE)), default=-1)


def result(box: AgentBox) -> list[tuple[list[str], str]]:
    """Losses and a hash of the weights of each rank, when the session has ended well."""
    found: list[dict[str, Any]] = [
        json.loads((box.work / "out" / f"{rank}.json").read_text()) for rank in range(RANKS)
    ]
    return numbers(found)


def processes(box: AgentBox, session: str) -> tuple[int, dict[int, int]]:
    """Pids, here, of the launcher and of each rank."""
    launcher, ranks = 0, {}
    for process in box.processes(session):
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        if b"torch.distributed.run" in words:
            launcher = process.pid
        elif str(DDP).encode() in words:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            rank = next(word[5:] for word in environ if word.startswith(b"RANK="))
            ranks[int(rank)] = process.pid
    return launcher, dict(sorted(ranks.items()))
