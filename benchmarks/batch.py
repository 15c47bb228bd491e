"""Batch runs: what one costs beside plain papermill, many at once, and that preempted ones are the
same.

A run on the real service, node agent and proxies is timed from its submission to its end, in turn
with plain papermill on the same notebook; nothing is preempted. A short notebook of two cells gives
the fixed part, a longer one what is beyond it. A thousand runs at once are submitted to the real
service with simulated nodes, which run nothing and end each run at once. Last, runs of 20 cells are
preempted at ten random instants each and their outputs compared with those of a run that was not.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .admissions import USERS, Submitter, simulated
from .figures import Figure
from .tools import see_support

DESCRIPTION = "batch runs: overhead beside papermill, 1,000 at once, preempted ones are the same"
BOUNDS = {"fixed_overhead_s": 2.0, "run_ratio": 1.03, "submit_1000_s": 10.0}
FLOORS = {"preempted_outputs_equal_fraction": 1.0}

WORK = """
def work(seconds):
    import time
    end, n = time.process_time() + seconds, 0
    while time.process_time() < end:
        n += sum(i * i for i in range(1000))
work({seconds})
print("cell {cell}", flush=True)
"""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "pairs": 1 if quick else 5,
        "cells": 4 if quick else 20,
        "cpu_seconds_per_cell": 0.25 if quick else 1.0,
        "runs_at_once": 1000,
        "submissions": 1 if quick else 3,
        "nodes": 4 if quick else 20,
        "devices_per_node": 8,
        "clients": 32,
        "seeds": 1 if quick else 20,
    }


async def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    size = sizes(quick)
    see_support()
    found = {"submit_1000_s": Figure(quote=max)}
    for number in range(size["submissions"]):
        with tempfile.TemporaryDirectory(prefix="sb", dir="/tmp") as folder:
            took = await at_once(Path(folder), size)
        found["submit_1000_s"].values.append(took)
        say(f"{size['runs_at_once']} runs accepted in {took:.2f} s ({number + 1})")
    return found | await asyncio.to_thread(on_a_platform, size, say)


# -- many at once -------------------------------------------------------------------------------


class RunSubmitter(Submitter):
    """Submits runs of notebooks; the answer comes once the run is durable."""

    def body(self, name: str) -> dict[str, Any]:
        return {"kind": "batch", "name": name, "run": {"notebook": f"/home/bench/{name}"}}


async def at_once(folder: Path, size: dict[str, Any]) -> float:
    """Seconds until all are accepted; raises SystemExit unless each is run once, to its end."""
    count = size["runs_at_once"]
    started: collections.Counter[str] = collections.Counter()
    count_one = lambda name: started.update([name])  # noqa: E731
    async with simulated(folder, size, started=count_one) as (service, _, nodes):
        left = iter(range(count))

        async def client(n: int) -> None:
            async with RunSubmitter(service.port, f"user{n % USERS}") as submitter:
                for number in left:
                    await submitter.submit(f"run-{number}.ipynb")

        async def ends() -> None:
            told: set[str] = set()
            while len(told) < count:
                for node in nodes:
                    for sid in set(node.sessions) - told:
                        told.add(sid)
                        node.tell(sid, "process.exited", exit_code=0)
                await asyncio.sleep(0.02)

        ending = asyncio.create_task(ends())
        began = time.perf_counter()
        await asyncio.gather(*(client(n) for n in range(size["clients"])))
        took = time.perf_counter() - began
        await asyncio.wait_for(ending, 120)
    if len(started) != count or set(started.values()) != {1}:
        raise SystemExit(f"{len(started)} of {count} runs were started, not each of them once")
    return took


# -- one beside papermill -----------------------------------------------------------------------


def on_a_platform(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """What is measured on a real node agent."""
    from support.batch_runs import Runs
    from support.kernel_platform import platform

    logging.disable(logging.ERROR)  # the service's own, which is in this process
    with tempfile.TemporaryDirectory(prefix="sb", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        state = folder / "p"
        state.mkdir(mode=0o711)
        with platform(state) as running:
            runs = Runs(running, folder)
            return {**overhead(runs, size, say), **sameness(runs, size, say)}


def overhead(runs: Any, size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """Pairs of a short and a long notebook, each as a batch run and by papermill alone."""
    from support.batch_runs import write_notebook

    folder, seconds = runs.folder, size["cpu_seconds_per_cell"]
    cells = [WORK.format(seconds=seconds, cell=cell) for cell in range(size["cells"])]
    short = write_notebook(folder / "short.ipynb", *(["print(1)"] * 2))
    long = write_notebook(folder / "long.ipynb", *cells)
    fixed, ratio = Figure(), Figure()
    for pair in range(size["pairs"]):
        order = (papermill, batch_run) if pair % 2 else (batch_run, papermill)
        took = {
            (kind.__name__, notebook.stem): kind(runs, notebook)
            for notebook in (short, long)
            for kind in order
        }
        fixed.values.append(took["batch_run", "short"] - took["papermill", "short"])
        beyond = {k: took[k, "long"] - took[k, "short"] for k in ("batch_run", "papermill")}
        ratio.values.append(beyond["batch_run"] / beyond["papermill"])
        say(f"fixed {fixed.values[-1]:.2f} s, beyond {ratio.values[-1]:.4f} ({pair + 1})")
    return {"fixed_overhead_s": fixed, "run_ratio": ratio}


def papermill(runs: Any, notebook: Path) -> float:
    """Seconds of plain papermill."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "papermill", "--no-progress-bar", str(notebook), "plain.ipynb"],
        cwd=runs.folder,
        env={**os.environ, "HOME": str(runs.folder)},
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - began


def batch_run(runs: Any, notebook: Path) -> float:
    """Seconds from the submission of a batch run to its end."""
    began = time.perf_counter()
    ended = runs.end(runs.submit(notebook, output=str(runs.folder / "batch.ipynb")), 600)
    took = time.perf_counter() - began
    if ended["state"] != "completed":
        raise SystemExit(ended["reason"])
    return took


# -- preempted ones -----------------------------------------------------------------------------


def sameness(runs: Any, size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """1 for each seed whose preempted run made the same notebook as a run that was not, else 0."""
    from support.batch_runs import read, without_times
    from support.batch_sameness import run_alone, run_preempted, write_cells

    notebook = write_cells(runs.folder / "cells.ipynb")
    output = str(runs.folder / "cells-out.ipynb")
    run_alone(runs, notebook, output)
    alone = without_times(read(output))
    figure = Figure(quote=lambda values: sum(values) / len(values))
    for seed in range(size["seeds"]):
        ended = run_preempted(runs, notebook, output, seed)
        same = ended["state"] == "completed" and without_times(read(output)) == alone
        figure.values.append(float(same))
        say(f"seed {seed}: {'the same' if same else 'NOT THE SAME'}")
    return {"preempted_outputs_equal_fraction": figure}
