"""The table of keys: what each row says is what happens, and what wrong values are told."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from singularity_scheduler.jobs import BadJob, Job, Row, Use, parse, resolve, rows, schema
from singularity_scheduler.jobs.writing import written

Json = dict[str, Any]

COMMON: Json = {
    "inputs": {"NAME": {"path": "./data"}},
    "outputs": {"NAME": {"path": "./made"}},
}
BASES: dict[str, Json] = {
    "notebook": {
        "type": "notebook",
        "notebook": "train.ipynb",
        "parameters": {"data": "${{inputs.NAME}}", "model": "${{outputs.NAME}}"},
        **COMMON,
    },
    "command": {
        "type": "command",
        "command": "papermill train.ipynb -p data ${{inputs.NAME}} -p model ${{outputs.NAME}}",
        **COMMON,
    },
}
CASES = [
    pytest.param(row, job, id=f"{job}-{'.'.join(row.path)}") for row in rows() for job in row.jobs
]
SPACE: Json = {"lr": [0.5, 0.25]}
ONLY_CHECKED = {"inputs.NAME.type", "resources.properties.singularity.interactive"}
"""Honoured by a check: the example does not fit and is refused."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data", "other", "src"):
        (tmp_path / name).mkdir()
    return tmp_path


def resolved(job: Mapping[str, Any] | str, folder: Path) -> Job:
    text = job if isinstance(job, str) else written(job)
    return resolve(parse(text, str(folder / "job.yml")))


def with_value(job: Json, path: tuple[str, ...], value: Any) -> Json:
    made = copy.deepcopy(job)
    inner = made
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
    inner[path[-1]] = value
    if path[0] == "distribution":
        inner.setdefault("type", "pytorch")
    if path[0] == "sweep":
        made["sweep"].setdefault("search_space", SPACE)
    if path[:2] == ("sweep", "search_space") and isinstance(inner.get(path[-1]), str | list):
        inner |= {"type": "choice", "values": [1], **inner} if path[-1] != "NAME" else {}
    return made


def effect(job: Job) -> dict[str, Any]:
    """What a job asks for, without what is only kept."""
    kept = {"metadata", "notes", "document"}
    return {f.name: getattr(job, f.name) for f in fields(job) if f.name not in kept}


@pytest.mark.parametrize(("row", "kind"), CASES)
def test_a_key_does_what_its_row_says(row: Row, kind: str, folder: Path) -> None:
    name = ".".join(row.path)
    if name == "type":
        assert resolved(BASES[kind], folder).kind == kind
        return
    job = with_value(BASES[kind], row.path, row.example)
    if row.use is Use.REFUSED or name in ONLY_CHECKED:
        with pytest.raises(BadJob) as refused:
            resolved(job, folder)
        assert name.removesuffix(".type") in refused.value.message
        assert refused.value.fields["line"] is not None
        return
    base = BASES[kind]
    if row.path[0] == "sweep":
        base = {**base, "sweep": {"search_space": SPACE}}
    before, after = resolved(base, folder), resolved(job, folder)
    if name == "sweep.sampling_algorithm":  # all that can be said is the default
        assert effect(after) == effect(before)
        return
    if row.use is Use.METADATA:
        assert effect(after) == effect(before)
        found: Any = after.metadata
        for part in row.path:
            found = found[part]
        assert found == kept(row.example)
        assert any(name in note for note in after.notes) is bool(row.note)
    elif name == "distribution.type":
        assert after.wishes == {"devices": 1}
    else:
        assert effect(after) != effect(before)
        assert after.notes == before.notes


def kept(value: Any) -> Any:
    """Tags are texts, whatever they look like."""
    return (
        {k: str(v) for k, v in value.items()}
        if isinstance(value, dict) and "team" in value
        else value
    )


def test_a_key_of_the_other_type_is_refused(folder: Path) -> None:
    for row in rows():
        for kind in {"notebook", "command"} - set(row.jobs):
            job = with_value(BASES[kind], row.path, row.example)
            with pytest.raises(BadJob, match=r"it belongs to jobs of 'type: ") as refused:
                resolved(job, folder)
            assert row.path[0] in refused.value.message


