"""Many runs at once: all accepted, each run once; and a run whose helpers are killed goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import Unavailable
from support import matrix
from support.batch_runs import STEPS, Runs, read, text_of, write_notebook
from support.kernel_platform import Platform
from support.kernel_relay import wait_until

REAL = 8


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_many_runs_at_once_are_accepted_and_each_is_run_once(short_dir: Path) -> None:
    """On simulated nodes; how fast is the benchmark's business."""
    from benchmarks import batch

    count = 1000 if matrix.is_full() else 200
    size = {**batch.sizes(quick=True), "runs_at_once": count, "nodes": 2}
    await batch.at_once(short_dir, size)  # raises unless each was started once and ended


@pytest.mark.timeout(300)
def test_runs_at_once_on_a_real_node(runs: Runs, short_dir: Path) -> None:
    line = "with open('ran', 'a') as file: file.write(f'{n}\\n')"
    notebook = write_notebook(short_dir / "n.ipynb", line, parameters="n = 0")

    async def all_at_once() -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(
                runs.service.submit(
                    run={
                        "notebook": str(notebook),
                        "python": sys.executable,
                        "variables": runs.variables(),
                        "parameters": {"n": n},
                    }
                )
                for n in range(REAL)
            )
        )

    for session in asyncio.run(all_at_once()):
        assert runs.end(session["id"], 200)["state"] == "completed", runs.log(session["id"])
    ran = (short_dir / "ran").read_text().split()
    assert sorted(map(int, ran)) == list(range(REAL))


def helpers(platform: Platform, module: str) -> list[int]:
    """Processes of this platform that run `module`."""
    folder, found = Path(platform.state_dir).parent, []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_text()
        except OSError:
            continue
        if entry.name.isdecimal() and module in line.split("\0") and str(folder) in line:
            found.append(int(entry.name))
    return found


def says(runs: Runs, sid: str, text: str) -> bool:
    """Whether the run has printed `text`; not known while its agent is away."""
    try:
        return text in runs.log(sid)
    except Unavailable:
        return False


@pytest.mark.timeout(200)
@pytest.mark.parametrize("module", ["singularity_scheduler.agent", "singularity_proxy.device"])
def test_a_run_outlives_the_kill_of_its_helpers(
    running: Platform, runs: Runs, short_dir: Path, module: str
) -> None:
    script = "import torch\ntorch.manual_seed(3)\n" + STEPS.format(steps=60, pause=0.2)
    once = "open('ran', 'a').write('x')"
    notebook = write_notebook(short_dir / "n.ipynb", once, script)
    wait_until(running.healthy, 60, "no agent came")
    sid = runs.submit(notebook, output=str(short_dir / "out.ipynb"))
    runs.printed(sid, "\n5 ")
    victims = helpers(running, module)
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: says(runs, sid, "\n20 "), 100, "the run did not go on")
    (short_dir / "hurry").touch()
    ended = runs.end(sid, 100)
    assert ended["state"] == "completed", (ended, runs.log(sid))
    assert (short_dir / "ran").read_text() == "x"
    wait_until(running.healthy, 60, "the agent did not come back")
    alone = runs.end(runs.submit(notebook), 100)
    assert text_of(read(short_dir / "out.ipynb")) == text_of(read(alone["run"]["output"]))
