"""One fault at one step of a checkpoint, a suspend or a resume, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.stores.urls import open_store
from singularity_proxy.errors import SingularityError
from support.agent import AgentBox, alive, until
from support.agent_held import Held
from support.agent_moves import after, checkpoint, gone, listed, resume, suspend
from support.agent_trains import losses, start_training
from support.store_faults import FaultProxy

WHAT_NOW = re.compile(r"kept|goes on|as it was|try again|nothing was|were not")
"""A sentence about something that failed says what became of the session or the checkpoints."""


@dataclass(frozen=True)
class Fault:
    """`who` is hit at `step` of `verb`; CRIU `after_s` seconds after it began to work, as it has
    no steps."""

    who: str
    verb: str
    step: str
    after_s: float = 0.0

    @property
    def kind(self) -> str:
        """Who is hit during what: one session goes through all faults of a kind."""
        return f"{self.who}-{self.verb}"

    def __str__(self) -> str:
        after = f"+{self.after_s:g}s" if self.who == "criu" else ""
        return f"{self.kind}-{self.step}{after}"


class Trial:
    """One session that trains on `box`, whose agent is `agent_with_fault.py`, through one fault
    after the other. `store`: options that open its store; `line`: what is between the two, for
    Azure."""

    def __init__(
        self,
        box: AgentBox,
        reference: dict[int, str],
        store: tuple[str, dict[str, Any]],
        line: FaultProxy | None = None,
    ) -> None:
        self.box, self.reference, self.line = box, reference, line
        self._url, self._options = store
        self.session, self.epoch, self.seq = "", 1, 1
        self.base: dict[str, Any] = {}
        self.base_steps = (0, 0)
        self.error: SingularityError | None = None
        self._known: list[str] = []
        self._hits: dict[str, Callable[[Fault, Held], Awaitable[None]]] = {
            "agent": self._kill_agent,
            "proxy": self._kill_proxies,
            "criu": self._kill_criu,
            "program": self._kill_program,
            "service": self._kill_service,
            "uploader": self._cut_line,
            "store": self._busy_store,
        }

    async def begin(self) -> None:
        """Start the session, let it train and make the checkpoint that no fault may harm."""
        box = self.box
        self.session = await start_training(box, pause_s=0.15, steps=len(self.reference))
        await box.attach(self.session, 1)
        await after(box, self.session, 2)
        seen = self._seen()
        self.base = await checkpoint(box, self.session, 1, "before", seq=1)
        self.base_steps = seen, self._seen() + 1
        self._known = [self.base["id"]]

    async def run(self, fault: Fault) -> None:
        """Strike the session once and check all that must hold afterwards."""
        self.box.forget_events()
        self.error = None
        await self._strike(fault)
        await self._settle()
        await self._check_store(fault)
        await self._check_session(fault)

    async def finish(self) -> None:
        """Go back to the checkpoint from before all faults, and end the session."""
        box = self.box
        await self._end()
        await self._resume(self.base["id"], incarnation=2)
        before = len(box.log(self.session))  # what it printed since then stays in its log
        await self._attach()
        await until(lambda: losses(box.log(self.session)[before:]) != {})
        again = losses(box.log(self.session)[before:])
        first, last = self.base_steps
        assert first < min(again) <= last + 1
        assert self.reference.items() >= again.items()
        await self.drop()

    async def drop(self) -> None:
        """End the session, however it is."""
        with contextlib.suppress(SingularityError):
            await self.box.end(self.session)

    def _seen(self) -> int:
        return max(losses(self.box.log(self.session)), default=-1)

    # -- the fault --------------------------------------------------------------------------------

    async def _strike(self, fault: Fault) -> None:
        self.seq += 2
        epoch, seq = self.epoch, self.seq
        if fault.verb == "resume":
            done = await suspend(self.box, self.session, epoch, seq=seq)
            self.epoch, newest = epoch + 1, done["checkpoint"]["id"]
            self.seq += 1
            command = lambda: resume(self.box, self.session, epoch + 1, newest, seq=seq + 1)  # noqa: E731
        else:
            verb = {"suspend": suspend, "checkpoint": checkpoint}[fault.verb]
            command = lambda: verb(self.box, self.session, epoch, seq=seq)  # noqa: E731
        held = Held(self.box, fault.step)
        job = asyncio.ensure_future(command())
        try:
            await until(lambda: job.done() or held.reached)
            assert held.reached, f"{fault.step} was not reached: {job}"
            await self._hits[fault.who](fault, held)
            held.release()
            await job
        except SingularityError as error:
            self.error = error
        finally:
            held.release()
        if fault.who == "service":  # the next one repeats the command, or finds it done
            await until(lambda: self.box.connections[-1:] == [True])
            with contextlib.suppress(SingularityError):
                await command()
            self.error = None

    async def _kill_agent(self, *_: object) -> None:
        await self.box.kill_agent()

    async def _kill_proxies(self, *_: object) -> None:
        pids = self.box.proxies()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids))

    async def _kill_criu(self, fault: Fault, held: Held) -> None:
        held.release()
        await until(lambda: criu_of(self.box) != [])
        await asyncio.sleep(fault.after_s)
        for pid in criu_of(self.box):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _kill_program(self, *_: object) -> None:
        """What the session runs, as the kernel does it when memory is short."""
        for process in self.box.processes(self.session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    async def _kill_service(self, _: Fault, held: Held) -> None:
        """For the agent its connection ends, and somebody else calls a moment later."""
        await self.box.fleet.stop()
        held.release()
        await self.box.fleet.start()

    async def _cut_line(self, *_: object) -> None:
        assert self.line is not None
        self.line.mode = "refuse"

    async def _busy_store(self, *_: object) -> None:
        assert self.line is not None
        self.line.mode = "busy"

    # -- afterwards -------------------------------------------------------------------------------

    async def _settle(self) -> None:
        if self.line is not None:
            self.line.mode = "pass"
        await until(lambda: self.box.connections[-1:] == [True])

    async def _check_store(self, fault: Fault) -> None:
        """Whatever is listed is whole, and all the checkpoints from before are among it."""

        def read() -> list[str]:
            with contextlib.closing(open_store(self._url, **self._options)) as store:
                box = Checkpoints(store, "alice")
                found = [summary.id for summary in box.list(self.session)]
                for id in found:
                    assert box.verify(self.session, id) > 0
                return found

        whole = await asyncio.to_thread(read)
        assert whole[: len(self._known)] == self._known
        assert whole == [c["id"] for c in await listed(self.box, self.session)]
        self.made = len(whole) - len(self._known)
        assert self.made in ((1,) if fault.verb == "resume" else (0, 1))
        self._known = whole

    async def _check_session(self, fault: Fault) -> None:
        """It goes on here, or comes back from the store, and computes the same."""
        [hello] = await self.box.fleet.hello()
        mine = [s for s in hello["sessions"] if s["session"] == self.session and s["alive"]]
        if self.error is not None and fault.who != "agent":
            told = self.error.message
            assert WHAT_NOW.search(told), told
            assert "\n" not in told, told
            assert len(told) < 500, told
        if fault.who == "program":
            assert self.error is None or "goes on" not in self.error.message, self.error
            assert self.made or self.error is not None, "nobody says that nothing was saved"
            if mine or not self.made:
                await until(lambda: self._told("process.exited"))
            await self._end()
            mine = []
        elif fault.verb != "resume" and not self.made and fault.who != "criu":
            assert mine, "nothing was saved, and nothing goes on"
        if mine and not mine[0]["devices"]:
            await self._attach()
        if mine and await self._goes_on(fault):
            assert list((self.box.root / "state" / "images").iterdir()) == []
        else:
            if mine:
                await self._end()  # as a service does that has heard of its end
            await gone(self.box, self.session)
            self.box.forget_events()
            await self._resume(self._known[-1])
            await self._attach()
            assert await self._goes_on(fault)
        said = losses(self.box.log(self.session))
        assert list(said) == list(range(len(said)))
        assert self.reference.items() >= said.items()

    async def _goes_on(self, fault: Fault) -> bool:
        """Whether it trains on for two more steps. What CRIU was at work on when it was killed may
        end by what CRIU had changed in it; it comes back from the store then."""
        before = self._seen()
        assert before + 2 < len(self.reference), "the training was too short for its faults"
        await until(lambda: self._seen() >= before + 2 or self._told("process.exited"))
        over = self._told("process.exited")
        assert not over or fault.who == "criu", "it ended"
        return not over

    def _told(self, event: str) -> bool:
        return (self.session, event) in [(session, type) for session, type, _ in self.box.events]

    async def _end(self) -> None:
        """End what is here of the session; its checkpoints stay."""
        words = {"reason": "test", "grace_s": 0.0, "keep": True}
        await self.box.call("session.end", session=self.session, **words)

    async def _resume(self, id: str, **more: Any) -> None:
        self.epoch, self.seq = self.epoch + 1, self.seq + 1
        await resume(self.box, self.session, self.epoch, id, seq=self.seq, **more)

    async def _attach(self) -> None:
        self.epoch += 1
        await self.box.attach(self.session, self.epoch)


def criu_of(box: AgentBox) -> list[int]:
    """Pids of the CRIU that this box's agent runs, which dumps or restores."""
    return [pid for pid in _below(box.agent_pid) if _is_criu(pid)]


def _is_criu(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"-D" in words and (b"dump" in words or b"restore" in words)
    return False


def _below(pid: int) -> Iterator[int]:
    """All processes that this one has started, and theirs."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry)] = int(words[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
        yield from more
