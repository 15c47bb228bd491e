"""What starts again, what does not, and that nothing of an attempt outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SLEEPS = "sleep 100 & echo $! >> pids; "


def run(folder: Path, **description: Any) -> subprocess.Popen[str]:
    described = {"notebook": "", "ranks": 0, "timeout_s": None, "max_retries": 2, **description}
    return subprocess.Popen(
        [sys.executable, "-m", "singularity_kernel.batch"],
        env={**os.environ, "RUN_DESCRIPTION": json.dumps(described)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def alive(folder: Path) -> list[int]:
    """Of the processes that wrote their pid into `pids`."""
    pids = [int(line) for line in (folder / "pids").read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_killed_command_starts_again(tmp_path: Path) -> None:
    once = f"{SLEEPS}echo began; [ -e killed ] || {{ touch killed; kill -9 $$; }}; echo done"
    with run(tmp_path, command=once) as started:
        out, said = started.communicate(timeout=60)
    assert started.returncode == 0, said
    assert out == "began\nbegan\ndone\n"
    assert "attempt 1 of 3 was ended (signal 9): it starts again\n" in said
    assert len((tmp_path / "pids").read_text().split()) == 2
    assert alive(tmp_path) == []


def test_it_fails_with_the_reason_after_the_last_attempt(tmp_path: Path) -> None:
    with run(tmp_path, command="echo x >> ran; kill -9 $$", max_retries=1) as started:
        _, said = started.communicate(timeout=60)
    assert started.returncode == 128 + signal.SIGKILL
    last = said.splitlines()[-1]
    assert last == "the run was ended in each of its 2 attempts (the last time: signal 9)"
    assert (tmp_path / "ran").read_text() == "x\nx\n"


@pytest.mark.parametrize("code", [0, 1, 3])
def test_what_ended_by_itself_is_not_tried_again(tmp_path: Path, code: int) -> None:
    with run(tmp_path, command=f"echo x >> ran; exit {code}") as started:
        started.communicate(timeout=60)
    assert started.returncode == code
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_cancelled_run_is_not_tried_again(tmp_path: Path) -> None:
    with run(tmp_path, command=f"{SLEEPS}echo here; wait") as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "here\n"
        started.send_signal(signal.SIGTERM)
        _, said = started.communicate(timeout=60)
    assert started.returncode == 143
    assert said.splitlines()[-1] == "the run was cancelled; what it wrote is kept"
    assert alive(tmp_path) == []


def test_the_time_limit_is_for_all_attempts(tmp_path: Path) -> None:
    command = "[ -e killed ] || { touch killed; sleep 1.5; kill -9 $$; }; sleep 100"
    began = time.monotonic()
    with run(tmp_path, command=command, timeout_s=3) as started:
        _, said = started.communicate(timeout=60)
    assert started.returncode == 124
    assert "time limit" in said
    assert time.monotonic() - began < 30
