"""`submit JOB.yml`, `--dry-run` and `export`: what is asked for, and that it comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from singularity_kernel.batch.submitting import export
from singularity_kernel.batch.submitting.papermill_call import papermill_call
from singularity_kernel.batch.submitting.submit import main
from singularity_proxy.errors import BadRequest
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Part
from singularity_scheduler.requests.group_spec import parse_group
from singularity_scheduler.requests.run_spec import run_of
from singularity_scheduler.requests.spec import parse_spec
from singularity_scheduler.service.schemas.documents import session_document
from support.batch_runs import write_notebook
from support.cli_double import Double

Captured = pytest.CaptureFixture[str]
Json = dict[str, Any]
SID = "0123456789ab"

JOB = """\
type: notebook
display_name: digits
notebook: train.ipynb
parameters:
  lr: ${{inputs.lr}}
inputs: {lr: 1e-3}
tags: {team: vision}
"""


ON_TWO_NODES = "resources: {instance_count: 4, properties: {singularity: {nodes: 2}}}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `train.ipynb` (parameters lr and name) and `job.yml`."""
    monkeypatch.chdir(tmp_path)
    for name in ("TIER", "DEVICES", "DEVICE_SHARE", "LOCATIONS", "API_URL"):
        monkeypatch.delenv(f"SINGULARITY_{name}", raising=False)
    write_notebook(tmp_path / "train.ipynb", "print(lr)", parameters="lr = 0.1\nname = 'a'")
    (tmp_path / "job.yml").write_text(JOB)
    return tmp_path


def dry_run(capsys: Captured, *words: str) -> Json:
    """The spec that would be submitted."""
    assert main([*words, "--dry-run", "--json"]) == 0
    found: Json = json.loads(capsys.readouterr().out)
    return found


