"""Azure ML's sweep jobs: what is the same as a sweep of ours is taken, everything else is refused
with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from singularity_scheduler.jobs import BadJob, Job, parse, resolve
from singularity_scheduler.jobs.sweep_files import KEYS

SWEEP = """\
$schema: https://azuremlschemas.azureedge.net/latest/sweepJob.schema.json
type: sweep
trial:
  code: src
  command: >-
    python train.py
    --data ${{inputs.data}}
    --lr ${{search_space.lr}}
    --depth ${{search_space.depth}}
  environment: azureml:AzureML-acpt-pytorch:1
  environment_variables: {SEED: 7}
  resources: {instance_count: 2}
inputs:
  data: {type: uri_folder, path: ./data}
compute: azureml:research
sampling_algorithm: grid
search_space:
  lr: {type: choice, values: [0.5, 0.25]}
  depth:
    type: choice
    values: [1, 2, 3]
objective:
  goal: minimize
  primary_metric: loss
limits:
  max_total_trials: 5
  max_concurrent_trials: 2
  trial_timeout: 600
display_name: digits-sweep
experiment_name: digits-study
queue_settings: {job_tier: basic}
"""

AS_COMMAND = """\
type: command
code: src
command: >-
  python train.py
  --data ${{inputs.data}}
  --lr ${{search_space.lr}}
  --depth ${{search_space.depth}}
environment: azureml:AzureML-acpt-pytorch:1
environment_variables: {SEED: 7}
resources: {instance_count: 2}
inputs:
  data: {type: uri_folder, path: ./data}
compute: azureml:research
sweep:
  sampling_algorithm: grid
  search_space: {lr: [0.5, 0.25], depth: [1, 2, 3]}
  objective: {goal: minimize, primary_metric: loss}
  limits: {max_total_trials: 5, max_concurrent_trials: 2}
limits: {timeout: 600}
display_name: digits-sweep
experiment_name: digits-study
queue_settings: {job_tier: basic}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data", "src"):
        (tmp_path / name).mkdir()
    return tmp_path


def resolved(text: str, folder: Path) -> Job:
    return resolve(parse(text, str(folder / "job.yml")))


def asked(job: Job) -> dict[str, object]:
    """All of a job but where it was read."""
    found = dict(vars(job))
    del found["document"]
    del found["notes"]
    found["metadata"] = {k: v for k, v in job.metadata.items() if k != "$schema"}
    return found


def test_a_sweep_job_is_a_command_job_with_a_sweep(folder: Path) -> None:
    job = resolved(SWEEP, folder)
    assert asked(job) == asked(resolved(AS_COMMAND, folder))
    assert job.metadata["$schema"].endswith("sweepJob.schema.json")
    assert [c["lr"] for c in job.sweep.combinations] == [0.5, 0.5, 0.5, 0.25, 0.25]
    last = job.with_values(job.sweep.combinations[-1])
    assert last.command == f"python train.py --data {folder}/data --lr 0.25 --depth 2"
    [note] = [note for note in job.notes if "environment" in note]
    assert "job.yml, line 10: trial.environment is kept and changes nothing here" in note


def test_the_time_limits_of_a_sweep_job(folder: Path) -> None:
    both = resolved(
        replaced("  trial_timeout: 600", "  trial_timeout: 600\n  timeout: 7200"), folder
    )
    assert (both.timeout_s, both.sweep.timeout_s) == (600, 7200)
    whole = resolved(replaced("  trial_timeout: 600", "  timeout: 7200"), folder)
    assert (whole.timeout_s, whole.sweep.timeout_s) == (None, 7200)
    limits = "limits: {max_total_trials: 5, max_concurrent_trials: 2}"
    inside = AS_COMMAND.replace("limits: {timeout: 600}\n", "").replace(
        limits, limits.replace("}", ", timeout: 7200, trial_timeout: 600}")
    )
    assert asked(resolved(inside, folder)) == asked(both)
    twice = AS_COMMAND.replace(limits, limits.replace("}", ", trial_timeout: 60}"))
    with pytest.raises(
        BadJob, match=r"limits\.trial_timeout is 60 and limits\.timeout is 600: say one"
    ):
        resolved(twice, folder)


