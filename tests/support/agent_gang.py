"""A gang: one program in two sessions, each with an agent, folders and devices of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from singularity_proxy.elastic.coordinator import Cut
from singularity_scheduler.service.nodes.gang_barrier import PartAt, standing
from support.agent import AgentBox, alive, until
from support.agent_moves import resume

from benchmarks.jobs import DDP, numbers

Numbers = list[tuple[list[str], str]]
"""Losses and a hash of the weights, of each rank."""

PARTS = 2
RANKS = 2
"""Of each part."""

BOTH, ONE = ["cpu:0", "cpu:1"], ["cpu:0", "cpu:0"]
"""The physical devices of a part's virtual ones."""

START_S = 120.0
"""As many interpreters as there are ranks import torch at once."""

OURS = """
import os, sys
from singularity_proxy.elastic.bridge.rendezvous import kept
from singularity_proxy.elastic.ranks import run_ranks, script
say = lambda rank, line: print(f"[{rank}]", line, end="", flush=True)
with kept(os.environ):
    run_ranks(script(*sys.argv[1:]), int(os.environ["SINGULARITY_DEVICES"]), os.environ, say)
"""

MEETING = """
import os, subprocess, sys
from singularity_proxy.elastic.bridge.rendezvous import kept
with kept(os.environ):
    sys.exit(subprocess.call(["bash", "-c", *sys.argv[1:]]))
"""
"""Runs a command, as the first process of a batch capsule does."""

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
        self._key()
        self.sessions = await asyncio.gather(
            *(
                box.start(list(argv), virtual_devices=RANKS, gang=self._part(number), **options)
                for number, box in enumerate(self.boxes)
            )
        )
        self.addresses = [str(box.started["bridge"]) for box in self.boxes]
        await self._tell_peers()

    def _key(self) -> None:
        gang = {"id": secrets.token_hex(6), "parts": len(self.boxes), "key": secrets.token_hex(32)}
        self._gang: dict[str, Any] = gang

    def _part(self, number: int) -> dict[str, Any]:
        return {**self._gang, "number": number}

    async def _tell_peers(self) -> None:
        peers = {str(number): address for number, address in enumerate(self.addresses)}
        for box, session in zip(self.boxes, self.sessions, strict=True):
            await box.call("session.peers", session=session, peers=peers)

    @contextlib.asynccontextmanager
    async def standing(self, deadline_s: float = 30.0) -> AsyncIterator[Cut]:
        """All ranks stand at one place, as the service does it."""
        parts = [
            PartAt(box.fleet, box.fleet.node, session, self.epoch)
            for box, session in zip(self.boxes, self.sessions, strict=True)
        ]
        async with standing(parts, deadline_s) as cut:
            yield cut

    async def resume(
        self, stored: Mapping[int, str], boxes: Sequence[AgentBox], **more: Any
    ) -> list[dict[str, Any]]:
        """Bring parts (number -> checkpoint) back at the agents of `boxes`, where all parts are
        then, and give all the devices they need; the answers."""
        self.boxes, self.epoch = list(boxes), self.epoch + 1
        if len(stored) == len(self.boxes):
            self._key()
        answers = []
        for number, checkpoint in stored.items():
            box, session = self.boxes[number], self.sessions[number]
            box.forget_events()
            back = await resume(
                box,
                session,
                self.epoch,
                checkpoint,
                virtual_devices=RANKS,
                gang=self._part(number),
                **more,
            )
            assert (await box.event("session.bridge", session))["bridge"] == back["bridge"]
            self.addresses[number] = back["bridge"]
            answers.append(back)
        await self._tell_peers()
        await self.attach(numbers=stored)
        return answers

    async def attach(
        self, *, devices: Sequence[str] = BOTH, numbers: Iterable[int] = range(PARTS)
    ) -> None:
        """Give each part its devices as soon as it needs them."""
        for number in numbers:
            box, session = self.boxes[number], self.sessions[number]
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
async def two_nodes(*stores: str, options: Sequence[str] = ()) -> AsyncIterator[Gang]:
    """Two agents, with stores of their own or those at `stores`, and a gang that is not started
    yet."""
    async with contextlib.AsyncExitStack() as stack:
        boxes = []
        for number in range(PARTS):
            words = ["--NodeAgent.proxy_threads=1", *options]
            if stores:
                words.append(f"--NodeAgent.checkpoint_store={stores[number]}")
            box = AgentBox(*words, cpu_devices=RANKS, warm=RANKS)
            boxes.append(await stack.enter_async_context(box))
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


async def on_one_node(steps: int) -> list[tuple[list[str], str]]:
    """What the ranks of `training` compute in one session that nobody disturbs."""
    all_ranks = PARTS * RANKS
    devices = [f"cpu:{rank}" for rank in range(all_ranks)]
    box = AgentBox("--NodeAgent.proxy_threads=1", cpu_devices=all_ranks, warm=all_ranks)
    async with box:
        words = training(box.work / "out", steps)
        session = await box.start(ours(words), virtual_devices=all_ranks)
        needs = ("device.need", session)
        await until(lambda: needs in [(t, s) for s, t, _ in box.events], timeout=START_S)
        await box.attach(session, 1, *devices)
        gone = ("process.exited", session)
        await until(lambda: gone in [(t, s) for s, t, _ in box.events], timeout=START_S)
        assert "exit code 0" in (await box.event(*gone))["reason"]
        return result(box.work / "out")


@contextlib.contextmanager
def folder_of_all() -> Iterator[Path]:
    """A folder that the capsules of all nodes see, and their ranks can write to."""
    with tempfile.TemporaryDirectory(prefix="gang-", dir="/var/tmp") as folder:
        out = Path(folder)
        out.chmod(0o777)
        yield out


def ours(words: Sequence[str]) -> list[str]:
    """Started by our launcher."""
    return [sys.executable, "-c", OURS, *words]


def torchrun(words: Sequence[str]) -> list[str]:
    command = TORCHRUN.replace("python", sys.executable)
    return [sys.executable, "-c", MEETING, command, "torchrun", *words]


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
