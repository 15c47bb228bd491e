"""papermill's engine `singularity` on the real platform: alone, inside a session, without one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_runs import Runs, read, text_of, write_notebook
from support.kernel_relay import wait_until

pytestmark = pytest.mark.timeout(400)  # up to three kernels one after the other, on a busy machine

PAPERMILL = [sys.executable, "-m", "papermill", "--engine", "singularity", "--no-progress-bar"]

DEVICE = (
    "import os, torch\nprint(os.environ['SINGULARITY_SESSION'], torch.ones(3, device='cuda').sum())"
)


def test_in_a_terminal_the_kernel_is_a_batch_session(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", DEVICE, "print(lr)", parameters="lr = 0.1")
    done = subprocess.run(
        [*PAPERMILL, "n.ipynb", "out.ipynb", "-p", "lr", "0.5"],
        env=runs.environment,
        **runs.owner,
        cwd=short_dir,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    out = read(short_dir / "out.ipynb")
    about = out["metadata"]["singularity"]
    assert f"{about['session']} tensor(3., device='cuda:0')\n0.5\n" in text_of(out)
    session = runs.session(about["session"])
    assert (session["kind"], session["name"]) == ("batch", "n.ipynb")
    assert session["state"] in ("completed", "cancelled")
    assert (about["tier"], about["devices"], about["preemptions"]) == ("standard", 1, 0)


def test_a_stopped_papermill_ends_its_session(runs: Runs, short_dir: Path) -> None:
    loop = (
        "import time\nfor i in range(1000):\n    print('step', i, flush=True)\n    time.sleep(0.05)"
    )
    write_notebook(short_dir / "n.ipynb", loop, "print('never')")
    with subprocess.Popen(
        [*PAPERMILL, "--autosave-cell-every", "1", "n.ipynb", "out.ipynb"],
        env=runs.environment,
        **runs.owner,
        cwd=short_dir,
        stderr=subprocess.PIPE,
        text=True,
    ) as papermill:
        out = short_dir / "out.ipynb"
        wait_until(lambda: out.exists() and "step 5" in out.read_text(), 200, "no output came")
        (active,) = runs.ask(lambda service: service.sessions("active"))
        papermill.send_signal(signal.SIGTERM)
        _, said = papermill.communicate(timeout=120)
    assert papermill.returncode == 143
    assert said.rstrip().splitlines()[-1].startswith("Error: the run was cancelled; the outputs")
    assert runs.session(active["id"])["process_state"] in ("completed", "cancelled")
    cells = read(out)["cells"]
    assert [c["metadata"]["papermill"]["status"] for c in cells] == ["failed", "pending"]
    assert "step 5\n" in text_of(read(out))


def test_inside_a_session_it_joins_that_session(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "inner.ipynb", "import os; print(os.environ['SINGULARITY_SESSION'])")
    call = f"""
        import subprocess
        done = subprocess.run({[*PAPERMILL, "inner.ipynb", "inner-out.ipynb"]})
        print("exit code", done.returncode)
        import papermill
        again = {{"engine_name": "singularity", "progress_bar": False}}
        found = papermill.execute_notebook("inner.ipynb", "again.ipynb", **again)
        print("in this process", found.metadata.singularity.session)
    """
    lines = "\n".join(line.strip() for line in call.strip().splitlines())
    sid = runs.submit(write_notebook(short_dir / "outer.ipynb", lines))
    ended = runs.end(sid, 300)
    text = text_of(read(ended["run"]["output"]))
    assert "exit code 0\n" in text, runs.log(sid)
    assert f"in this process {sid}\n" in text
    inner = read(short_dir / "inner-out.ipynb")
    assert inner["metadata"]["singularity"]["session"] == sid
    assert text_of(inner) == f"{sid}\n"
    assert len(runs.ask(lambda service: service.sessions("active"))) == 0


def test_without_a_platform_it_refuses(short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print('ran')")
    done = subprocess.run(
        [*PAPERMILL, "n.ipynb", "out.ipynb"],
        cwd=short_dir,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 69, done.stderr
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("Error: the engine 'singularity' needs the platform")
    assert "nothing was run" in last
    assert "Traceback" not in done.stderr
    assert not (short_dir / "out.ipynb").exists()