def replaced(old: str, new: str) -> str:
    assert old in SWEEP
    return SWEEP.replace(old, new)


GRID = "sampling_algorithm: grid"
LR = "  lr: {type: choice, values: [0.5, 0.25]}\n"


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        (replaced(GRID, "sampling_algorithm: random"), 16, "sampling_algorithm cannot be 'random'"),
        (replaced(GRID, "sampling_algorithm: {type: bayesian}"), 16, "sampling_algorithm cannot"),
        (replaced(GRID + "\n", ""), 1, "sampling_algorithm is missing in a sweep"),
        (
            replaced(LR, "  lr:\n    type: uniform\n    min_value: 0.1\n    max_value: 0.9\n"),
            19,
            "search_space.lr.type cannot be 'uniform': only `choice` is taken",
        ),
        (
            replaced(LR, "  lr:\n    type: choice\n    value: [1]\n"),
            20,
            "'value' is not known in search_space.lr: did you mean 'values'?",
        ),
        (
            replaced("  trial_timeout: 600", "  timeout: soon"),
            28,
            "limits.timeout must be a whole number, not 'soon'",
        ),
        (
            replaced("max_total_trials: 5", "max_total_trails: 5"),
            26,
            "'max_total_trails' is not known in limits of a sweep: did you mean "
            "'max_total_trials'?",
        ),
        (
            replaced("max_total_trials: 5", "max_total_trials: many"),
            26,
            "limits.max_total_trials must be a whole number, not 'many'",
        ),
        (
            replaced("max_concurrent_trials: 2", "max_concurrent_trials: 0"),
            27,
            "limits.max_concurrent_trials is not what it must be: at least 1",
        ),
        (replaced("objective:", "objectives:"), 22, "did you mean 'objective'?"),
        (replaced("goal: minimize", "goal: least"), 23, "objective.goal cannot be 'least'"),
        (
            SWEEP + "early_termination: {type: bandit, slack_factor: 0.1}\n",
            32,
            "early_termination is refused: runs are not compared",
        ),
        (SWEEP + "identity: {type: managed}\n", 32, "identity is refused: a run is its user's"),
        (
            SWEEP + "resources: {instance_count: 4}\n",
            32,
            "resources says trial.resources again: once is enough",
        ),
        ("type: sweep\ntrial: azureml:train:1\n", 2, "trial must be a mapping, the job of one run"),
        ("type: sweep\nlimits: [1]\n", 2, "limits must be a mapping, with keys, not a list"),
        (replaced("  command: >-", "  comand: >-"), 5, "did you mean 'command'?"),
        (replaced("  code: src", "  code: [src]"), 4, "trial.code must be text"),
        (replaced("  code: src", "  code: lost"), 4, "there is no folder"),
        (replaced("search_space.depth", "search_space.width"), 5, "stands for nothing"),
        (
            replaced("{SEED: 7}", "{SEED: '${{search_space.lr}}'}"),
            11,
            "may stand in command and parameters alone",
        ),
        ("type: sweep\n", 1, "trial.command is missing in a sweep"),
    ],
)
def test_what_would_not_be_the_same_is_refused(
    folder: Path, text: str, line: int, sentence: str
) -> None:
    with pytest.raises(BadJob) as raised:
        resolved(text, folder)
    assert f"job.yml, line {line}: " in raised.value.message, raised.value.message
    assert sentence in raised.value.message


def test_every_key_of_the_table_has_its_place() -> None:
    """Honoured under one other key, or refused with a reason; none is listed twice."""
    assert len({key.path for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert bool(key.becomes) != bool(key.refused), key
