"""No output is lost, however much comes at once and however slowly it is taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import papermill  # type: ignore[import-untyped]
import pytest
from singularity_kernel.batch.running.client import Live
from support.batch_runs import Runs, read, text_of, write_notebook
from support.kernel_homes import home_of
from support.kernel_relay import wait_until

pytestmark = pytest.mark.timeout(300)

LINES = 12_000
FLUSHED = f"""
for i in range({LINES}):
    print(i, flush=True)
open("printed", "w").close()
"""
BEHIND = 500
TAKEN_S = 0.02


@pytest.fixture
def notebook(runs: Runs, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home_of(runs.identity, short_dir, monkeypatch, runs.environment) as home:
        yield home / "n.ipynb"


def run(notebook: Path, live: Live) -> str:
    """Run it in this process; what its cells printed."""
    output = notebook.parent / "out.ipynb"
    options: dict[str, Any] = {"engine_name": "singularity", "progress_bar": False, "live": live}
    papermill.execute_notebook(str(notebook), str(output), **options)
    return text_of(read(output))


class Blocked(Live):
    """Takes nothing, once the cell has printed its first line, until it has printed its last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def output(self, output: Any) -> None:
        wait_until((self._folder / "printed").exists, 200, "the cell was never done")


class Slow(Live):
    """Takes its time over every output."""

    def output(self, output: Any) -> None:
        time.sleep(TAKEN_S)


def test_what_came_while_nobody_listened_is_kept(notebook: Path, short_dir: Path) -> None:
    write_notebook(notebook, FLUSHED, "print('end')")
    printed = run(notebook, Blocked(short_dir)).splitlines()
    assert len(printed) == LINES + 1
    assert printed == [*map(str, range(LINES)), "end"]


def test_what_comes_long_after_the_reply_is_kept(notebook: Path) -> None:
    """The kernel is done with a cell when most of its outputs are still to be taken: 10 s of them,
    and nbclient by itself waits for 4."""
    code = f"for i in range({BEHIND}):\n    print(i, flush=True)"
    write_notebook(notebook, code, "print('end')")
    assert run(notebook, Slow()).splitlines() == [*map(str, range(BEHIND)), "end"]
