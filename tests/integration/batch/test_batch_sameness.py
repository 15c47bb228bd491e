"""A run that is preempted at random instants makes the same notebook as one that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import matrix
from support.batch_runs import Json, Runs, read, text_of, without_times
from support.batch_sameness import (
    BURST,
    BURST_LINES,
    PREEMPTIONS,
    preempted_cells,
    run_alone,
    run_preempted,
    write_cells,
)

SEEDS = range(10 if matrix.is_full() else 2)


@pytest.fixture(scope="module")
def folder() -> Path:
    """All runs are in one: an output notebook names its input."""
    found = Path(os.environ["TMPDIR"]) / "same"
    found.mkdir(mode=0o777, exist_ok=True)
    found.chmod(0o777)
    return found


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Json]:
    """The notebook of the one run that nobody preempts, once it was made."""
    return {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_twenty_cells_preempted_at_ten_random_instants(
    runs: Runs, folder: Path, uninterrupted: dict[str, Json], seed: int
) -> None:
    notebook, output = write_cells(folder / "n.ipynb"), str(folder / f"out-{seed}.ipynb")
    if not uninterrupted:
        alone = run_alone(runs, notebook, output)
        assert alone["state"] == "completed", runs.log(alone["id"])
        uninterrupted |= read(output)
    preempted = run_preempted(runs, notebook, output, seed)
    assert preempted["state"] == "completed", runs.log(preempted["id"])
    found = read(output)
    assert text_of(found).splitlines() == text_of(uninterrupted).splitlines()
    assert without_times(found) == without_times(uninterrupted)
    assert text_of(found).count(f"\n{BURST}.") == BURST_LINES
    assert found["metadata"]["singularity"]["preemptions"] == PREEMPTIONS
    where = preempted_cells(found)
    assert sum(where) == PREEMPTIONS
    assert where[BURST] >= 1
    assert sum(preempted_cells(uninterrupted)) == 0
    waits = [cell["metadata"]["singularity"]["waited_s"] for cell in found["cells"]]
    assert sum(waits) > 0
