"""`submit` up to the moment in which it would talk to the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from singularity_kernel.batch.submitting import submit
from singularity_kernel.batch.submitting.options import split_options
from singularity_kernel.batch.submitting.submission import Asked, described, passed_on
from singularity_kernel.batch.submitting.submit import SubmitApp, main
from singularity_kernel.kernel import submitting
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    SingularityError,
    TooMany,
    Unavailable,
    Unreached,
)
from support.batch_runs import write_notebook


def test_options_with_two_words_are_taken_out() -> None:
    words = [
        *("train.ipynb", "-p", "lr", "0.1", "--tier", "basic", "-r", "name", "-7"),
        *("--parameters", "epochs", "3", "-y", "a: 1", "--parameters-yaml=b: 2"),
        *("--env", "A=1=2", "--env=B", "-o", "out.ipynb", "--", "-p"),
    ]
    given, rest = split_options(words)
    assert rest == ["train.ipynb", "--tier", "basic", "-o", "out.ipynb", "--", "-p"]
    assert given.parameters() == {"a": 1, "b": 2, "lr": 0.1, "epochs": 3, "name": "-7"}
    assert given.variables({"B": "here"}) == {"A": "1=2", "B": "here"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-p", "lr"], "-p takes a name and a value: -p lr 0.1"),
        (["x.ipynb", "-r"], "-r takes a name and a text"),
        (["--parameters-file"], "--parameters-file takes a file"),
        (["--env"], "--env takes a variable"),
    ],
)
def test_an_option_without_its_values(words: list[str], sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        split_options(words)
    assert sentence in refused.value.message


def test_a_variable_that_is_not_set() -> None:
    given, _ = split_options(["--env", "DATA"])
    with pytest.raises(BadRequest, match="the variable DATA is not set here"):
        given.variables({})


def test_later_sources_go_before_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: file\nb: file\nc: file\nd: file")
    words = ["-r", "d", "raw", "-p", "c", "1", "-p", "d", "2", "-y", "b: yaml"]
    given, _ = split_options([*words, "-f", str(tmp_path / "p.yaml")])
    assert given.parameters() == {"a": "file", "b": "yaml", "c": 1, "d": "raw"}


def test_what_a_run_gets_of_the_environment() -> None:
    environ = {
        "HOME": "/home/ada",
        "LC_ALL": "C",
        "JUPYTERHUB_API_TOKEN": "secret",
        "SINGULARITY_API_URL": "http://x/",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "JUPYTER_DATA_DIR": "/d",
        "JUPYTER_TOKEN": "secret",
        "XDG_RUNTIME_DIR": "/run",
    }
    assert passed_on(environ) == {"HOME": "/home/ada", "LC_ALL": "C", "JUPYTER_DATA_DIR": "/d"}


def test_a_run_is_described_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "n.ipynb", "print(lr)", parameters="lr = 0.1")
    (tmp_path / "work").mkdir()
    given, _ = split_options(["-p", "lr", "2", "--env", "DATA=/data"])
    environ = {"PATH": "/bin", "TOKEN": "x"}
    parameters, variables = given.parameters(), given.variables(environ)
    asked = Asked("n.ipynb", "out.ipynb", "", "work", parameters, {**variables, "PATH": None})
    run, notes, wishes = described(asked, environ)
    assert (notes, wishes) == ([], {})
    assert run.pop("python").startswith("/")
    assert run == {
        "notebook": f"{tmp_path}/n.ipynb",
        "output": f"{tmp_path}/out.ipynb",
        "parameters": {"lr": 2},
        "kernel": None,
        "folder": f"{tmp_path}/work",
        "variables": {"PATH": "/bin", "DATA": "/data"},
        "timeout_s": None,
        "max_retries": None,
        "metadata": {},
    }


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ([], 64, "there is a word missing"),
        (["n.ipynb", "more"], 64, "one word too many"),
        (["nothing.ipynb"], 66, "there is no notebook"),
        (["."], 66, "is a folder and no notebook"),
        (["text.txt"], 66, "is not a notebook"),
        (["v0.json"], 66, "is not a notebook"),
        (["n.ipynb", "-p", "lrr", "1"], 64, "did you mean 'lr'?"),
        (["n.ipynb", "-p", "lr", "x"], 64, "takes a number"),
        (["n.ipynb", "-p", "lr"], 64, "-p takes a name and a value"),
        (["n.ipynb", "-f", "none.yaml"], 66, "cannot be read (No such file or directory)"),
        (["n.ipynb", "-k", "fortran"], 66, "there is no kernel 'fortran' here"),
        (["n.ipynb", "-k", "../x"], 66, "there is no kernel '../x' here"),
        (["n.ipynb", "-o", "n.ipynb"], 64, "would replace the notebook itself"),
        (["n.ipynb", "-o", "none/out.ipynb"], 73, "there is no folder"),
        (["n.ipynb", "-o", "folder"], 73, "is a folder"),
        (["n.ipynb", "--cwd", "none"], 66, "there is no folder"),
        (["n.ipynb", "--devices", "many"], 64, "devices"),
        (["n.ipynb", "--teir", "basic"], 64, "did you mean --tier?"),
        (["n.ipynb", "--tier", "gold"], 64, "unknown tier 'gold'"),
        (["n.ipynb", "--run-timeout", "0"], 64, "run_timeout"),
        (["n.ipynb", "--checkpoint-every-s", "-1"], 64, "checkpoint_every_s"),
        (["none.yml"], 66, "the job file none.yml cannot be read"),
        (["n.ipynb"], 69, "SINGULARITY_API_URL and JUPYTERHUB_API_TOKEN are not set"),
    ],
)
def test_what_is_refused_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "n.ipynb", "print(lr)", parameters="lr = 0.1")
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "v0.json").write_text(json.dumps({"cells": "none"}))
    (tmp_path / "folder").mkdir()
    assert main(words) == code
    said: Any = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("jupyter singularity submit: ")
    assert sentence in said.err


def test_help_tells_of_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("-p NAME VALUE", "-r NAME TEXT", "-f FILE", "-y YAML", "--env NAME[=VALUE]"):
        assert option in shown
    for option in ("-o", "-k", "--tier", "--devices", "--cwd", "--name", "--wait", "--follow"):
        assert f"\n{option}" in shown
    assert "Answer yes" not in shown


def test_a_configuration_file_is_generated(tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    assert main(["--generate-config", f"--config={path}"]) == 0
    assert "c.SubmitApp.tier" in path.read_text()
    assert SubmitApp.clear_instance() is None


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("of_words", "nothing was submitted"),
        ("client", "nothing was submitted"),
        ("submit", "the run may have been submitted: jupyter singularity ls shows it"),
        ("wait", "the run goes on; jupyter singularity logs -f 0123 follows it"),
    ],
)
def test_ctrl_c_says_what_it_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
    sentence: str,
) -> None:
    write_notebook(tmp_path / "n.ipynb", "print(1)")

    class Client:
        async def submit(self, **_: Any) -> dict[str, Any]:
            if where == "submit":
                raise KeyboardInterrupt
            return {"id": "0123", "state": "queued"}

        async def wait(self, *_: Any, **__: Any) -> dict[str, Any]:
            raise KeyboardInterrupt

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(SubmitApp, "client", lambda self, timeout=None: Client())
    if where == "of_words":
        monkeypatch.setattr(submit, where, interrupted)
    if where == "client":
        monkeypatch.setattr(SubmitApp, where, interrupted)
    assert main([str(tmp_path / "n.ipynb"), "--wait"]) == 130
    assert capsys.readouterr().err.endswith(f"jupyter singularity submit: {sentence}\n")


def test_limits_said_in_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "n.ipynb", "print(1)")
    line = "n.ipynb --run-timeout 60 --max-retries 2 --checkpoint-every-s 30"
    request, _, made = submitting._request(line, None)
    assert made is None
    assert request["checkpoint_every_s"] == 30
    assert (request["run"]["timeout_s"], request["run"]["max_retries"]) == (60, 2)
    with pytest.raises(UsageError, match=r"--max-retries.*; nothing was started"):
        submitting._request("n.ipynb --max-retries some", None)


LOST = Unreached("the scheduler service was lost before it answered")
AWAY = Unavailable("the scheduler service is away, so 'submit' was not done")
FULL = Conflict("ada has 9 queued runs already, and more are not taken; nothing was started")


@pytest.mark.parametrize(
    ("answers", "told", "kept"),
    [
        ([FULL], FULL, False),
        ([AWAY] * 3, AWAY, False),
        ([AWAY, TooMany("too many"), AWAY], AWAY, False),
        ([LOST] * 3, LOST, True),
        ([LOST, AWAY, AWAY], LOST, True),  # the first one may have started it
        ([LOST, FULL], FULL, False),  # the key is looked for first: there is no such run
    ],
)
def test_only_a_lost_answer_may_have_started_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[SingularityError],
    told: SingularityError,
    kept: bool,
) -> None:
    def ask(*_: Any) -> Any:
        raise left.pop(0)

    left = list(answers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submitting, "RETRY_S", 0.0)
    monkeypatch.setattr(submitting, "_ask", ask)
    with pytest.raises(type(told)) as raised:
        submitting.submit("", "print(1)", "/nowhere")
    assert not left
    assert told.message in raised.value.message
    assert ("may have been started" in raised.value.message) is kept
    assert bool(list(tmp_path.glob("cell-*.ipynb"))) is kept


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_answer_is_not_forgotten_by_a_later_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lost: bool
) -> None:
    write_notebook(tmp_path / "n.ipynb", "print(1)")
    first = [LOST] if lost else []

    class Client:
        async def submit(self, **_: Any) -> dict[str, Any]:
            raise first.pop() if first else AWAY

    monkeypatch.setattr(SubmitApp, "client", lambda self, timeout=None: Client())
    monkeypatch.setattr(submit, "POLL_S", 0.01)
    monkeypatch.setattr(submit, "RETRY_S", 0.1)
    assert main([str(tmp_path / "n.ipynb")]) != 0
    assert (LOST if lost else AWAY).message in capsys.readouterr().err
