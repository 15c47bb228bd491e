"""Runs the sweep in sessions of its own and collects what the workers wrote."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
        while self.left:
            left = len(self.left)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix="run-", suffix=".jsonl")
            os.close(handle)
            out = Path(name)
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
            elif self.left and len(self.left) == left:
                raise RuntimeError(
                    f"the sweep's worker failed before its first task ({worker.returncode}): {tail}"
                )

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
        done, begun = answers(out)
        self.results.update(done)
        self.left = [task for task in self.left if task not in done]
        return begun


def answers(out: Path) -> tuple[dict[Task, dict[str, Any]], Task | None]:
    """What a worker wrote: the results, and the task that it began and did not finish."""
    done: dict[Task, dict[str, Any]] = {}
    begun: Task | None = None
    for line in out.read_text().splitlines():
        entry = json.loads(line)
        if "begin" in entry:
            begun = (entry["begin"][0], entry["begin"][1])
        else:
            done[entry["task"][0], entry["task"][1]] = {
                k: v for k, v in entry.items() if k != "task"
            }
            begun = None
    return done, begun


def _same_settings(folder: Path, samples: int) -> None:
    """Answers of fewer samples or of another torch must not be taken for those of this sweep."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    settings = {"samples": samples, "torch": str(torch.__version__)}
    file = folder / "settings.json"
    if file.exists() and json.loads(file.read_text()) != settings:
        raise SystemExit(
            f"{folder} holds answers of another sweep ({file.read_text()}); use an empty folder"
        )
    file.write_text(json.dumps(settings))


def sweep(
    tasks: Sequence[Task], samples: int = 0, jobs: int = 1, folder: Path | None = None
) -> dict[Task, dict[str, Any]]:
    """Results of `tasks`, `samples` of each (0: all), in `jobs` sessions at once.

    With a `folder` the workers' answers are kept there, and tasks that it has answers for are not
    run again: a sweep that was ended goes on.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _same_settings(folder, samples)
        known: dict[Task, dict[str, Any]] = {}
        for out in folder.glob("*/run-*.jsonl"):
            known.update(answers(out)[0])
        left = [task for task in tasks if task not in known]
        shards = []
        for i in range(jobs):
            (place := folder / str(i)).mkdir(parents=True, exist_ok=True)
            shards.append(Shard(left[i::jobs], samples, place))
        with ThreadPoolExecutor(jobs) as threads:
            for done in [threads.submit(shard.run) for shard in shards]:
                done.result()  # a shard that failed must not look like one with fewer tasks
    found = known | {task: answer for s in shards for task, answer in s.results.items()}
    return {task: found[task] for task in tasks}


def figures(results: dict[Task, dict[str, Any]]) -> dict[str, Any]:
    """The report's numbers."""
    total = sum(r["samples"] for r in results.values())
    wrong = sum(len(r["failures"]) for r in results.values())
    return {
        "opinfo_samples": total,
        "opinfo_equal_fraction": round((total - wrong) / total, 6) if total else 0.0,
    }