def test_the_published_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())
    assert schema()["$id"] == "urn:jupyter-singularity:schema:job:v1"
    assert len({row.path for row in rows()}) == len(rows()) > 50
    for row in rows():
        assert row.meaning.endswith("."), row.path
        assert row.jobs, row.path


def test_all_of_a_job(folder: Path) -> None:
    (folder / "data" / "in.csv").write_text("")
    job = resolved(
        """
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
display_name: digits
experiment_name: study
command: >-
  torchrun train.py --lr ${{inputs.lr}} --data ${{inputs.table}} --out ${{outputs.model}}
code: ./src
inputs:
  lr: 1e-3
  table: {type: uri_file, path: data/in.csv}
  far: {path: "abfss://c@a.dfs.core.windows.net/x", mode: direct}
outputs:
  model:
environment_variables: {VERSION: 1.10, FAR: "${{inputs.far}}", HERE: null, ON: true}
compute: /subscriptions/S/resourceGroups/R/providers/X/virtualclusters/research
distribution: {type: pytorch, process_count_per_instance: 4}
queue_settings: {job_tier: Spot, priority: High}
resources:
  instance_count: 2
  locations: [westus, eastus]
  properties:
    AISuperComputer:
      Locations: [westus, eastus]
      SLATier: Basic
      scalePolicy: {minInstanceTypeCount: 1, max_instance_type_count: 2}
limits: {timeout: 60}
retry_settings: {max_retries: 2}
tags: {version: 1.10}
""",
        folder,
    )
    assert replace(job, document=job.document, metadata={}, notes=()) == Job(
        job.document,
        "command",
        name="digits",
        command=f"torchrun train.py --lr 0.001 --data {folder}/data/in.csv "
        f"--out {folder}/outputs/model",
        ranked=True,
        folder=f"{folder}/src",
        variables={
            "VERSION": "1.10",
            "FAR": "abfss://c@a.dfs.core.windows.net/x",
            "HERE": None,
            "ON": "true",
        },
        timeout_s=60,
        max_retries=2,
        wishes={
            "tier": "basic",
            "priority": "high",
            "devices": 8,
            "scale_policy": {"min_instance_type_count": 1, "max_instance_type_count": 2},
            "virtual_cluster": "research",
            "locations": ["westus", "eastus"],
        },
        folders=(f"{folder}/outputs/model",),
    )
    assert job.metadata["tags"] == {"version": "1.10"}
    assert job.metadata["experiment_name"] == "study"
    assert job.metadata["inputs"]["table"] == {
        "type": "uri_file",
        "path": f"{folder}/data/in.csv",
    }
    assert job.notes[0] == f"{folder}/job.yml, line 18: the tier Spot is 'basic' here"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("tgas: {}", 3, "'tgas' is not known: did you mean 'tags'?"),
        ("resources:\n  instance_cuont: 2", 4, "did you mean 'instance_count'?"),
        (
            "resources:\n  properties:\n    singularity:\n      slaTeir: Basic",
            6,
            "'slaTeir' is not known in resources.properties.singularity: did you mean 'sla_tier'?",
        ),
        ("zzz: 1", 3, "'zzz' is not known: known are $schema, type, name"),
        ("parameters: [1]", 3, "parameters must be a mapping, not [1]"),
        ("resources: {instance_count: two}", 3, "instance_count must be a whole number, not 'two'"),
        ("resources: {instance_count: true}", 3, "must be a whole number, not true"),
        ("resources: {instance_count: 0}", 3, "instance_count is not what it must be: at least 1"),
        ("queue_settings: {job_tier: Premum}", 3, "cannot be 'Premum': did you mean 'premium'?"),
        ("queue_settings: {priority: 7}", 3, "cannot be 7: pick low, medium, high"),
        ("limits: {timeout: PT1H}", 3, "limits.timeout must be a whole number, not 'PT1H'"),
        ("display_name: ''", 3, "display_name is not what it must be: it is empty"),
        ("environment_variables: {SINGULARITY_X: 1}", 3, "are set by the platform"),
        ("inputs: {1x: 3}", 3, "'1x' cannot be a name in inputs: a name has letters"),
        ("inputs: {x: [1]}", 3, "inputs.x must be text, a number, true or false or a mapping"),
        ("inputs: {x: {pathh: d}}", 3, "'pathh' is not known in inputs.x: did you mean 'path'?"),
        ("inputs: {x: {path: ./none}}", 3, "/none"),
        ("inputs: {x: {path: azureml:d:1}}", 3, "names an asset of a workspace"),
        ("inputs: {x: azureml:d:1}", 3, "names an asset of a workspace"),
        ("inputs: {x: {path: https://a/b}}", 3, "hand it on with 'mode: direct'"),
        ("inputs: {x: {type: uri_file, path: data}}", 3, "has the type uri_file, and"),
        ("inputs: {x: {path: f.txt}}", 3, "has the type uri_folder, and"),
        ("outputs: {x: {path: https://a/b}}", 3, "is an address: name a local path"),
        ("inputs:\n  a: ${{inputs.b}}\n  b: ${{inputs.a}}", 4, "in a circle: inputs.a -> inputs.b"),
        ("parameters:\n  lr: ${{inputs.lr}}", 4, "${{inputs.lr}} stands for nothing"),
        ("parameters:\n  lr: ${{parent.inputs.lr}}", 4, "speaks of a pipeline"),
        ("output: ${{outputs.x}}", 3, "stands for nothing: nothing is known there"),
        ("code: ./none", 3, "there is no folder"),
        ("compute: a b", 3, "virtual_cluster must be a name of letters"),
        ("resources: {locations: [westus, westus]}", 3, "twice: once is enough"),
        (
            "queue_settings: {job_tier: basic}\nresources:\n  properties:\n    singularity:\n"
            "      sla_tier: Premium",
            7,
            "sla_tier is 'premium' and queue_settings.job_tier is 'basic': say one of them",
        ),
        (
            "resources:\n  properties:\n    singularity: {}\n    AISuperComputer: {}",
            6,
            "'AISuperComputer' says singularity again: once is enough",
        ),
        (
            "resources:\n  properties:\n    singularity:\n      scale_policy:\n        "
            "auto_scale_instance_type_count_set: [1]\n        min_instance_type_count: 1",
            8,
            "give either the set of numbers or the smallest and largest",
        ),
        ('environment_variables: {X: "a\\0b"}', 3, "cannot hold the character NUL"),
        ("sweep: {}", 3, "sweep.search_space is missing"),
        ("sweep: {search_space: {}}", 3, "sweep.search_space is not what it must be: it is empty"),
        ("sweep:\n  search_space: {lr: 1}", 4, "lr must be a list or a mapping, not 1"),
        ("sweep:\n  search_space:\n    lr: [1, 2, 1]", 5, "lr has 1 twice"),
        ("sweep:\n  search_space: {lr: [[1]]}", 4, "must be text, a number, true or false"),
        (
            "sweep:\n  search_space:\n    lr: {type: uniform, min_value: 0, max_value: 1}",
            5,
            "type cannot be 'uniform': only `choice` is taken, which lists the values",
        ),
        (
            "sweep:\n  search_space:\n    lr:\n      type: loguniform\n      values: [1]",
            6,
            "type cannot be 'loguniform': only `choice` is taken",
        ),
        (
            "sweep:\n  search_space: {lr: [1]}\n  sampling_algorithm: bayesian",
            5,
            "sweep.sampling_algorithm cannot be 'bayesian': pick grid",
        ),
        (
            "sweep:\n  search_space: {lr: [1]}\n  limits: {max_concurent_trials: 2}",
            5,
            "did you mean 'max_concurrent_trials'?",
        ),
        (
            "sweep:\n  search_space: {lr: [1]}\n  early_termination: {type: bandit}",
            5,
            "sweep.early_termination is refused: runs are not compared",
        ),
        (
            "sweep:\n  search_space: {lr: [1]}\n  stop_when: loss < a",
            5,
            "must be a name, a comparison and a number, such as loss<0.01, not 'loss < a'",
        ),
        (
            "sweep:\n  search_space: {lr: [1]}\n  objective: {primary_metric: loss, goal: least}",
            5,
            "sweep.objective.goal cannot be 'least': pick minimize, maximize",
        ),
        ("sweep:\n  search_space: {lr: [1]}\n  objective: {goal: minimize}", 5, "is missing"),
        (
            f"sweep:\n  search_space: {{a: {[*range(40)]}, b: {[*range(26)]}}}",
            4,
            "1040 combinations, and a group may have 1000",
        ),
        (
            "environment_variables:\n  A: ${{search_space.lr}}\nsweep: {search_space: {lr: [1]}}",
            4,
            "may stand in command and parameters alone",
        ),
        (
            "inputs: {a: 1}\nsweep: {search_space: {lr: [1]}}\noutput: ${{search_space.lr}}.ipynb",
            5,
            "may stand in command and parameters alone",
        ),
    ],
)
def test_wrong_jobs(text: str, line: int, sentence: str, folder: Path) -> None:
    (folder / "f.txt").write_text("")
    with pytest.raises(BadJob) as refused:
        resolved(f"type: notebook\nnotebook: train.ipynb\n{text}\n", folder)
    assert refused.value.message.startswith(f"{folder}/job.yml, line {line}: ")
    assert sentence in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "command is missing: a job without a type is a command; a notebook has 'type: not"),
        ("type: notebook", "notebook is missing"),
        ("type: notebook\nnotebok: a", "'notebok' is not known: did you mean 'notebook'?"),
        ("type: notebok", "type cannot be 'notebok': did you mean 'notebook'?"),
        ("type: pipeline", "type cannot be 'pipeline': pick command, notebook"),
        (
            "command: x\ndistribution: {type: mpi}",
            "distribution.type cannot be 'mpi': pick pytorch",
        ),
        ("command: x\ndistribution: {}", "distribution.type is missing"),
        ("command: x\ncode: {local_path: src}", "code must be text, not {'local_path': 'src'}"),
        ("command: [a]", "command must be text, not ['a']"),
        ("command: echo $[[--x ${{inputs.x}}]]\ninputs: {x: 3}", "line 1: $[[ ]] leaves out in a"),
    ],
)
def test_jobs_that_are_none(text: str, sentence: str, folder: Path) -> None:
    with pytest.raises(BadJob) as refused:
        resolved(text, folder)
    assert sentence in refused.value.message


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "x", "..", "/", "azureml:a:1", "${{inputs.NAME}}", "${{outputs.a", "a\0b", "a/b", "ü"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("aB_"), inner),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(BASES)),
    st.lists(st.tuples(st.sampled_from([row.path for row in rows()]), odd), max_size=4),
)
def test_odd_values_anywhere_are_taken_or_refused(
    folder: Path, kind: str, changes: list[tuple[tuple[str, ...], Any]]
) -> None:
    job = copy.deepcopy(BASES[kind])
    for path, value in changes:
        inner = job
        for part in path[:-1]:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[path[-1]] = value
    refused = None
    try:
        resolved(job, folder)
    except BadJob as error:
        refused = error.message
    assert refused is None or re.fullmatch(r"\S+/job\.yml, line [0-9]+: [^\n]+", refused)


