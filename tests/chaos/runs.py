"""The runs of the campaign: a batch notebook, ranks under torchrun, a plain script."""

from __future__ import annotations

import abc
import asyncio
import os
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

import nbformat
from singularity_proxy.errors import NotFound, Unavailable
from support.batch_runs import text_of, write_notebook

from . import programs
from .subjects import ENDED, JOINED_VERBS, RUN_VERBS, Lines, Lost, Subject
from .tab import Tab
from .world import Json

RUN_S = 1500.0
"""Longest time for one run."""


class Run(Subject):
    """Something that is started, watched until its end, and looked at."""

    ends_with_platform: ClassVar[bool] = True

    @abc.abstractmethod
    async def start(self) -> str:
        """Start one; its session."""

    @abc.abstractmethod
    async def check(self, doc: Json) -> None:
        """It has completed: compare what it left with a calm run."""

    async def round(self) -> None:
        if not self.session:
            session = await self.start()
            self.session = session
            self.world.timeline.add("session", f"{self.name} is session {session}")
        deadline, seen = self.world.timeline.now + RUN_S, 0
        while True:
            found = await self.world.session(self.session)
            if found.get("process_state") in ENDED and not self.reopening:
                found = await self.world.session(self.session)
                if found.get("process_state") in ENDED and not self.reopening:
                    break
            if (shown := self.shown()) != seen:
                seen, self.progress_at = shown, self.world.timeline.now
            if not found:
                raise Lost("the service does not know it any more")
            if self.world.timeline.now > deadline:
                raise Unavailable(f"{self} did not end in {RUN_S:g} s")
            await asyncio.sleep(1.0)
        if found["process_state"] != "completed":
            raise Lost(f"it has not completed ({found['process_state']})")
        await self.check(found)
        self.history.append(self.session)
        self.forget_session()

    async def drop(self) -> None:
        old = self.session
        self.forget_session()
        if old:
            await self.end_session(old)

    async def settle(self) -> None:
        """`live` has seen its end, or ended it."""

    def shown(self) -> int:
        """How many bytes it has printed so far, wherever it was."""
        logs = self.world.state.scheduler.glob(f"agent/*/logs/*/{self.session}-*.log")
        return sum(map(_size, logs))

    def variables(self) -> dict[str, str]:
        home = str(self.world.home(self.user))
        return {"HOME": home, "PATH": f"{Path(sys.executable).parent}:{os.defpath}"}

    def write(self, name: str, text: str) -> Path:
        """A file of the user in their home."""
        path = self.world.home(self.user) / name
        path.write_text(text)
        self._give(path)
        return path

    def _give(self, path: Path) -> None:
        home = self.world.home(self.user).stat()
        os.chown(path, home.st_uid, home.st_gid)

    async def submit(self, run: dict[str, Any], **more: Any) -> str:
        """Submit once, however often that has to be tried."""
        key = uuid.uuid4().hex

        async def call() -> Json:
            service = self.world.service(await self.world.token(self.user), timeout=30.0)
            return await service.submit(run=run, name=f"{self.kind}-{self.rounds}", key=key, **more)

        return str((await self.world.persist(call, what=f"submission of {self.name}"))["id"])

    async def ensure_home(self) -> None:
        """The user's server has run once, which makes the home."""
        tab = Tab(self.world, self.user, "")
        await tab.rest("GET", "api/status")


class Batch(Run):
    """A notebook that is submitted, again and again."""

    kind = "batch"
    verbs = RUN_VERBS
    retries: ClassVar[bool] = True
    steps: ClassVar[int] = 120
    pause_s: ClassVar[float] = 0.25
    expected: list[str] = []

    async def start(self) -> str:
        await self.ensure_home()
        if not self.expected:
            type(self).expected = await asyncio.to_thread(programs.undisturbed_steps, self.steps)
        code = programs.STEPS.format(device="cuda", steps=self.steps, pause=self.pause_s)
        home = self.world.home(self.user)
        notebook = write_notebook(home / "run.ipynb", code)
        self._give(notebook)
        self.output = home / f"run-{self.rounds}-{uuid.uuid4().hex[:6]}.ipynb"
        run = {
            "notebook": str(notebook),
            "output": str(self.output),
            "python": sys.executable,
            "variables": self.variables(),
            "max_retries": 3,
        }
        return await self.submit(run, checkpoint_every_s=20.0)

    def shown(self) -> int:
        return _size(self.output)

    async def check(self, doc: Json) -> None:
        text = text_of(nbformat.read(self.output, as_version=4))
        found = [loss for _, _, loss in programs.lines(text)]
        if found != self.expected:
            where = programs.first_difference(found, self.expected)
            said = (
                f"{self.output.name} has {len(found)} of {self.steps} lines, other from {where} on"
            )
            self.world.timeline.violate("outputs", self.name, f"{said} (session {self.session})")
        other = [line for line in text.splitlines() if not programs.LINE.match(line)]
        if other:
            self.world.timeline.add("note", f"{self.name} printed besides: {other[:3]}")


