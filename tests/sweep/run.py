"""Runs the sweep in sessions of its own and collects what the workers wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from singularity_proxy.standalone import Standalone

Task = tuple[str, str]
SILENCE_SECONDS = 300.0
"""A worker that finishes no task for so long is ended and its task counted as hanging."""


def list_tasks() -> list[Task]:
    """Every (operator, dtype), as this process's torch knows them."""
    from .operators import dtypes_of, operators

    return [(name, dtype) for name, op in operators().items() for dtype in dtypes_of(op)]


class Shard:
    """One session at a time that works through `tasks`; a crash costs the task it happened in."""

    def __init__(self, tasks: Sequence[Task], samples: int, folder: Path) -> None:
        self.left = list(tasks)
        self.samples = samples
        self.folder = folder
        self.results: dict[Task, dict[str, Any]] = {}
        self.again: set[Task] = set()

    def run(self) -> None:
        number = 0
        while self.left:
            number += 1
            out = self.folder / f"{number}.jsonl"
            out.touch()
            (self.folder / "tasks.json").write_text(json.dumps(self.left))
            with Standalone() as session, open(self.folder / "stderr", "w+") as stderr:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "sweep.worker", str(self.folder / "tasks.json"),
                     str(out), str(self.samples)],
                    env=session.env(), stdout=subprocess.DEVNULL, stderr=stderr,
                    cwd=Path(__file__).parents[1],
                )  # fmt: skip
                silent = self._wait(worker, out)
                stderr.seek(0)
                tail = stderr.read()[-4000:]
            begun = self._collect(out)
            if begun is not None:
                if (
                    begun not in self.again
                ):  # perhaps it was the machine: once more, in a new session
                    self.again.add(begun)
                    continue
                why = "no answer" if silent else f"exit code {worker.returncode}"
                self.results[begun] = {
                    "samples": 1, "failures": [[0, {"crash": why}]], "stderr": tail,
                }  # fmt: skip
                self.left.remove(begun)
            elif worker.returncode and self.left:
                raise RuntimeError(f"the sweep's worker failed before its first task: {tail}")

    def _wait(self, worker: subprocess.Popen[bytes], out: Path) -> bool:
        size, since = 0, time.monotonic()
        while True:
            try:
                worker.wait(0.2)
                return False
            except subprocess.TimeoutExpired:
                now = out.stat().st_size
                if now != size:
                    size, since = now, time.monotonic()
                elif time.monotonic() - since > SILENCE_SECONDS:
                    worker.kill()
                    worker.wait()
                    return True

    def _collect(self, out: Path) -> Task | None:
        begun: Task | None = None
        for line in out.read_text().splitlines():
            entry = json.loads(line)
            if "begin" in entry:
                begun = (entry["begin"][0], entry["begin"][1])
            else:
                task = (entry["task"][0], entry["task"][1])
                self.results[task] = {k: v for k, v in entry.items() if k != "task"}
                self.left.remove(task)
                begun = None
        return begun


def sweep(tasks: Sequence[Task], samples: int = 0, jobs: int = 1) -> dict[Task, dict[str, Any]]:
    """Results of `tasks`, `samples` of each (0: all), in `jobs` sessions at once."""
    with tempfile.TemporaryDirectory() as folder:
        shards = []
        for i in range(jobs):
            (place := Path(folder) / str(i)).mkdir()
            shards.append(Shard(tasks[i::jobs], samples, place))
        threads = [threading.Thread(target=s.run) for s in shards]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {task: answer for s in shards for task, answer in s.results.items()}


def figures(results: dict[Task, dict[str, Any]]) -> dict[str, Any]:
    """The report's numbers."""
    total = sum(r["samples"] for r in results.values())
    wrong = sum(len(r["failures"]) for r in results.values())
    return {
        "opinfo_samples": total,
        "opinfo_equal_fraction": round((total - wrong) / total, 6) if total else 0.0,
    }
