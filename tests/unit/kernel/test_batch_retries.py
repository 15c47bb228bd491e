"""What an attempt of a run does with what the one before has left, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from singularity_kernel.batch.files import WholeFiles, set_aside


def run(folder: Path, **description: Any) -> subprocess.CompletedProcess[str]:
    described = {"notebook": "", "ranks": 0, "timeout_s": None, **description}
    own = {"RUN_DESCRIPTION": json.dumps(described), "SINGULARITY_SOCKET": str(folder / "socket")}
    return subprocess.run(
        [sys.executable, "-m", "singularity_kernel.batch"],
        env={**os.environ, **own},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_later_attempt_says_so_and_every_one_writes_its_exit_code_down(tmp_path: Path) -> None:
    done = run(tmp_path, command="echo here; exit 3", attempt=2, attempts=3)
    assert done.returncode == 3
    assert done.stdout == "here\n"
    assert done.stderr.startswith("attempt 2 of 3 starts from the beginning\n")
    assert (tmp_path / "exit").read_text() == "3"
    assert run(tmp_path, command="true").stderr == ""
    assert (tmp_path / "exit").read_text() == "0"


def test_the_time_limit_is_for_all_attempts(tmp_path: Path) -> None:
    started_at = time.time() - 3600
    done = run(tmp_path, command="sleep 7200", timeout_s=3602, started_at=started_at)
    assert done.returncode == 124
    assert "time limit of 3602 s is over" in done.stderr


def test_the_output_of_the_attempt_before_is_kept_beside(tmp_path: Path) -> None:
    output = tmp_path / "out.ipynb"
    for number in (1, 2):
        output.write_text(f"attempt {number}")
        assert set_aside(str(output)) == str(tmp_path / f"out-attempt-{number}.ipynb")
    assert not output.exists()
    assert (tmp_path / "out-attempt-1.ipynb").read_text() == "attempt 1"
    assert (tmp_path / "out-attempt-2.ipynb").read_text() == "attempt 2"
    assert set_aside(str(output)) == ""


def test_what_was_written_after_the_checkpoint_is_kept_beside(tmp_path: Path) -> None:
    """As a run finds it that went back to an image of itself."""
    output = tmp_path / "out.ipynb"
    image, later = WholeFiles(), WholeFiles()
    image.write("cell 1", str(output))
    later.write("cells 1 to 5", str(output))
    image.write("cell 2", str(output))
    image.write("cell 3", str(output))
    assert output.read_text() == "cell 3"
    assert (tmp_path / "out-attempt-1.ipynb").read_text() == "cells 1 to 5"
    assert len(list(tmp_path.iterdir())) == 2


def test_its_own_output_is_replaced_also_after_it_was_copied(tmp_path: Path) -> None:
    output = tmp_path / "out.ipynb"
    output.write_text("of somebody's earlier run")
    files = WholeFiles()
    files.write("cell 1", str(output))
    moved = tmp_path / "moved"
    moved.write_text("cell 1")
    os.replace(moved, output)  # the same on another machine
    files.write("cell 2", str(output))
    output.unlink()
    files.write("cell 3", str(output))
    assert [p.name for p in tmp_path.iterdir()] == ["out.ipynb"]


def test_an_output_that_is_the_notebook_is_not_set_aside(tmp_path: Path) -> None:
    """The attempt before may have been killed before it looked."""
    notebook, link = tmp_path / "n.ipynb", tmp_path / "o.ipynb"
    notebook.write_text("{}")
    link.symlink_to(notebook)
    done = run(tmp_path, notebook=str(notebook), output=str(link), attempt=2, attempts=2)
    assert done.returncode == 64
    assert "would replace the notebook itself" in done.stderr
    assert notebook.read_text() == "{}"