def test_the_runs_of_a_sweep(folder: Path) -> None:
    text = """
command: python train.py --lr ${{search_space.lr}} --n ${{inputs.n}} --out ${{outputs.model}}
inputs: {n: 3}
outputs: {model: {}}
sweep:
  search_space:
    lr: {type: choice, values: [0.5, 0.25]}
    kind: [a, b]
  limits: {max_total_trials: 3, max_concurrent_trials: 2}
"""
    job = resolve(parse(text, str(folder / "job.yml")), {"n": [7, 8], "kind": ["c"]})
    assert job.sweep.space == {"lr": [0.5, 0.25], "kind": ["c"], "n": [7, 8]}
    assert (job.sweep.max_parallel, len(job.sweep.combinations)) == (2, 3)
    assert job.direct == {"kind": "c"}
    assert "inputs" not in job.metadata  # it is another one in each run
    commands = [job.with_values(values).command for values in job.sweep.combinations]
    assert commands == [
        f"python train.py --lr {lr} --n {n} --out {folder}/outputs/model"
        for lr, n in [(0.5, 7), (0.5, 8), (0.25, 7)]
    ]
    text = "command: x ${{inputs.n}}\ninputs: {n: 3}\nenvironment_variables: {N: '${{inputs.n}}'}"
    job = resolve(parse(text, str(folder / "job.yml")), {"n": [7, 8]})
    with pytest.raises(BadJob, match=r"line 2: n is swept over, and only the command and param"):
        job.with_values({"n": 8})