class Ranks(Run):
    """DistributedDataParallel under torchrun, from a job."""

    kind = "ranks"
    verbs = RUN_VERBS | {"resize"}
    retries: ClassVar[bool] = True
    steps: ClassVar[int] = 120
    pause_s: ClassVar[float] = 0.25
    expected: dict[int, list[str]] = {}

    async def start(self) -> str:
        await self.ensure_home()
        script = self.write("ddp.py", programs.DDP)
        if not self.expected:
            type(self).expected = await asyncio.to_thread(programs.undisturbed_ranks, self.steps)
        command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
        run = {
            "command": f"{command} {script.name} cuda {self.steps} {self.pause_s}",
            "folder": str(self.world.home(self.user)),
            "python": sys.executable,
            "variables": {**self.variables(), "OMP_NUM_THREADS": "1"},
            "max_retries": 3,
        }
        return await self.submit(run, devices=2, elastic=True, checkpoint_every_s=25.0)

    async def check(self, doc: Json) -> None:
        service = self.world.service(await self.world.token(self.user))

        async def read() -> str:
            return "".join([part async for part in service.logs(self.session)])

        try:
            text = await self.world.persist(read, what=f"log of {self}")
        except NotFound as error:
            self.world.timeline.violate("outputs", self.name, f"no log: {error.message}")
            return
        if doc.get("attempt", 1) > 1 or doc.get("incarnation", 1) > 1:
            # It began anew or went back: the log has lines of before too; their values count.
            for rank, step, loss in programs.lines(text):
                if loss != self.expected[rank][step]:
                    what = f"step {step} of rank {rank} is {loss}"
                    self.world.timeline.violate("bitwise", self.name, f"{what} ({self.session})")
            return
        lines = Lines(self, self.expected, gaps=False)
        lines.take(text, False)
        if any(last != self.steps - 1 for last in lines.last.values()):
            self.world.timeline.violate(
                "outputs", self.name, f"its log ends at {lines.last} (session {self.session})"
            )


class Script(Run):
    """`jupyter singularity run python script.py` in a terminal, left alone there."""

    kind = "script"
    verbs = JOINED_VERBS
    steps: ClassVar[int] = 200
    pause_s: ClassVar[float] = 0.25
    expected: list[str] = []

    async def start(self) -> str:
        await self.ensure_home()
        if not self.expected:
            type(self).expected = await asyncio.to_thread(programs.undisturbed_steps, self.steps)
        code = programs.STEPS.format(device="cuda", steps=self.steps, pause=self.pause_s)
        self.write("script.py", code)
        self.output = self._new_output()
        tab = Tab(self.world, self.user, "")
        known = set(self.history)

        async def begin() -> str:
            if not self.output.exists():
                line = f"jupyter singularity run python script.py > {self.output.name} 2>&1"
                line = f"setsid nohup {line} & sleep 2"
                server = await tab._server()
                await asyncio.wait_for(server.command(line, timeout=20.0), 30.0)
            for _ in range(40):
                for found in await self.world.service(timeout=10.0).sessions(user=self.user):
                    plain = found["kind"] == "batch" and found["run"] is None
                    if plain and found["id"] not in known:
                        return str(found["id"])
                if self.output.exists() and self.output.stat().st_size and self.refused():
                    break
                await asyncio.sleep(0.5)
            said = self.output.read_text() if self.output.exists() else "nothing"
            self.output = self._new_output()
            self.world.timeline.add("session", f"{self.name} did not start: {said[-300:]}")
            raise Unavailable(f"the script did not start: {said[-300:]}")

        return await self.world.persist(begin, what=f"start of {self.name}")

    def _new_output(self) -> Path:
        name = f"script-{self.rounds}-{uuid.uuid4().hex[:6]}.txt"
        return self.world.home(self.user) / name

    def shown(self) -> int:
        return _size(self.output)

    def refused(self) -> bool:
        return "jupyter singularity run:" in self.output.read_text(errors="replace")

    async def check(self, doc: Json) -> None:
        text = self.output.read_text(errors="replace")
        found = [loss for _, _, loss in programs.lines(text)]
        if found != self.expected:
            where = programs.first_difference(found, self.expected)
            said = (
                f"{self.output.name} has {len(found)} of {self.steps} lines, other from {where} on"
            )
            self.world.timeline.violate("outputs", self.name, f"{said}: {text[-200:]!r}")


def _size(path: Path) -> int:
    """Bytes in a file; 0 while there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