def wish(path: Path, **metadata: Any) -> None:
    """Write into the notebook's own metadata."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["singularity"] = metadata
    nbformat.write(notebook, path)


def test_the_interval_of_checkpoints_on_the_command_line(here: Path, capsys: Captured) -> None:
    assert "checkpoint_every_s" not in dry_run(capsys, "train.ipynb")
    wish(here / "train.ipynb", checkpoint_every_s=600)
    assert dry_run(capsys, "train.ipynb")["checkpoint_every_s"] == 600
    for said in (30.0, 0.0):
        found = dry_run(capsys, "train.ipynb", "--checkpoint-every-s", str(said))
        assert found["checkpoint_every_s"] == said


def test_the_spec_of_a_job_file(here: Path, capsys: Captured) -> None:
    found = dry_run(capsys, "job.yml")
    run = found.pop("run")
    assert found == {
        **{"kind": "batch", "name": "digits", "tier": "standard", "priority": "medium"},
        **{"devices": 1, "device_share": 1.0, "virtual_cluster": None, "locations": []},
    }
    assert run.pop("variables").keys() >= {"PATH"}
    assert run.pop("python").startswith("/")
    assert run == {
        **{"notebook": f"{here}/train.ipynb", "output": None, "folder": str(here)},
        **{"parameters": {"lr": 0.001}, "kernel": None, "timeout_s": None},
        "metadata": {"tags": {"team": "vision"}, "inputs": {"lr": 0.001}},
    }
    assert main(["job.yml", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "\n  parameters:\n    lr: 0.001\n" in said.out
    assert said.err == ""


def test_paths_are_those_of_the_job_file(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert dry_run(capsys, "../job.yml")["run"]["notebook"] == f"{here}/train.ipynb"


def test_who_goes_before_whom(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGULARITY_TIER", "premium")
    monkeypatch.setenv("SINGULARITY_DEVICE_SHARE", "0.5")
    assert dry_run(capsys, "job.yml")["tier"] == "premium"
    assert dry_run(capsys, "job.yml")["device_share"] == 0.5
    wish(here / "train.ipynb", tier="basic", priority="high", timeout_s=60, session="x")
    for words in (["train.ipynb"], ["job.yml"]):
        found = dry_run(capsys, *words)
        assert (found["tier"], found["priority"], found["run"]["timeout_s"]) == (
            "basic",
            "high",
            60,
        )
    text = "queue_settings: {priority: low}\nresources: {instance_count: 2}\nlimits: {timeout: 7}\n"
    (here / "job.yml").write_text(JOB + text)
    found = dry_run(capsys, "job.yml")
    assert (found["tier"], found["priority"], found["run"]["timeout_s"]) == ("basic", "low", 7)
    assert (found["devices"], found["device_share"]) == (2, 1.0)  # and not half of each
    words = ["--tier=standard", "--priority=medium", "--share=0.25", "--run-timeout=9"]
    found = dry_run(capsys, "job.yml", *words, "--name=x", "-p", "name", "b", "-o", "o.ipynb")
    assert (found["tier"], found["priority"], found["name"]) == ("standard", "medium", "x")
    assert (found["devices"], found["device_share"]) == (1, 0.25)
    assert found["run"]["timeout_s"] == 9
    assert found["run"]["parameters"] == {"lr": 0.001, "name": "b"}
    assert found["run"]["output"] == f"{here}/o.ipynb"


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"teir": "basic"}, "has the unknown key 'teir': did you mean 'tier'?"),
        ({"tier": "gold"}, "train.ipynb: unknown tier 'gold'"),
        ({"devices": "many"}, "devices must be a whole number"),
        ({"timeout_s": -1}, "timeout_s must be a whole number of seconds"),
    ],
)
def test_wrong_wishes_of_a_notebook(
    here: Path, capsys: Captured, metadata: Json, sentence: str
) -> None:
    wish(here / "train.ipynb", **metadata)
    assert main(["train.ipynb", "--dry-run"]) == 64
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "metadata.singularity" in said.err
    assert sentence in said.err


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("a: [", 64, "job.yml, line 1: this is not YAML (this is never closed)"),
        ("type: notebook\n\tnotebook: x\n", 64, "job.yml, line 2: a tab"),
        (JOB + "tgas: 1\n", 64, "job.yml, line 8: 'tgas' is not known: did you mean 'tags'?"),
        (JOB.replace("train.", "none."), 66, "job.yml, line 3: there is no notebook"),
        (JOB.replace("lr: $", "rl: $"), 64, "line 5: the notebook has no parameter 'rl'"),
        (JOB.replace("1e-3", "fast"), 64, "job.yml, line 5: parameter 'lr' takes a number"),
        (JOB + "kernel: fortran\n", 66, "job.yml, line 8: there is no kernel 'fortran'"),
        (JOB + "output: none/o.ipynb\n", 73, "job.yml, line 8: there is no folder"),
        (JOB + "output: train.ipynb\n", 64, "the output would replace the notebook itself"),
        (
            JOB
            + "resources:\n  instance_count: 2\n  properties: {singularity: {device_share: .5}}",
            64,
            "job.yml, line 8: device_share 0.5 is a part of one device",
        ),
        (JOB + ON_TWO_NODES, 64, "job.yml, line 8: a notebook runs on one node: only a command"),
        (
            f"command: a\n{ON_TWO_NODES}".replace("count: 4", "count: 3"),
            64,
            "job.yml, line 2: 3 devices cannot be divided among 2 nodes: ask for 2, 4, 6",
        ),
        (JOB + "environment_variables: {NOT_SET: null}\n", 64, "the variable NOT_SET is to have"),
        ("command: python train.py\n", 69, "SINGULARITY_API_URL and JUPYTERHUB_API_TOKEN are not"),
        ('command: "a\\0b"\n', 64, "run.command must be the text of a command"),
        ("command: papermill train.ipynb --foo\n", 64, "job.yml, line 1: a batch session does not"),
        ("command: papermill x.ipynb o.ipynb\n", 66, "job.yml, line 1: there is no notebook"),
        (JOB, 69, "SINGULARITY_API_URL and JUPYTERHUB_API_TOKEN are not set"),
    ],
)
def test_what_is_refused(here: Path, capsys: Captured, text: str, code: int, sentence: str) -> None:
    (here / "job.yml").write_text(text)
    assert main(["job.yml"]) == code
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("jupyter singularity submit: ")
    assert sentence in said.err


def test_a_command_is_a_run_too(here: Path, capsys: Captured) -> None:
    (here / "job.yml").write_text(
        "command: python train.py --lr ${{inputs.lr}}\ninputs: {lr: 0.5}\nlimits: {timeout: 5}\n"
        "environment_variables: {A: 1}\n"
        "distribution: {type: pytorch, process_count_per_instance: 4}\n"
    )
    found = dry_run(capsys, "job.yml", "--env", "B=2")
    assert (found["devices"], found["name"]) == (4, "python train.py --lr 0.5")
    run = found["run"]
    assert (run["command"], run["ranked"]) == ("python train.py --lr 0.5", True)
    assert (run["folder"], run["timeout_s"]) == (str(here), 5)
    assert run["variables"].items() >= {"A": "1", "B": "2"}.items()
    found = dry_run(capsys, "job.yml", "--devices", "2")
    assert (found["devices"], found["run"]["ranked"]) == (2, True)
    for words in (["-p", "lr", "1"], ["-o", "x.ipynb"], ["-k", "python3"]):
        assert main(["job.yml", *words]) == 64
        assert "are a notebook's" in capsys.readouterr().err
    assert main(["job.yml", "--cwd", "none"]) == 66


def test_a_call_of_papermill_is_the_run_of_its_notebook(here: Path, capsys: Captured) -> None:
    (here / "p.yml").write_text("name: b\nlr: 7\n")
    (here / "job.yml").write_text(
        "command: >-\n  papermill train.ipynb out/o.ipynb -f p.yml\n  -p lr ${{inputs.lr}}\n"
        "  -k python3 --log-output\ninputs: {lr: 0.5}\nlimits: {timeout: 5}\n"
    )
    (here / "out").mkdir()
    run = dry_run(capsys, "job.yml")["run"]
    assert (run["notebook"], run["output"]) == (f"{here}/train.ipynb", f"{here}/out/o.ipynb")
    assert (run["parameters"], run["kernel"]) == ({"name": "b", "lr": 0.5}, "python3")
    assert (run["folder"], run["timeout_s"]) == (str(here), 5)


@pytest.mark.parametrize(
    "command",
    [
        "pip install papermill\npapermill a.ipynb b.ipynb",
        "papermill a.ipynb b.ipynb && echo done",
        "papermill $IN out.ipynb",
        "papermill 'a.ipynb",
        "echo papermill a.ipynb b.ipynb",
        "papermills a.ipynb b.ipynb",
    ],
)
def test_what_is_no_plain_call_of_papermill(command: str) -> None:
    assert papermill_call(command, "/") is None


def test_calls_of_papermill() -> None:
    call = papermill_call("python -m papermill a.ipynb \\\n o.ipynb --cwd=sub --engine x", "/f")
    assert call is not None
    assert (call.notebook, call.output, call.folder) == ("/f/a.ipynb", "/f/o.ipynb", "/f/sub")
    for command in ("papermill", "papermill a b c", "papermill a b --env X", "papermill a -p lr"):
        with pytest.raises(BadRequest):
            papermill_call(command, "/f")


SWEPT = """\
sweep:
  search_space:
    lr: {type: choice, values: [0.5, 0.25]}
    name: [a, b]
  limits: {max_concurrent_trials: 2, timeout: 7200}
  stop_on_failure: true
