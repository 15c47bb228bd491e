"""A gang: one program in two sessions, each with an agent, folders and devices of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from support.agent import AgentBox, alive, until

from benchmarks.jobs import DDP, numbers

PARTS = 2
RANKS = 2
"""Of each part."""

BOTH, ONE = ["cpu:0", "cpu:1"], ["cpu:0", "cpu:0"]
"""The physical devices of a part's virtual ones."""

START_S = 120.0
"""As many interpreters as there are ranks import torch at once."""

OURS = """
import os, sys
from singularity_proxy.elastic.ranks import run_ranks, script
say = lambda rank, line: print(f"[{rank}]", line, end="", flush=True)
run_ranks(script(*sys.argv[1:]), int(os.environ["SINGULARITY_DEVICES"]), os.environ, say)
"""

TORCHRUN = (
    "exec python -m torch.distributed.run --nnodes $NNODES --node-rank $NODE_RANK "
    "--master-addr $MASTER_ADDR --master-port $MASTER_PORT --nproc-per-node "
    '$SINGULARITY_DEVICES "$@"'
)
"""What one writes into a job file."""


class Gang:
    """Its parts; `boxes[0]` is the agent of part 0."""

    def __init__(self, boxes: Sequence[AgentBox]) -> None:
        self.boxes = list(boxes)
        self.sessions: list[str] = []
        self.epoch = 1

    async def start(self, argv: Sequence[str], **options: Any) -> None:
        """Start all parts, and tell each where the others' bridges are."""
        gang = {"id": secrets.token_hex(6), "parts": len(self.boxes), "key": secrets.token_hex(32)}
        self.sessions = await asyncio.gather(
            *(
                box.start(
                    list(argv), virtual_devices=RANKS, gang={**gang, "number": number}, **options
                )
                for number, box in enumerate(self.boxes)
            )
        )
        self.addresses = [str(box.started["bridge"]) for box in self.boxes]
        peers = {str(number): address for number, address in enumerate(self.addresses)}
        for box, session in zip(self.boxes, self.sessions, strict=True):
            await box.call("session.peers", session=session, peers=peers)

    async def attach(self, *, devices: Sequence[str] = BOTH) -> None:
        """Give each part its devices as soon as it needs them."""
        for box, session in zip(self.boxes, self.sessions, strict=True):
            needs = ("device.need", session)
            await until(
                lambda box=box, needs=needs: needs in [(t, s) for s, t, _ in box.events],  # type: ignore[misc]
                lambda box=box, session=session: box.log(session),  # type: ignore[misc]
                timeout=START_S,
            )
            await box.attach(session, self.epoch, *devices)

    def log(self) -> str:
        """What all ranks have printed."""
        return "\n".join(
            box.log(session) for box, session in zip(self.boxes, self.sessions, strict=True)
        )

    def step(self, number: int) -> int:
        """The newest step that a rank of a part has finished."""
        text = self.boxes[number].log(self.sessions[number])
        return max(map(int, re.findall(r"step (\d+)$", text, re.MULTILINE)), default=-1)

    async def goes_on(self, more: int = 2) -> None:
        """Wait until every part has made some steps more."""
        for number in range(len(self.boxes)):
            wanted = self.step(number) + more
            await until(
                lambda number=number, wanted=wanted: self.step(number) >= wanted,  # type: ignore[misc]
                self.log,
                timeout=START_S,
            )

    def bridge(self, number: int) -> int:
        """Pid of the bridge of a part."""
        [pid] = bridges(self.boxes[number], self.sessions[number])
        return pid

    def rank(self, rank: int) -> int:
        """Pid of a rank of the gang."""
        box, session = self.boxes[rank // RANKS], self.sessions[rank // RANKS]
        [pid] = [
            process.pid
            for process in box.processes(session)
            if f"RANK={rank}".encode() in _environ(process.pid)
            and b"torch.distributed.run" not in _words(Path(f"/proc/{process.pid}")).encode()
        ]
        return pid

    async def ended(self, timeout: float = 120.0) -> list[str]:
        """How the parts ended."""
        reasons = []
        for box, session in zip(self.boxes, self.sessions, strict=True):
            gone = ("process.exited", session)
            await until(
                lambda box=box, gone=gone: gone in [(t, s) for s, t, _ in box.events],  # type: ignore[misc]
                self.log,
                timeout=timeout,
            )
            reasons.append(str((await box.event(*gone))["reason"]))
        return reasons

    def left(self) -> list[str]:
        """What there is of sessions that have ended; [] is right."""
        found = []
        for box, session in zip(self.boxes, self.sessions, strict=True):
            found += [f"process {p.pid}" for p in box.everything_of(session)]
            found += [f"device proxy {pid}" for pid in box.proxies_of(session)]
            folders = (box.shm / session, box.runtime / "s" / session, box.runtime / "b" / session)
            found += [str(folder) for folder in folders if folder.exists()]
            found += [f"bridge {pid}" for pid in bridges(box, session)]
        return found


@contextlib.asynccontextmanager
async def two_nodes() -> AsyncIterator[Gang]:
    """Two agents, and a gang that is not started yet."""
    async with contextlib.AsyncExitStack() as stack:
        boxes = [
            await stack.enter_async_context(
                AgentBox("--NodeAgent.proxy_threads=1", cpu_devices=RANKS, warm=RANKS)
            )
            for _ in range(PARTS)
        ]
        yield Gang(boxes)


def bridges(box: AgentBox, session: str) -> list[int]:
    """Pids of the bridges of a session."""
    folder = f"{box.runtime}/b/{session}/"
    found = [int(entry.name) for entry in Path("/proc").iterdir() if folder in _words(entry)]
    return [pid for pid in found if alive(pid)]


def training(out: Path, steps: int) -> list[str]:
    """The words after a launcher: a DDP training that writes what its ranks computed to `out`."""
    out.mkdir(exist_ok=True)
    out.chmod(0o777)
    words = ["mlp", "cuda", f"--steps={steps}", "--batch=4", "--dropout=0.1", "--bucket-mb=0.02"]
    return [str(DDP), *words, f"--out={out}"]


def ours(words: Sequence[str]) -> list[str]:
    """Started by our launcher."""
    return [sys.executable, "-c", OURS, *words]


def torchrun(words: Sequence[str]) -> list[str]:
    return ["/bin/bash", "-c", TORCHRUN.replace("python", sys.executable), "torchrun", *words]


def result(out: Path) -> list[tuple[list[str], str]]:
    """Losses and a hash of the weights of each rank."""
    return numbers(
        [json.loads((out / f"{rank}.json").read_text()) for rank in range(PARTS * RANKS)]
    )


def _words(process: Path) -> str:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_text(errors="replace")
    return ""


def _environ(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
