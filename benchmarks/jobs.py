"""Training jobs of several ranks, watched and disturbed while they run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

from singularity_proxy.elastic.ranks import RankFailed, first_rank, run_ranks, script
from singularity_proxy.standalone import Standalone

DDP = Path(__file__).with_name("ddp.py")
ALL_REDUCE = Path(__file__).with_name("allreduce.py")
RANKS = 4


class Job:
    """`ddp.py` with `arguments` as `ranks` processes of `session` (None: natively, with gloo).

    Runs in a thread of its own; `wait_for_step`, then disturb the session, then `result`. In a
    session that is a part of a gang these are the ranks of that part. `on`: the cores they run on;
    none: where they want.
    """

    def __init__(
        self,
        session: Standalone | None,
        *arguments: str,
        ranks: int = RANKS,
        file: Path = DDP,
        on: Set[int] = frozenset(),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="singularity-job-"))
        self.lines: list[tuple[int, str]] = []
        self.failure: RankFailed | None = None
        self.ranks = ranks
        self._on = on
        self._done = 0
        self._news = threading.Condition()
        model, *rest = arguments
        device = "cpu" if session is None else "cuda"
        command = script(str(file), model, device, "--out", str(self.folder), *rest)
        env = dict(os.environ) if session is None else session.env()
        env["OMP_NUM_THREADS"] = "1"
        first = first_rank(ranks, env)
        self._steps = dict.fromkeys(range(first, first + ranks), -1)
        self._thread = threading.Thread(target=self._run, args=(command, env), daemon=True)
        self._thread.start()

    def _run(self, command: list[str], env: dict[str, str]) -> None:
        try:
            if self._on:
                os.sched_setaffinity(0, self._on)  # of this thread, and of what it starts
            run_ranks(command, self.ranks, env, self._line)
        except RankFailed as error:
            self.failure = error
        with self._news:
            self._news.notify_all()

    def _line(self, rank: int, line: str) -> None:
        with self._news:
            self.lines.append((rank, line))
            if line.startswith("step "):
                self._steps[rank] = int(line.split()[1])
                self._news.notify_all()
            elif line == "done\n":
                self._done += 1
                self._news.notify_all()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def step(self) -> int:
        """The newest step that a rank has finished; -1 before the first."""
        return max(self._steps.values())

    def wait_for_step(self, step: int, seconds: float = 120) -> None:
        """Until a rank has finished it; raises when the job ends before."""
        until = time.monotonic() + seconds
        with self._news:
            while self.step < step:
                if not self.running or time.monotonic() > until:
                    raise RuntimeError(f"the job came to step {self.step} only: {self.printed()}")
                self._news.wait(0.1)

    def wait_until_done(self, seconds: float = 600) -> None:
        """Until all ranks have computed everything; with ``--stay`` they are still there then, and
        go with `result`. Raises when the job ends before."""
        until = time.monotonic() + seconds
        with self._news:
            while self._done < self.ranks:
                if not self.running or time.monotonic() > until:
                    raise RuntimeError(f"the job came to step {self.step} only: {self.printed()}")
                self._news.wait(0.1)

    def pids(self) -> list[int]:
        """Of the ranks, in their order, from their environment."""
        found: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            try:
                if (
                    not entry.name.isdigit()
                    or str(self.folder).encode() not in (entry / "cmdline").read_bytes()
                ):
                    continue
                words = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            rank = next((w[5:] for w in words if w.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank)] = int(entry.name)
        return [found[rank] for rank in sorted(found)]

    def stop(self) -> None:
        """Kill the ranks, and wait until nothing is left of the job."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def printed(self) -> str:
        """What the ranks said besides their steps."""
        return "".join(
            f"[{r}] {line}" for r, line in self.lines if not line.startswith(("step ", "done"))
        )

    def wait(self, seconds: float = 600) -> None:
        """Until all ranks have ended, however."""
        self._thread.join(seconds)
        if self.running:
            steps = list(self._steps.values())
            raise RuntimeError(f"the job hangs at steps {steps}: {self.printed()}")

    def result(self, seconds: float = 600) -> list[dict[str, Any]]:
        """Of each rank: losses, weights, seconds. Raises when one failed."""
        try:
            (self.folder / "leave").touch()
            self.wait(seconds)
            if self.failure is not None:
                raise RuntimeError(f"{self.failure}: {self.printed()}")
            return [json.loads((self.folder / f"{rank}.json").read_text()) for rank in self._steps]
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def numbers(result: list[dict[str, Any]]) -> list[tuple[list[str], str]]:
    """What must be the same whatever happened: losses and weights of each rank."""
    return [(rank["losses"], rank["weights"]) for rank in result]