"""


@pytest.mark.parametrize(
    ("text", "words", "common", "told"),
    [
        (
            "type: notebook\nnotebook: train.ipynb\n" + SWEPT,
            ["--sweep", "name=c", "--max-parallel", "1", "--sweep-timeout", "90"],
            {},
            [{"values": {"lr": 0.5, "name": "c"}}, {"values": {"lr": 0.25, "name": "c"}}],
        ),
        (
            "type: notebook\nnotebook: train.ipynb\nparameters: {lr: '${{inputs.x}}', name: n}\n"
            "inputs: {x: 7}\n",
            ["--sweep", "x=1,2"],
            {"name": "n"},
            [{"values": {"lr": 1}}, {"values": {"lr": 2}}],
        ),
        (
            "command: papermill train.ipynb -p lr ${{search_space.rate}} -r name x\n"
            "sweep: {search_space: {rate: [0.5, 0.25]}}\n",
            [],
            {"name": "x"},
            [{"values": {"lr": 0.5}}, {"values": {"lr": 0.25}}],
        ),
        (
            "command: python t.py ${{search_space.lr}} ${{search_space.name}}\n" + SWEPT,
            ["--sweep", "lr=1"],
            None,
            [
                {"values": {"lr": 1, "name": "a"}, "command": "python t.py 1 a"},
                {"values": {"lr": 1, "name": "b"}, "command": "python t.py 1 b"},
            ],
        ),
    ],
)
def test_a_sweep_in_a_job_file(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: list[str],
    common: Json | None,
    told: list[Json],
) -> None:
    service = Taking()
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: service)
    (here / "job.yml").write_text(text)
    assert main(["job.yml", *words]) == 0
    ((name, asked),) = service.calls
    assert name == "submit_group"
    assert asked["members"] == told
    assert asked["session"]["run"].get("parameters") == common
    assert asked["stop_on_failure"] is ("stop_on_failure" in text)
    most = 1 if "--max-parallel" in words else 2 if SWEPT in text else None
    assert asked["max_parallel"] == most
    whole = 90 if "--sweep-timeout" in words else 7200 if SWEPT in text else None
    assert asked["timeout_s"] == whole
    members = parse_group({key: value for key, value in asked.items() if value is not None}, "g")
    assert {spec.member.timeout_s for spec in members if spec.member} == {whole}
    if common is None:
        assert [spec.name for spec in members] == ["job-1", "job-2"]


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        (
            "command: python t.py\n" + SWEPT,
            [],
            "job.yml, line 1: the command does not speak of lr, so all runs of the sweep would be "
            "the same: write ${{search_space.lr}} into it",
        ),
        ("command: python t.py\n", ["--sweep", "seed=0:4"], "does not speak of seed"),
        (
            "type: notebook\nnotebook: train.ipynb\nsweep:\n  search_space:\n    lrr: [1]\n",
            [],
            "job.yml, line 5: the notebook has no parameter 'lrr'; did you mean 'lr'?",
        ),
        (
            "type: notebook\nnotebook: train.ipynb\n" + SWEPT,
            ["-p", "lr", "1"],
            "lr has a value and is swept over",
        ),
        ("type: notebook\nnotebook: train.ipynb\n", ["--max-parallel", "1"], "is for sweeps"),
        (
            "type: notebook\nnotebook: train.ipynb\n",
            ["--sweep-timeout", "60"],
            "--sweep-timeout is for sweeps",
        ),
        ("type: notebook\nnotebook: train.ipynb\n" + SWEPT, ["--follow"], "is for one run"),
    ],
)
def test_sweeps_that_are_refused(
    here: Path, capsys: Captured, text: str, words: list[str], sentence: str
) -> None:
    (here / "job.yml").write_text(text)
    assert main(["job.yml", *words]) == 64
    assert sentence in capsys.readouterr().err


def test_a_sweep_is_shown_before_it_is_sent(here: Path, capsys: Captured) -> None:
    goal = "  objective: {primary_metric: loss, goal: minimize}\n"
    (here / "job.yml").write_text("type: notebook\nnotebook: train.ipynb\n" + SWEPT + goal)
    assert dry_run(capsys, "job.yml")["sweep"] == {
        "members": 4,
        "values": {"lr": [0.5, 0.25], "name": ["a", "b"]},
        "max_parallel": 2,
        "timeout_s": 7200,
        "stop_on_failure": True,
        "stop_when": None,
        "objective": {"primary_metric": "loss", "goal": "minimize"},
    }
    (here / "job.yml").write_text("type: notebook\nnotebook: train.ipynb\n" + SWEPT)
    assert dry_run(capsys, "job.yml", "--stop-when", "x>1")["sweep"]["stop_when"] == "x>1"
    assert main(["job.yml", "--stop-when", "x is 1", "--dry-run"]) == 64
    assert "a name, a comparison and a number" in capsys.readouterr().err


class Taking(Double):
    """A service that takes a submission."""

    async def submit_group(self, session: Json, members: list[Json], **asked: Any) -> Json:
        asked.pop("key")
        self.calls.append(("submit_group", {"session": session, "members": members, **asked}))
        return {
            **{"id": "g", "members": len(members), "max_parallel": None, "states": {}},
            "sessions": [{"id": SID}],
        }

    async def wait(self, session: str, until: str, away_s: float) -> None:
        assert self.known[session]["ended"] is (until == "ended")

    async def submit(self, **asked: Any) -> Json:
        asked.pop("key")
        self.calls.append(("submit", asked))
        return document(asked)


def document(request: Json, sid: str = SID) -> Json:
    """The service's document of a session that was asked for with `request`."""
    spec = parse_spec(request)
    assert spec.run is not None
    view = SessionView(
        *(sid, "ada", spec.kind, spec.name, spec.tier, spec.devices, "local", 0.0, 0.0),
        priority=spec.priority,
        virtual_cluster=spec.virtual_cluster,
        locations=spec.locations,
        share_milli=spec.share_milli,
        scale=spec.scale,
        every_s=spec.every_s,
        every_steps=spec.every_steps,
        run=run_of(spec.run, sid),
        part=Part("gang", 0, (sid, "other")) if spec.nodes == 2 else None,
    )
    return session_document(ClusterState(), view)


