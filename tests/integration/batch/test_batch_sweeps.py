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


def test_a_command_is_swept_over_and_waited_for(runs: Runs, short_dir: Path) -> None:
    (short_dir / "job.yml").write_text(
        "command: 'echo lr=${{search_space.lr}}; exit ${{search_space.code}}'\n"
        "resources: {instance_count: 1}\n"
        "sweep:\n  search_space:\n    lr: [0.5, 0.25]\n    code: [0, 3]\n"
        "  limits: {max_concurrent_trials: 2}\n"
    )
    made = runs.command("submit", "job.yml", "--json")
    assert made.returncode == 0, made.stderr
    group = json.loads(made.stdout)
    assert (group["name"], group["max_parallel"]) == ("job", 2)
    waited = runs.command("group", "wait", group["id"], "--json")
    assert waited.returncode == 1, waited.stderr
    assert f"group {group['id']} failed: 2 completed, 2 failed" in waited.stderr
    ended = json.loads(waited.stdout)["sessions"]
    assert [(s["group"]["values"]["code"], s["exit_code"]) for s in ended] == [(0, 0), (3, 3)] * 2
    assert [runs.log(s["id"]).splitlines()[0] for s in ended] == ["lr=0.5"] * 2 + ["lr=0.25"] * 2
    good = runs.command("submit", "job.yml", "--sweep", "code=0", "--wait")
    assert good.returncode == 0, good.stderr
    assert "completed: 2 completed" in good.stderr
    (gone,) = [runs.command("group", "wait", "0123456789ab")]
    assert (gone.returncode, "there is no group" in gone.stderr) == (66, True)
