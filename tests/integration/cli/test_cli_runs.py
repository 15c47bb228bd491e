"""The commands around a real run of a notebook: real agent, real processes, real logs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy import build
from support.batch_runs import Runs, write_notebook
from support.cli_commands import JUPYTER
from support.kernel_platform import Platform, platform

GATE = (
    "import time, pathlib\nprint('begun', flush=True)\n"
    "while not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
    "print('ended', flush=True)"
)


@pytest.fixture(scope="module")
def running() -> Iterator[Platform]:
    build.build()
    folder = Path(os.environ["TMPDIR"]) / "cli-runs"
    folder.mkdir(mode=0o711)
    with platform(folder) as found:
        yield found


@pytest.fixture
def runs(running: Platform, short_dir: Path) -> Runs:
    short_dir.chmod(0o777)  # ada's own, whatever uid that is
    return Runs(running, short_dir)


@contextlib.contextmanager
def begin(runs: Runs, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on; killed at the end of the block if it still runs then."""
    with subprocess.Popen(
        [*JUPYTER, *words],
        env=runs.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} never came")


def test_a_run_is_followed_preempted_and_resumed(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "wait.ipynb", GATE)
    submitted = runs.command("submit", "wait.ipynb", "--json")
    session = json.loads(submitted.stdout)["id"]
    with begin(runs, "logs", "-f", session) as following:
        until(following, "begun")
        shown = json.loads(runs.command("show", session[:6], "--json").stdout)
        assert shown["run"]["notebook"] == str(short_dir / "wait.ipynb")
        assert f"  {short_dir}/wait.ipynb\n" in runs.command("show", session).stdout
        held = runs.command("preempt", "wait.ipynb")
        assert (held.returncode, held.stderr) == (0, "")
        assert ", held back" in runs.command("ls").stdout
        assert runs.command("resume", "wait.ipynb").returncode == 0
        (short_dir / "go").touch()
        out, err = following.communicate(timeout=60)
    assert following.returncode == 0
    assert "ended" in out
    assert err == ""
    assert "begun" in runs.command("logs", session).stdout
    listed = json.loads(runs.command("ls", "-a", "--kind", "batch", "--json").stdout)
    assert [s["state"] for s in listed if s["id"] == session] == ["completed"]


def test_a_failed_and_a_cancelled_run(runs: Runs, short_dir: Path) -> None:
    write_notebook(short_dir / "bad.ipynb", "raise ValueError('no such column')")
    session = json.loads(runs.command("submit", "bad.ipynb", "--json").stdout)["id"]
    followed = runs.command("logs", "-f", session)
    assert followed.returncode == 1
    assert "no such column" in followed.stdout
    assert "no such column" in runs.command("why", session).stdout

    write_notebook(short_dir / "wait.ipynb", GATE)
    session = json.loads(runs.command("submit", "wait.ipynb", "--json").stdout)["id"]
    with begin(runs, "logs", "-f", "--tail", "5", session) as following:
        until(following, "begun")
        ended = runs.command("cancel", session, "--reason", "wrong data")
        assert ended.returncode == 0
        assert "wrong data" in ended.stdout
        following.communicate(timeout=60)
    assert following.returncode == 1