def test_a_job_is_sent_and_its_folders_are_made(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Taking()
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: service)
    (here / "job.yml").write_text(JOB + "outputs: {model: {path: made/here}}\n")
    dry_run(capsys, "job.yml")
    assert not (here / "made").exists()
    assert main(["job.yml", "--tier", "basic"]) == 0
    assert (here / "made" / "here").is_dir()
    ((name, asked),) = service.calls
    assert (name, asked["name"], asked["tier"]) == ("submit", "digits", "basic")
    assert asked["run"]["metadata"]["outputs"] == {"model": {"path": f"{here}/made/here"}}


@pytest.mark.parametrize("ends", ["completed", "failed"])
def test_a_run_on_several_nodes_has_ended_when_all_its_parts_have(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    (here / "job.yml").write_text(f"command: python a.py\n{ON_TWO_NODES}")
    asked = dry_run(capsys, "job.yml")
    assert (asked["devices"], asked["nodes"]) == (4, 2)
    over = {"ended": True, "process_state": "completed", "state": "completed", "reason": "well"}
    first = {**document(asked), **over}
    second = {**document(asked, "other"), **over, "process_state": ends, "reason": "as it was"}
    service = Taking(first, second)
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: service)
    assert main(["job.yml", "--wait"]) == (0 if ends == "completed" else 1)
    said = capsys.readouterr()
    assert "it is part 0 of a run on 2 nodes; the others are other" in said.out
    assert "as it was" in said.err
    [(_, sent)] = [call for call in service.calls if call[0] == "submit"]
    assert (sent["devices"], sent["nodes"]) == (4, 2)


