"""Bad input: one clear sentence each."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.requests.run_spec import parse_run, run_of
from singularity_scheduler.requests.size_spec import parse_devices, policy_document
from singularity_scheduler.requests.spec import parse_launch, parse_move, parse_spec


def test_a_good_request_and_its_defaults() -> None:
    request = {"kind": "batch", "tier": "basic", "devices": 2, "name": " train "}
    assert parse_spec(request, largest=2) == SessionSpec(Kind.BATCH, Tier.BASIC, 2, "train")
    assert parse_spec({}) == SessionSpec(Kind.INTERACTIVE, Tier.STANDARD, 1, "")


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"tier": "gold"}, "unknown tier 'gold': pick premium, standard or basic"),
        ({"tier": 3}, "unknown tier 3: pick premium, standard or basic"),
        ({"kind": "daemon"}, "unknown kind 'daemon': pick interactive or batch"),
        ({"devices": 0}, "0 devices asked, but a session needs at least 1: ask for 1 to 2"),
        ({"devices": -1}, "-1 devices asked, but a session needs at least 1: ask for 1 to 2"),
        (
            {"devices": 10**6},
            "1000000 devices asked, but this cluster has at most 2 for one session: ask for 1 to 2",
        ),
        ({"devices": 1.5}, "devices must be a whole number, not 1.5: ask for 1 to 2"),
        ({"devices": "2"}, "devices must be a whole number, not '2': ask for 1 to 2"),
        ({"devices": True}, "devices must be a whole number, not True: ask for 1 to 2"),
        (
            {"name": "a\nb"},
            "a session's name must be printable text of at most 200 characters",
        ),
        (
            {"name": "x" * 201},
            "a session's name must be printable text of at most 200 characters",
        ),
    ],
)
def test_refusals(request_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_spec(request_, largest=2)
    assert caught.value.message == sentence


def test_no_device_at_all_and_an_unknown_number_of_them() -> None:
    with pytest.raises(BadRequest, match="no device at all"):
        parse_devices(1, 0)
    assert parse_devices(10**6) == 10**6
    with pytest.raises(BadRequest, match=r"at least 1: ask for 1 or more$"):
        parse_devices(0)
    with pytest.raises(BadRequest, match=r"ask for 1$"):
        parse_devices(2, 1)


@pytest.mark.parametrize(
    ("launch", "part"),
    [
        (None, "must be an object"),
        ({"mode": "magic"}, "unknown launch mode 'magic'"),
        ({"mode": "capsule", "argv": []}, "nothing to start"),
        ({"mode": "capsule", "argv": "python"}, "argv must be a list"),
        ({"mode": "capsule", "argv": ["x"], "env": {"A": 1}}, "env must map"),
        ({"mode": "capsule", "argv": ["x"], "cwd": 1}, "cwd must be a path"),
        ({"mode": "capsule", "argv": ["x"], "connection": "tcp"}, "connection must be"),
        ({"mode": "joined"}, "owner_pid is missing"),
        ({"mode": "joined", "owner_pid": "1"}, "must be the process id"),
    ],
)
def test_launch_refusals(launch: object, part: str) -> None:
    with pytest.raises(BadRequest, match=part):
        parse_launch(launch)


def test_launch_is_passed_on_as_it_is() -> None:
    launch = {"mode": "capsule", "argv": ["python"], "env": {"A": "b"}, "cwd": "/tmp"}
    assert parse_launch(launch) == {**launch, "connection": None, "owner_pid": None}


def test_devices_to_move_to() -> None:
    types = {"cpu:0": "cpu", "cpu:1": "cpu"}
    assert parse_move(None, types) == ()
    assert parse_move(1, types) == parse_move("1", types) == parse_move("cpu:1", types)
    assert parse_move([0, "cpu:1"], types) == ("cpu:0", "cpu:1")
    for bad in (2, "gpu", True, 1.0, {}):
        with pytest.raises(BadRequest, match=r"there is no device .* pick from cpu:0, cpu:1"):
            parse_move(bad, types)


def test_a_run_and_its_defaults() -> None:
    spec = parse_spec({"run": {"notebook": "/home/ada/./train.ipynb", "parameters": {"lr": 0.1}}})
    assert (spec.kind, spec.name) == (Kind.BATCH, "train.ipynb")
    assert spec.run == BatchRun("/home/ada/train.ipynb", parameters='{"lr": 0.1}')
    complete = run_of(spec.run, "0123456789ab")
    assert complete.output == "/home/ada/train-0123456789ab.ipynb"
    assert complete.folder == "/home/ada"
    given = parse_run({"notebook": "/n.ipynb", "output": "/o/x.ipynb", "folder": "/f"})
    assert run_of(given, "0123456789ab") == given
    more = parse_run({"notebook": "/n.ipynb", "timeout_s": 60, "metadata": {"tags": {"a": "b"}}})
    assert (more.timeout_s, more.metadata) == (60, '{"tags": {"a": "b"}}')
    assert more.max_retries == 0
    assert parse_run({"command": "a", "folder": "/", "max_retries": 3}).max_retries == 3


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        ("train.ipynb", "run must be an object that says which notebook or command is run"),
        ({"command": " "}, "run.command must be the text of a command, not ' '"),
        ({"command": "ls"}, "run.folder is missing: the absolute path of the folder to run in"),
        (
            {"command": "ls", "folder": "/", "notebook": "/n.ipynb"},
            "run.notebook does not go with run.command: send one of them",
        ),
        (
            {"command": "ls", "folder": "/", "parameters": {"a": 1}},
            "run.parameters does not go with run.command: send one of them",
        ),
        (
            {"notebook": "/n.ipynb", "ranked": True},
            "run.ranked is for commands: a notebook is run once",
        ),
        ({"command": "ls", "ranked": 2}, "run.ranked must be true or false, not 2"),
        ({}, "run.notebook is missing: the absolute path of the notebook to run"),
        ({"notebook": "train.ipynb"}, "run.notebook must be an absolute path, not 'train.ipynb'"),
        ({"notebook": 3}, "run.notebook must be an absolute path, not 3"),
        ({"notebook": "/a\0b"}, "run.notebook must be printable, not '/a\\x00b'"),
        ({"notebook": "/a\x1b[2J.ipynb"}, "run.notebook must be printable, not '/a\\x1b[2J.ipynb'"),
        (
            {"notebook": "/n.ipynb", "output": "/x/../n.ipynb"},
            "run.output is the notebook itself: name another file",
        ),
        (
            {"notebook": "/n.ipynb", "parameters": {"lr": float("inf")}},
            "run.parameters holds a number that JSON does not have (infinity or not a number): "
            "give it as text and convert it in the notebook",
        ),
        (
            {"notebook": "/n.ipynb", "ouput": "/o.ipynb"},
            "'run.ouput' is not known; did you mean 'output'? known are notebook, output, "
            "parameters, kernel, folder, python, variables, timeout_s, max_retries, command, "
            "ranked, metadata",
        ),
        (
            {"notebook": "/n.ipynb", "kernel": "../python3"},
            "run.kernel must be the name of a kernelspec, not '../python3'",
        ),
        (
            {"notebook": "/n.ipynb", "parameters": ["lr", 0.1]},
            'run.parameters must be an object, for example {"lr": 0.1}',
        ),
        (
            {"notebook": "/n.ipynb", "parameters": {"learning rate": 1}},
            "'learning rate' cannot be the name of a parameter",
        ),
        (
            {"notebook": "/n.ipynb", "variables": {"A": 1}},
            'run.variables must map names to texts, for example {"LANG": "C.UTF-8"}',
        ),
        (
            {"notebook": "/n.ipynb", "variables": {"A=B": "1"}},
            "'A=B' cannot be a variable of the environment",
        ),
        (
            {"notebook": "/n.ipynb", "variables": {"SINGULARITY_SESSION": "x"}},
            "SINGULARITY_SESSION is set by the platform and cannot be given to a run",
        ),
        (
            {"notebook": "/n.ipynb", "timeout_s": 0},
            "run.timeout_s must be a whole number of seconds from 1 to 31536000, not 0",
        ),
        (
            {"notebook": "/n.ipynb", "max_retries": -1},
            "run.max_retries must be a whole number from 0 to 100, not -1",
        ),
        (
            {"notebook": "/n.ipynb", "timeout_s": True},
            "run.timeout_s must be a whole number of seconds from 1 to 31536000, not True",
        ),
        (
            {"notebook": "/n.ipynb", "metadata": ["a"]},
            'run.metadata must be an object, for example {"tags": {"team": "vision"}}',
        ),
        (
            {"notebook": "/n.ipynb", "metadata": {"x": "y" * 70_000}},
            "run.metadata has at most 64 KiB",
        ),
        (
            {"notebook": "/n.ipynb", "parameters": {"x": "y" * 70_000}},
            "the parameters and variables of a run have at most 64 KiB together: put larger ones "
            "in a file",
        ),
    ],
)
def test_refused_runs(run: Any, sentence: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_spec({"kind": "batch", "run": run})
    assert caught.value.message == sentence


def test_a_run_of_a_command() -> None:
    run = {"command": " torchrun a.py\\\n --x", "folder": "/home/ada", "ranked": True}
    spec = parse_spec({"run": run, "devices": 2})
    assert (spec.kind, spec.name, spec.devices) == (Kind.BATCH, "torchrun a.py\\", 2)
    assert spec.run is not None
    assert run_of(spec.run, "0123456789ab") == spec.run
    assert parse_spec({"run": {"notebook": "/"}}).name == ""
    assert (spec.run.command, spec.run.ranked, spec.run.output) == (run["command"], True, None)


def test_a_run_is_no_notebook_with_a_person_in_front() -> None:
    with pytest.raises(BadRequest, match="kind must be batch"):
        parse_spec({"kind": "interactive", "run": {"notebook": "/n.ipynb"}})


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "policy",
    [
        {"auto_scale_instance_type_count_set": [1, 2, 4], "auto_scale_interval_in_sec": 7.0},
        {"auto_scale_instance_type_count_set": [1]},
        {"min_instance_type_count": 1, "max_instance_type_count": 6},
        {},
    ],
)
def test_a_scale_policy_that_is_shown_means_what_it_meant(
    devices: int, policy: dict[str, Any]
) -> None:
    """So that an exported job file does."""
    spec = parse_spec({"devices": devices, "scale_policy": policy})
    if devices == 1:
        assert spec.scale is None
        return
    assert spec.scale is not None
    again = parse_spec({"devices": devices, "scale_policy": policy_document(spec.scale)})
    assert again.scale == spec.scale
    assert not spec.scale.counts or spec.scale.counts[-1] == spec.scale.most


def test_a_device_of_endlessly_many_digits_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"there is no device '9+\.\.\. here: pick from cpu:0"):
        parse_move("9" * 5000, {"cpu:0": "cpu"})
