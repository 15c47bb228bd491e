"""Random schedules of all that can happen to a session which trains, on two nodes with one store.

`draw(seed)` is a schedule; a `Walk` carries it out, as the service would, and checks after every
move that the session is where one expects, whole, in one place, and, whenever it came back, at
exactly its newest checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from singularity_proxy.errors import SingularityError, Unavailable
from support.agent import AgentBox, alive, until
from support.agent_moves import checkpoint, gone, listed, resume, suspend
from support.agent_trains import ENDED, TRAINING, losses
from support.processes import stop_process

STEPS = 60
PAUSE_S = 0.03
MOVES = 7
VERBS = ("attach", "park", "suspend", "migrate", "checkpoint", "checkpoint", "wait")
"""What needs the session on a node brings back one that is in the store instead."""
FAULTS = ("", "", "", "kill proxy", "kill agent", "kill node")
LIMIT_S = 100.0
"""A schedule that takes longer hangs."""

LONGEST_S = 1.6
"""A fault comes at most so long after its verb began."""


@dataclass(frozen=True)
class Move:
    """After `steps` more steps of the training: a verb, and `fault_s` seconds later a fault."""

    verb: str
    fault: str
    fault_s: float
    steps: int
    device: str

    def __str__(self) -> str:
        fault = f", {self.fault} after {self.fault_s:.2f} s" if self.fault else ""
        return f"{self.steps} steps, {self.verb} ({self.device}){fault}"


def draw(seed: int) -> list[Move]:
    """The schedule of a seed."""
    chosen = random.Random(seed)
    return [
        Move(
            verb=chosen.choice(VERBS),
            fault=chosen.choice(FAULTS),
            fault_s=chosen.random() * LONGEST_S,
            steps=chosen.randrange(5),
            device=f"cpu:{chosen.randrange(2)}",
        )
        for _ in range(MOVES)
    ]


class Walk:
    """One training and what is known of it. `boxes` share a store."""

    def __init__(self, boxes: Sequence[AgentBox], seed: int, reference: dict[int, str]) -> None:
        self.boxes, self.seed, self.reference = boxes, seed, reference
        self.session = ""
        self.at: AgentBox | None = None
        """Where it lives; None: in the store."""
        self.place = boxes[0]
        """The node that it is on, or was on last, or is coming to."""
        self.epoch, self.incarnation, self.held = 0, 1, False
        self.saved: dict[str, tuple[int, int]] = {}
        """Checkpoint -> the first and the last step that it may be of."""
        self.returns = 0
        self.lost = 0
        """Steps that had to be done again."""
        self.story: list[str] = []
        self._seq = itertools.count(1)
        self._last_words = ""
        """The log of a node that was killed."""
        self._stood = (-1, -1, -1)
        """When the session came back to an older state than the log tells of: number of steps in
        the log, and the first and the last step of its checkpoint."""
        self._written: TextIO | None = None
        """The log where the session was when a verb began; a node that it leaves removes the file,
        and what was printed until it was stopped is in it."""
        self._fault_before = ""
        """Of the move before: a proxy that was killed may live on for a moment."""

    async def run(self) -> None:
        """The whole schedule of the seed, and then to the end of the training."""
        argv = [sys.executable, TRAINING, "cuda", str(STEPS), "/", str(PAUSE_S)]
        self.at = self.boxes[0]
        self.session = await self.at.start(argv)
        try:
            async with asyncio.timeout(LIMIT_S):
                await self.at.event("device.need", self.session)
                await self.attach("cpu:0")
                await self.reach(1)
                await self.save(self.checkpoint())
                for move in draw(self.seed):
                    self.story.append(str(move))
                    await self.make(move)
                await self.finish()
        except Exception as error:
            raise AssertionError(self.told()) from error
        finally:
            self._hold_log(None)
            for box in self.boxes:
                with contextlib.suppress(SingularityError):
                    await box.end(self.session)

    def told(self) -> str:
        """What happened, for the message of a failure."""
        lines = [f"seed {self.seed}:", *(f"  {line}" for line in self.story)]
        logs = [f"agent {n}:\n{box.agent_log()}" for n, box in enumerate(self.boxes, start=1)]
        return "\n".join([*lines, f"at {self._name(self.at)}", self.log()[-1000:], *logs])

    def _name(self, box: AgentBox | None) -> str:
        return "store" if box is None else f"node {self.boxes.index(box) + 1}"

    # -- what one sees ----------------------------------------------------------------------------

    def log(self) -> str:
        return self.place.log(self.session)

    def seen(self) -> int:
        """The last step that the session has done; its losses so far are right.

        A node's log tells all that was printed there: when the session comes back to an older
        state, the steps since are in it twice, and go on behind a checkpoint."""
        steps = [(int(n), x) for n, x in re.findall(r"^step (\d+) (\S+)$", self.log(), re.M)]
        assert all(self.reference[n] == x for n, x in steps), "other numbers"
        printed, first, last = self._stood
        at, back = -1, 0
        for place, (n, _) in enumerate(steps):
            if place == printed:
                assert first < n <= last + 1, f"it went on with {n}: {self._stood}"
            if n != at + 1:
                back += 1
                assert back < self.incarnation, f"step {n} after {at}"
                assert any(a < n <= b + 1 for a, b in self.saved.values()), f"step {n} after {at}"
            at = n
        return first if len(steps) == printed else at

    async def reach(self, step: int) -> None:
        await until(lambda: self.seen() >= min(step, STEPS - 1), self.log)

    async def look(self) -> None:
        """Find out where it lives, as a service does that was away."""
        found = []
        for box in self.boxes:
            [hello] = await box.fleet.hello()
            mine = [s for s in hello["sessions"] if s["session"] == self.session and s["alive"]]
            found += [(box, one) for one in mine]
        assert len(found) <= 1, "it lives on two nodes"
        if found:
            [(self.at, report)] = found
            self.place = self.at
            self.held = bool(report["devices"])
        else:
            self.at, self.held = None, False
            for box in self.boxes:
                await gone(box, self.session)

    # -- moves ------------------------------------------------------------------------------------

    async def make(self, move: Move) -> None:
        if self.at is not None and self.held:
            await self.reach(self.seen() + move.steps)
        job = asyncio.ensure_future(self.save(self.verb(move)))
        if move.fault:
            await asyncio.wait({job}, timeout=move.fault_s)
            await {
                "kill proxy": self.kill_proxies,
                "kill agent": self.kill_agent,
                "kill node": self.kill_node,
            }[move.fault]()
        try:
            await asyncio.wait_for(job, 90)
        except SingularityError as error:
            self.story.append(f"    {type(error).__name__}: {error.message}")
            proxy_dies = self._fault_before == "kill proxy" and isinstance(error, Unavailable)
            if not move.fault and not proxy_dies:
                raise
        self._fault_before = move.fault
        await self.look()
        await self.note()
        self.story.append(f"    at {self._name(self.at)}, step {self.seen() if self.at else '-'}")

    async def verb(self, move: Move) -> None:
        if self.at is None:
            await self.resume(self.other() if move.verb == "migrate" else self.place)
        elif move.verb == "attach":
            await self.attach(move.device)
        elif move.verb == "park":
            await self.at.park(self.session, self.epoch, seq=next(self._seq))
            self.held = False
        elif move.verb == "checkpoint":
            await self.checkpoint()
        elif move.verb in ("suspend", "migrate"):
            await suspend(self.at, self.session, self.epoch, seq=next(self._seq))
            self.at, self.held = None, False
            if move.verb == "migrate":
                await self.note()
                await self.resume(self.other())

    def other(self) -> AgentBox:
        [other] = [box for box in self.boxes if box is not self.place]
        return other

    async def attach(self, device: str) -> None:
        assert self.at is not None
        self.epoch += 1
        await self.at.attach(self.session, self.epoch, device, seq=next(self._seq))
        self.held = True

    async def checkpoint(self) -> None:
        assert self.at is not None
        await checkpoint(self.at, self.session, self.epoch, seq=next(self._seq))

    async def resume(self, box: AgentBox) -> None:
        """From the newest checkpoint; it is at exactly that one then."""
        newest = (await listed(box, self.session))[-1]["id"]
        self.place, self._last_words = box, ""
        self.epoch += 1
        done = await resume(
            box,
            self.session,
            self.epoch,
            newest,
            seq=next(self._seq),
            incarnation=self.incarnation,
        )
        self.at = box
        self.returns += 1
        assert done["loss"]["checkpoint"] == newest
        first, last = self.saved[newest]
        printed = len(re.findall(r"^step ", self.log(), re.M))
        # The log may tell of steps that are undone, also when the checkpoint may be of the last.
        older = done["loss"]["rolled_back"]
        self._stood = (printed, first, last) if older else (-1, -1, -1)
        assert first <= self.seen() <= last + 1, f"it came back at {self.seen()}: {self.saved}"

    async def save(self, job: Awaitable[None]) -> None:
        """Do `job` and learn which checkpoints it made of which steps."""
        self._first = self.seen() if self.at is not None else -1
        self._hold_log(self.at)
        try:
            await job
        finally:
            with contextlib.suppress(SingularityError):
                await self.note()

    def _hold_log(self, box: AgentBox | None) -> None:
        if self._written is not None:
            self._written.close()
            self._written = None
        if box is not None:
            with contextlib.suppress(FileNotFoundError):
                self._written = (box.folder(self.session) / "capsule.log").open()

    async def note(self) -> None:
        """Checkpoints that one did not know are of the steps since the verb began."""
        words = self._last_words
        if not words and self._written is not None:
            self._written.seek(0)
            words = self._written.read()
        last = len(losses(words)) - 1 if words else self.seen()
        for found in await listed(self.place, self.session):
            if found["id"] not in self.saved:
                assert found["level"] == "process"
                self.saved[found["id"]] = (self._first, max(last, self._first))

    # -- faults -----------------------------------------------------------------------------------

    async def kill_proxies(self) -> None:
        for pid in self.place.proxies_of(self.session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def kill_agent(self) -> None:
        await self.place.kill_agent()

    async def kill_node(self) -> None:
        """Agent, capsule, proxies and all that the agent runs besides, at once."""
        box, before = self.place, self.place.log(self.session)
        stop_process(box.agent_pid)
        killed: set[int] = set()
        for _ in range(3):  # CRIU may have been about to fork
            killed |= {*(found := _all_of(box, self.session))}
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        # What the agent has forked into a capsule is waited for by nobody until it is killed too.
        self._last_words = box.log(self.session) or before
        self.lost += len(losses(self._last_words))
        self.incarnation += 1
        await box.kill_agent()
        # On a busy machine they take a while to end, and the next agent finds them alive.
        await until(lambda: not any(map(alive, killed)))

    # -- the end ----------------------------------------------------------------------------------

    async def finish(self) -> None:
        if self.at is None:
            await self.resume(self.place)
        self.story.append("to the end")
        await self.attach("cpu:0")
        await until(self.has_ended, self.log)
        assert losses(self.log()) == self.reference
        assert self.seen() == STEPS - 1 or self._stood[2] == STEPS - 1

    def has_ended(self) -> bool:
        """Whether the training, as it is now, has come to its end: the log may tell of the end of
        an earlier life, of which the session came back to an older state."""
        # Wherever it is, the environment that it began with names the node where that was.
        found = (one.pid for box in self.boxes for one in box.everything_of(self.session))
        return ENDED in map(_name_of, found)


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _all_of(box: AgentBox, session: str) -> list[int]:
    """All processes of the node, but for the agent and relays."""
    found = {p.pid for p in box.everything_of(session)} | set(box.proxies())
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry)] = int(words[1])
    below = {box.agent_pid}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted((found | below) - {box.agent_pid})


async def walk(boxes: Sequence[AgentBox], seed: int, reference: dict[int, str]) -> dict[str, Any]:
    """Carry out the schedule of `seed`; returns figures of it."""
    walked = Walk(boxes, seed, reference)
    await walked.run()
    for box in boxes:
        box.forget_events()
    return {"seed": seed, "returns": walked.returns, "checkpoints": len(walked.saved)}