@pytest.mark.parametrize(
    "text",
    [
        JOB,
        "type: notebook\nnotebook: train.ipynb\n",
        JOB
        + """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
description: "two lines: \\n yes"
experiment_name: study
output: out.ipynb
kernel: python3
code: work
outputs: {model: {path: made, mode: upload}}
environment_variables: {DATA: 1.10, PATH: null}
compute: azureml:research
queue_settings: {job_tier: Spot, priority: high}
resources:
  instance_type: [A, B]
  locations: [westus]
  properties:
    AISuperComputer: {device_share: 0.25, checkpointEveryS: 60, checkpoint_every_steps: 0}
limits: {timeout: 60}
""",
        JOB.replace("lr: $", "name: 1e5\n  lr: $").replace("name: 1e5", "name: 'null: # ${'")
        + "resources: {instance_count: 3}\n",
        "command: papermill ../train.ipynb out.ipynb -r name 1e-3 -p lr 1e-7\ncode: work\n",
        "command: |\n  cd work\n  python a.py 'x: #y'\ncode: work\n"
        "resources: {instance_count: 2}\n",
        "command: python a.py\ndistribution: {type: pytorch, process_count_per_instance: 3}\n"
        "resources: {instance_count: 2}\nname: ranked\n",
        "command: python a.py\ndistribution: {type: pytorch, process_count_per_instance: 4}\n"
        "resources: {properties: {AISuperComputer: {ScalePolicy: "
        "{autoScaleInstanceTypeCountSet: [1, 2], autoScaleIntervalInSec: 60}}}}\nname: ranked\n",
        f"command: python a.py\n{ON_TWO_NODES}name: far\n",
        f"command: python a.py\ndistribution: {{type: pytorch}}\n{ON_TWO_NODES}",
    ],
)
def test_an_exported_job_asks_for_the_same(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (here / "work").mkdir()
    (here / "job.yml").write_text(text)
    asked = dry_run(capsys, "job.yml")
    service = Double(document(asked))
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: service)
    (here / "far").mkdir()
    assert export.main([SID, "-o", "far/exported.yml"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("DATA", "1.10")  # the service does not tell it
    assert dry_run(capsys, "far/exported.yml") == asked


def test_what_export_writes_and_refuses(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dry_run(capsys, "job.yml", "--env", "DATA=/data")
    other = document(asked, "111111111111") | {"run": None}
    service = Double(document(asked), other)
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: service)
    assert export.main([SID]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Variables that are null get the value that they have where")
    assert text.endswith("environment_variables:\n  DATA: null\n")
    assert "/data" not in text
    assert "PATH" not in text
    assert export.main([SID, "-o", "job.yml"]) == 70
    assert "job.yml is there already; nothing was written" in capsys.readouterr().err
    assert (here / "job.yml").read_text() == JOB
    assert export.main([SID, "-o", "job.yml", "--replace"]) == 0
    assert (here / "job.yml").read_text() == text
    assert export.main([SID, "-o", "none/job.yml"]) == 73
    assert export.main(["111111111111"]) == 70
    assert "is no batch run" in capsys.readouterr().err
