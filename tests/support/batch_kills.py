"""Batch runs whose processes are killed at random, and proof that none runs twice at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from support.batch_runs import ENDED, Json, processes_of, read, without_times, write_notebook
from support.service_process import ServiceProcess

CELLS = 6
RETRIES = 12
VICTIMS = ("papermill", "kernel", "proxy", "agent", "service")
MODULES = {
    "papermill": "singularity_kernel.batch",
    "kernel": "ipykernel_launcher",
    "proxy": "singularity_proxy.device",
    "agent": "singularity_scheduler.agent",
}

_BEGIN = """
import fcntl, os, time, uuid, torch
marker = open(job + ".running", "a")
try:
    fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(job + ".twice", "a").write("another one holds the marker\\n")
    raise
token = uuid.uuid4().hex
torch.manual_seed(5)
x = torch.zeros(8, device="cuda")

def line(cell):
    with open(job + ".lines", "a") as file:
        file.write(f"{cell} {token}\\n")
"""
_CELL = """
line({cell})
for i in range(8):
    x = x * 0.5 + torch.randn(8, device="cuda")
    print("{cell}.%d" % i, x.sum().item().hex(), flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.15)
"""


def write_job(folder: Path) -> Path:
    """A notebook that holds a locked marker as long as it runs, and writes down each cell that it
    begins with a token of its own; its numbers depend on all before them."""
    cells = [_BEGIN, *(_CELL.format(cell=cell) for cell in range(CELLS))]
    return write_notebook(folder / "job.ipynb", *cells, parameters='job = "none"')


class Jobs:
    """Some runs of that notebook, in `folder`."""

    def __init__(self, service: ServiceProcess, folder: Path, environment: Json) -> None:
        self.service = service
        self.folder = folder
        self.ids: dict[str, str] = {}
        """Name -> session."""
        self.most: Counter[str] = Counter()
        """Name -> the most runners of it that were ever seen at a time."""
        self._notebook = write_job(folder)
        self._environment = environment

    @property
    def client(self) -> ServiceClient:
        return self.service.client()

    async def submit(self, name: str) -> None:
        run = {
            "notebook": str(self._notebook),
            "output": str(self.folder / f"{name}.ipynb"),
            "parameters": {"job": name},
            "python": sys.executable,
            "variables": self._environment,
            "max_retries": RETRIES,
        }
        made = await self.client.submit(run=run, name=name)
        self.ids[name] = made["id"]

    async def found(self) -> dict[str, Json]:
        """Name -> session; waits for a service that is being started."""
        while True:
            try:
                return {n: await self.client.get_session(s) for n, s in self.ids.items()}
            except SingularityError:
                await asyncio.sleep(0.2)

    async def ended(self, seconds: float) -> dict[str, Json]:
        """All of them, once they have ended."""
        until = time.monotonic() + seconds
        while True:
            found = await self.found()
            if all(s["process_state"] in ENDED for s in found.values()):
                return found
            states = {n: (s["state"], s["attempt"], s["reason"]) for n, s in found.items()}
            assert time.monotonic() < until, (states, self.service.log())
            self.look()
            await asyncio.sleep(0.3)

    async def wait(self, seconds: float) -> None:
        """Let them run for so long, and count their runners meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            await asyncio.sleep(0.2)

    def look(self) -> None:
        """Count the runners of each job that there are now. One that is just being reaped has no
        command line any more; a child of a runner has the runner's until it executes its own
        program, and is none."""
        for name, session in self.ids.items():
            found = {p for p, line in processes_of(session).items() if MODULES["papermill"] in line}
            runners = [pid for pid in found if parent_of(pid) not in found]
            self.most[name] = max(self.most[name], len(runners))

    def victims(self, kind: str) -> list[int]:
        """Processes of this kind that belong to the jobs, or to their platform."""
        if kind in ("papermill", "kernel"):
            of_jobs = [p for s in self.ids.values() for p in processes_of(s).items()]
            return [pid for pid, line in of_jobs if MODULES[kind] in line]
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_text()
                if MODULES[kind] in line.split("\0") and self.service.place in line:
                    found.append(int(entry.name))
        return found

    async def kill(self, kind: str, chance: random.Random) -> bool:
        """SIGKILL to one of them; False when there is none just now."""
        if kind == "service":
            self.service.kill()
            await asyncio.sleep(chance.uniform(0, 1))
            await self.service.start()
            return True
        victims = sorted(self.victims(kind))
        if not victims:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(victims), signal.SIGKILL)
        return True

    async def checkpoint(self, chance: random.Random) -> None:
        """Of one of them, if that can be done just now."""
        with contextlib.suppress(SingularityError, TimeoutError):
            async with asyncio.timeout(20):
                await self.client.checkpoint(self.ids[chance.choice(sorted(self.ids))])

    def check(self, name: str, session: Json, alone: Json) -> None:
        """It ended by itself, never ran twice at once, and when it is completed its output is the
        one of a run that nobody disturbed (`alone`)."""
        about: Any = (name, session["attempt"], session["reason"])
        assert not (self.folder / f"{name}.twice").exists(), about
        assert self.most[name] <= 1, about
        if session["state"] != "completed":
            assert session["state"] == "failed", about
            assert session["attempt"] == RETRIES + 1, about
            assert session["reason"].startswith(f"the last of its {RETRIES + 1} attempts"), about
            return
        assert same(read(self.folder / f"{name}.ipynb")) == same(alone), about
        lines = [line.split() for line in (self.folder / f"{name}.lines").read_text().splitlines()]
        tokens = list(dict.fromkeys(token for _, token in lines))
        runs = [[int(cell) for cell, token in lines if token == one] for one in tokens]
        assert sorted(set(runs[-1])) == list(range(CELLS)), (about, runs)
        assert [t for _, t in lines] == [t for t in tokens for _, u in lines if u == t], about
        # It began anew, or went back to before its token was made (a lost agent is no attempt).
        assert len(tokens) < session["attempt"] + session["incarnation"], about


def parent_of(pid: int) -> int | None:
    """Return the parent of process `pid`; None when the process has ended (proc(5), stat)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def same(notebook: Json) -> Json:
    """What the outputs of two jobs must have in common: all but times, the job's name, and what is
    said on standard error while a device or its agent is away."""
    found = without_times(notebook)
    found["metadata"]["papermill"].pop("parameters")
    outputs = [
        [o for o in cell.get("outputs", ()) if o.get("name") != "stderr"] for cell in found["cells"]
    ]
    return {"metadata": found["metadata"], "outputs": outputs}
