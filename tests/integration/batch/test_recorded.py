"""What runs record: from cells, scripts and the shell, to the table of a sweep and its end."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from singularity_scheduler.client import Client
from support.batch_runs import Runs, read, write_notebook

GLUE = """
from IPython.display import display
payload = {"name": "glued", "data": [1, lr], "encoder": "json", "version": 1}
display({"application/scrapbook.scrap.json+json": payload},
        metadata={"scrapbook": {"name": "glued", "data": True, "display": False}}, raw=True)
"""
"""What scrapbook's `sb.glue("glued", [1, lr])` does."""


TRAIN = """
import sys, time
from singularity_kernel import record
record("loss", 1.0)
time.sleep(1.5)
if sys.argv[1] != "2":
    time.sleep(600)
record("loss", 0.05)
time.sleep(2.5)
print("stored what it found")
"""


def test_the_table_of_a_sweep(runs: Runs, short_dir: Path) -> None:
    write_notebook(
        short_dir / "n.ipynb",
        "import torch\nfrom singularity_kernel import record\nfor step in range(50):\n"
        "    record('loss', torch.tensor(lr / (step + 1)))\nrecord('word', '=1+1')",
        GLUE,
        "!echo shell=true >> $SINGULARITY_RECORDED",
        "record('nan', float('nan'))",
        parameters="lr = 1.0",
    )
    made = runs.command("submit", "n.ipynb", "-o", "o.ipynb", "--sweep", "lr=1.0,0.5", "--wait")
    assert made.returncode == 0, made.stderr
    (group,) = json.loads(runs.command("groups", "--json").stdout)
    found = json.loads(runs.command("group", "results", group["id"], "--json").stdout)
    assert (found["state"], found["values"]) == ("completed", ["lr"])
    assert sorted(found["recorded"]) == ["glued", "loss", "nan", "shell", "word"]
    first, second = found["results"]
    assert first["values"] == {"lr": 1.0}
    assert first["recorded"]["loss"] == pytest.approx(1 / 50)
    assert second["recorded"]["loss"] == pytest.approx(0.5 / 50)
    rest = {"glued": [1, 0.5], "nan": "NaN", "shell": True, "word": "=1+1"}
    assert {k: v for k, v in second["recorded"].items() if k != "loss"} == rest

    (cell,) = [c for c in read(short_dir / "o-1.ipynb")["cells"] if "import torch" in c["source"]]
    assert len(cell["outputs"]) == 2  # one for each name, not one for each step
    (payload,) = cell["outputs"][0]["data"].values()
    assert payload == {
        "name": "loss",
        "data": first["recorded"]["loss"],
        "encoder": "json",
        "version": 1,
    }

    shown = runs.command("group", "results", group["id"]).stdout
    assert "0.01" in shown
    lines = list(
        csv.DictReader(io.StringIO(runs.command("group", "results", group["id"], "--csv").stdout))
    )
    assert [line["lr"] for line in lines] == ["1.0", "0.5"]
    assert lines[1]["glued"] == "[1, 0.5]"
    assert lines[1]["word"] == "'=1+1"  # no formula
    env = runs.environment
    with Client(env["SINGULARITY_API_URL"], env["JUPYTERHUB_API_TOKEN"]) as client:
        assert client.group_results(group["id"]) == found
        assert client.get_session(first["session"])["recorded"] == first["recorded"]
    refused = runs.command("group", "show", group["id"], "--csv")
    assert (refused.returncode, "a form of `group results`" in refused.stderr) == (64, True)


def test_a_sweep_of_commands_stops_when_it_has_found_enough(runs: Runs, short_dir: Path) -> None:
    (short_dir / "train.py").write_text(TRAIN)
    (short_dir / "job.yml").write_text(
        "command: python train.py ${{search_space.n}}\n"
        "sweep:\n  search_space:\n    n: [1, 2, 3, 4, 5]\n"
        "  limits: {max_concurrent_trials: 2}\n"
        "  objective: {primary_metric: loss, goal: minimize}\n"
    )
    done = runs.command("submit", "job.yml", "--stop-when", "loss<0.1", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    group = json.loads(done.stdout)
    by_number = {s["group"]["values"]["n"]: s for s in group["sessions"]}
    assert group["states"] == {"cancelled": 4, "completed": 1}
    winner = by_number[2]
    assert "stored what it found" in runs.log(winner["id"])
    why = "loss is 0.05 in member 2 of 5"
    assert group["reached"] == {"session": winner["id"], "reason": why}
    assert by_number[5]["reason"] == f"cancelled by its group: {why} (loss<0.1)"
    assert f"{why} ({winner['id']})" in done.stderr
    found = json.loads(runs.command("group", "results", group["id"], "--json").stdout)
    assert found["best"] == winner["id"]
    assert found["objective"] == {"primary_metric": "loss", "goal": "minimize"}
    assert [r["recorded"].get("loss") for r in found["results"]] == [1.0, 0.05, None, None, None]
    assert "*2" in runs.command("group", "results", group["id"]).stdout
    assert runs.command("group", "wait", group["id"]).returncode == 0


def test_what_is_too_long_stays_in_the_output(runs: Runs, short_dir: Path) -> None:
    (short_dir / "job.yml").write_text(
        "command: \"printf 'long=x%02000d\\\\nshort=1\\\\n' 7 >> $SINGULARITY_RECORDED\"\n"
    )
    done = runs.command("submit", "job.yml", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    session = json.loads(done.stdout)
    assert session["recorded"] == {"short": 1}
    assert "note: the value of 'long' has" in runs.log(session["id"])
