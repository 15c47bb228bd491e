"""papermill's engine `singularity-remote`: the run is a batch session, papermill looks on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from support.batch_runs import Runs, read, text_of, write_notebook
from support.kernel_relay import wait_until

ROOT = Path(__file__).resolve().parents[3]
PAPERMILL = [sys.executable, "-m", "papermill", "--no-progress-bar", "--engine"]
LOOP = "import time\nfor i in range(1000):\n    print('step', i, flush=True)\n    time.sleep(0.05)"


@pytest.fixture
def installed(runs: Runs, short_dir: Path) -> Runs:
    """`runs` where the entry points of this checkout are those that are installed."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = short_dir / "lib" / "jupyter_singularity_here-1.dist-info"
    folder.mkdir(parents=True)
    lines = [f"{name} = {where}" for name, where in points["papermill.engine"].items()]
    (folder / "entry_points.txt").write_text("\n".join(["[papermill.engine]", *lines, ""]))
    (folder / "METADATA").write_text("Name: jupyter-singularity-here\nVersion: 1\n")
    path = runs.environment.get("PYTHONPATH", "")
    runs.environment["PYTHONPATH"] = f"{folder.parent}:{path}"
    return runs


def papermill(runs: Runs, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PAPERMILL, *words],
        env={**runs.environment, **env},
        cwd=runs.folder,
        umask=0,  # its files are to be ada's, whatever uid her sessions have
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_it_ends_as_the_run_ends(installed: Runs, short_dir: Path) -> None:
    runs = installed
    write_notebook(
        short_dir / "n.ipynb",
        "import os, torch\nprint(os.environ['SINGULARITY_SESSION'], os.getcwd())\n"
        "torch.ones(3, device='cuda').sum().item() * lr",
        parameters="lr = 0.1",
    )
    done = papermill(runs, "singularity-remote", "n.ipynb", "o.ipynb", "-p", "lr", "0.5")
    assert done.returncode == 0, done.stderr
    out = read(short_dir / "o.ipynb")
    about = out["metadata"]["singularity"]
    assert f"{about['session']} {short_dir}\n" in text_of(out)
    assert out["cells"][-1]["outputs"][-1]["data"]["text/plain"] == "1.5"
    papermills = out["metadata"]["papermill"]
    assert (papermills["input_path"], papermills["output_path"]) == ("n.ipynb", "o.ipynb")
    assert papermills["parameters"] == {"lr": 0.5}
    assert {c["metadata"]["papermill"]["status"] for c in out["cells"]} == {"completed"}
    session = runs.session(about["session"])
    assert (session["name"], session["state"], session["kind"]) == ("n.ipynb", "completed", "batch")
    assert session["run"]["parameters"] == {}
    assert f"Session: {about['session']}" in done.stderr
    assert not list(short_dir.glob(".papermill-*"))


def test_a_cell_that_raises_is_papermills_own_exception(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print('first')", "1 / 0", "print('never')")
    done = papermill(
        runs, "singularity", "--log-output", "n.ipynb", "o.ipynb", SINGULARITY_REMOTE="1"
    )
    here = subprocess.run(
        [sys.executable, "-m", "papermill", "--no-progress-bar", "n.ipynb", "local.ipynb"],
        env=runs.environment,
        cwd=short_dir,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == here.returncode != 0
    last = "ZeroDivisionError: division by zero"
    assert last in done.stderr.rstrip().splitlines()[-1]
    assert last in here.stderr.rstrip().splitlines()[-1]
    assert "papermill.exceptions.PapermillExecutionError" in done.stderr
    assert "first" in done.stderr  # by --log-output
    out, local = read(short_dir / "o.ipynb"), read(short_dir / "local.ipynb")
    assert [c["source"] for c in out["cells"]] == [c["source"] for c in local["cells"]]
    assert "An Exception was encountered" in out["cells"][0]["source"]
    assert not list(short_dir.glob(".papermill-*"))


def test_ctrl_c_ends_the_session_and_keeps_its_output(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", LOOP, "print('never')")
    with subprocess.Popen(
        [*PAPERMILL, "singularity", "n.ipynb", "o.ipynb"],
        env={**runs.environment, "SINGULARITY_REMOTE": "1", "SINGULARITY_TIER": "basic"},
        cwd=short_dir,
        umask=0,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        out = short_dir / "o.ipynb"
        wait_until(lambda: out.exists() and "step 5" in out.read_text(), 60, "no output came")
        (active,) = runs.ask(lambda service: service.sessions("active"))
        assert (active["tier"], active["name"]) == ("basic", "n.ipynb")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert said.rstrip().splitlines()[-1] == (
        "Error: the run was cancelled; the outputs so far are in o.ipynb"
    )
    session = runs.session(active["id"])
    assert session["process_state"] == "cancelled"
    assert session["reason"] == "cancelled by ada: its papermill was stopped"
    cells = read(out)["cells"]
    assert [c["metadata"]["papermill"]["status"] for c in cells] == ["failed", "pending"]
    assert "KeyboardInterrupt" in str(cells[0]["outputs"])


def test_what_is_refused(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "n.ipynb", "print('ran')")
    remote = {"SINGULARITY_REMOTE": "1"}
    done = papermill(
        runs, "singularity", "--execution-timeout", "5", "n.ipynb", "o.ipynb", **remote
    )
    assert (done.returncode, "does not take execution_timeout" in done.stderr) == (64, True)
    done = papermill(runs, "singularity", "n.ipynb", "o.ipynb", SINGULARITY_TIER="gold", **remote)
    assert done.returncode == 75
    assert done.stderr.rstrip().splitlines()[-1].startswith("Error: unknown tier 'gold'")
    wrong = runs.environment["SINGULARITY_API_URL"].replace("127.0.0.1", "127.0.0.2")
    done = papermill(runs, "singularity", "n.ipynb", "o.ipynb", SINGULARITY_API_URL=wrong, **remote)
    assert (done.returncode, "does not answer" in done.stderr) == (75, True)
    assert "Traceback" not in done.stderr
    assert not list(short_dir.glob(".papermill-*"))
    lines = "!SINGULARITY_REMOTE=1 papermill --engine singularity n.ipynb o.ipynb"
    sid = runs.submit(write_notebook(short_dir / "outer.ipynb", lines))
    ended = runs.end(sid)
    assert "a session cannot wait for a remote run" in text_of(read(ended["run"]["output"]))
