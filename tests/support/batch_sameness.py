"""A run of 20 cells that is preempted at random instants, and what must come out of it."""

from __future__ import annotations

import random
import time
from pathlib import Path

from support.batch_runs import Json, Runs, write_notebook

CELLS = 20
PREEMPTIONS = 10
BURST = 7
"""The cell that prints `BURST_LINES` lines, as fast as somebody can still come in between."""
BURST_LINES = 2000
STEPS = 10

_FIRST = "import sys, time, torch\ntorch.manual_seed(11)\nx = torch.zeros(8, device='cuda')"
_STEP = """
for i in range({steps}):
    x = x * 0.5 + torch.randn(8, device="cuda")
    print("{cell}.%d" % i, x.sum().item().hex(), flush=True)
    time.sleep({pause})
print("cell {cell} done", file=sys.stderr)
x.cpu() if {cell} % 3 == 0 else None
"""
_LAST = """
import os
while not os.path.exists("enough"):
    time.sleep(0.01)
"""
"""The run must not end while somebody still wants to preempt it."""
_BURST = """
for i in range({lines}):
    print("{cell}.%d" % i, x.sum().item().hex())
    x = x + 1e-3
    time.sleep(0.001)
"""


def write_cells(path: Path) -> Path:
    """The notebook: numbers that depend on all before them, standard error, results, one burst."""
    cells = [_STEP.format(cell=cell, steps=STEPS, pause=0.01) for cell in range(CELLS)]
    cells[0] = _FIRST + cells[0]
    cells[-1] += _LAST
    cells[BURST] = _BURST.format(cell=BURST, lines=BURST_LINES)
    return write_notebook(path, *cells)


def instants(seed: int) -> list[tuple[int, int]]:
    """(cell, line) after which the run is preempted, in order: one is in the burst, the others are
    anywhere, in the middle of a cell or at its end."""
    chance = random.Random(seed)
    everywhere = [(c, i) for c in range(CELLS) if c != BURST for i in range(STEPS)]
    burst = (BURST, chance.randrange(BURST_LINES // 4))
    return sorted([burst, *chance.sample(everywhere, PREEMPTIONS - 1)])


def run_alone(runs: Runs, notebook: Path, output: str) -> Json:
    """The session of a run of `write_cells` that nobody preempts, once it has ended."""
    (notebook.parent / "enough").touch()
    return runs.end(runs.submit(notebook, output=output), 300)


def run_preempted(runs: Runs, notebook: Path, output: str, seed: int) -> Json:
    """The same of a run that is preempted at the instants of `seed`, each time until its devices
    are gone."""
    (notebook.parent / "enough").unlink(missing_ok=True)
    sid = runs.submit(notebook, output=output)
    chance = random.Random(seed)
    for cell, line in instants(seed):
        runs.printed(sid, f"\n{cell}.{line} ")
        runs.verb(sid, "preempt")
        assert runs.session(sid)["devices"] == []
        time.sleep(chance.uniform(0, 0.2))
        runs.verb(sid, "resume")
        runs.wait(sid, lambda found: found["device_state"] != "parking")
    (notebook.parent / "enough").touch()
    return runs.end(sid, 300)


def preempted_cells(notebook: Json) -> list[int]:
    """How often each code cell says that it was preempted."""
    return [cell["metadata"]["singularity"]["preemptions"] for cell in notebook["cells"]]
