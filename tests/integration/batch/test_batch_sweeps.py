"""A sweep on the real scheduler, node agent and device proxies."""

from __future__ import annotations

import json
from pathlib import Path

from support.batch_runs import Runs, read, text_of, write_notebook


def test_a_sweep_to_its_end(runs: Runs, short_dir: Path) -> None:
    write_notebook(
        short_dir / "n.ipynb", "print('got', lr * 10, seed)", parameters="lr = 0.1\nseed = 0"
    )
    words = ["submit", "n.ipynb", "-o", "out.ipynb", "--sweep", "lr=0.5,0.25", "--sweep"]
    bad = runs.command(*words, "sed=0:2")
    assert bad.returncode != 0
    assert "did you mean 'seed'" in bad.stderr
    assert runs.command("groups", "--json").stdout.strip() == "[]"
    done = runs.command(*words, "seed=0:2", "--max-parallel", "2", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    group = json.loads(done.stdout)
    assert (group["state"], group["states"]) == ("completed", {"completed": 4})
    printed = [text_of(read(short_dir / f"out-{n}.ipynb")).strip() for n in range(1, 5)]
    assert printed == ["got 5.0 0", "got 5.0 1", "got 2.5 0", "got 2.5 1"]
    shown = runs.command("group", "show", group["id"])
    assert "lr=0.25 seed=1" in shown.stdout
    assert group["id"] in runs.command("groups").stdout


def test_a_group_is_stopped_as_one(runs: Runs, short_dir: Path) -> None:
    write_notebook(
        short_dir / "n.ipynb",
        "import time\nprint('begun', flush=True)\ntime.sleep(600)",
        parameters="seed = 0",
    )
    made = runs.command("submit", "n.ipynb", "--sweep", "seed=0:5", "--max-parallel", "1", "--json")
    assert made.returncode == 0, made.stderr
    group = json.loads(made.stdout)
    first, last = group["sessions"][0]["id"], group["sessions"][4]["id"]
    runs.printed(first, "begun")
    assert runs.session(last)["reason"] == "member 5 of 5: at most 1 run at once"
    stopped = runs.command("group", "stop", group["id"], "--reason", "enough")
    assert stopped.returncode == 0, stopped.stderr
    assert runs.session(first)["process_state"] == "cancelled"
    assert runs.session(last)["reason"] == "cancelled by ada: enough"
