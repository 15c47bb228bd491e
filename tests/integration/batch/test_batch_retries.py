"""A run that is killed goes on by itself: from its last checkpoint, or from its beginning."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.batch_runs import (
    STEPS,
    Json,
    Runs,
    processes_of,
    read,
    statuses,
    text_of,
    without_times,
    write_notebook,
)
from support.capsules import needs_criu

ONCE = "import os; open('ran', 'a').write('x')"
DEVICE_STEPS = "import torch\ntorch.manual_seed(3)\n" + STEPS.format(steps=60, pause=0.1)
VICTIMS = ("singularity_kernel.batch", "ipykernel_launcher")


def kill(sid: str, victim: str) -> int:
    """SIGKILL to this process of the session; returns its id."""
    found = sorted(pid for pid, line in processes_of(sid).items() if victim in line)
    os.kill(found[-1], signal.SIGKILL)
    return found[-1]


def attempts(found: Json) -> int:
    return int(found["attempt"])


@pytest.mark.timeout(200)
@pytest.mark.parametrize("victim", VICTIMS)
def test_without_a_checkpoint_it_starts_from_its_beginning(
    runs: Runs, short_dir: Path, victim: str
) -> None:
    notebook = write_notebook(short_dir / "n.ipynb", ONCE, DEVICE_STEPS)
    sid = runs.submit(notebook, output=str(short_dir / "out.ipynb"), max_retries=1)
    runs.printed(sid, "\n5 ")
    first = kill(sid, victim)
    runs.wait(sid, lambda found: attempts(found) == 2)
    (short_dir / "hurry").touch()
    runs.printed(sid, "attempt 2 of 2 starts from the beginning; what the one before had done")
    ended = runs.end(sid)
    assert ended["state"] == "completed", runs.log(sid)
    assert first not in processes_of(sid)
    assert (short_dir / "ran").read_text() == "xx"
    assert runs.log(sid).count("cell 1 of 2") == 2  # the log goes on
    kept = read(short_dir / "out-attempt-1.ipynb")
    assert statuses(kept)[0] == "completed"
    alone = runs.end(runs.submit(notebook))
    assert text_of(read(short_dir / "out.ipynb")) == text_of(read(alone["run"]["output"]))
    assert len(text_of(read(short_dir / "out.ipynb")).splitlines()) == 60


@needs_criu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", VICTIMS)
def test_it_goes_on_from_its_last_checkpoint(runs: Runs, short_dir: Path, victim: str) -> None:
    notebook = write_notebook(short_dir / "n.ipynb", ONCE, DEVICE_STEPS, "print('end')")
    output = short_dir / "out.ipynb"
    sid = runs.submit(notebook, output=str(output), max_retries=1)
    runs.printed(sid, "\n5 ")
    runs.ask(lambda service: service.checkpoint(sid, name="early"))
    runs.printed(sid, "\n15 ")
    kill(sid, victim)
    found = runs.wait(sid, lambda found: attempts(found) == 2)
    assert "attempt 2 of 2 goes on from checkpoint 'early', " in found["reason"]
    (short_dir / "hurry").touch()
    ended = runs.end(sid, 120)
    assert ended["state"] == "completed", runs.log(sid)
    assert ended["loss"]["rolled_back"] is True
    assert (short_dir / "ran").read_text() == "x"  # its first cell was not done again
    alone = runs.end(runs.submit(notebook))
    assert alone["state"] == "completed"
    assert without_times(read(output)) == without_times(read(alone["run"]["output"]))
    history = runs.ask(lambda service: service.history(sid))
    assert any("(attempt 2 of 2)" in change["reason"] for change in history)


@pytest.mark.timeout(200)
def test_after_the_last_attempt_it_fails_with_the_reason(runs: Runs, short_dir: Path) -> None:
    run = {
        "command": "echo x >> ran; kill -9 $$",
        "folder": str(short_dir),
        "variables": runs.variables(),
        "max_retries": 2,
    }
    ended = runs.end(runs.ask(lambda service: service.submit(run=run))["id"], 120)
    assert ended["state"] == "failed"
    assert ended["reason"].startswith("the last of its 3 attempts was ended as well: ")
    assert "signal 9" in ended["reason"]
    assert (short_dir / "ran").read_text() == "x\nx\nx\n"


def write_kernel(folder: Path, ending: str) -> None:
    """A kernel of its own kind, "frail", whose first start ends with the statement `ending`."""
    code = f"""
import os, sys
if not os.path.exists("started"):
    open("started", "w").close()
    {ending}
from ipykernel import kernelapp
kernelapp.launch_new_instance()
"""
    (folder / "kernels" / "frail").mkdir(parents=True)
    argv = [sys.executable, "-c", code, "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Frail", "language": "python"}
    (folder / "kernels" / "frail" / "kernel.json").write_text(json.dumps(spec))


def run_frail(runs: Runs, folder: Path, ending: str) -> Json:
    """The session of a run on a frail kernel, once it has ended; it may be tried again once."""
    write_kernel(folder, ending)
    notebook = write_notebook(folder / "n.ipynb", "print('ran')")
    output = str(folder / "out.ipynb")
    return runs.end(runs.submit(notebook, output=output, kernel="frail", max_retries=1))


@pytest.mark.timeout(200)
def test_a_run_whose_kernel_is_killed_while_it_starts_is_tried_again(
    runs: Runs, short_dir: Path
) -> None:
    ended = run_frail(runs, short_dir, "os.kill(os.getpid(), 9)")
    said = runs.log(ended["id"])
    assert (ended["state"], attempts(ended)) == ("completed", 2), said
    assert "the kernel 'frail' was ended by signal 9 while it started" in said
    assert text_of(read(short_dir / "out.ipynb")) == "ran\n"


@pytest.mark.timeout(200)
def test_a_run_whose_kernel_cannot_start_is_not_tried_again(runs: Runs, short_dir: Path) -> None:
    ended = run_frail(runs, short_dir, "sys.exit(3)")
    assert (ended["state"], attempts(ended)) == ("failed", 1), runs.log(ended["id"])
    assert "the kernel 'frail' could not start" in ended["reason"]
