"""`fleet` and `node`: what they say, keep and refuse. Nothing listens here."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
from singularity_proxy.membership.certificates import make_key, make_request
from singularity_proxy.membership.identity import Identity, Membership
from singularity_proxy.membership.join_string import JoinString
from singularity_scheduler.cli.local import fleet, node
from singularity_scheduler.fleet.registry import Registry

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def made(state: str, capsys: Captured) -> str:
    """The state folder of a service with a fleet."""
    assert fleet.main(["init", "--state", state, "--address", "192.0.2.1", "--port", "9000"]) == 0
    said = capsys.readouterr().out
    assert "Start the scheduler service again" in said
    assert "port 9000" in said
    return state


def test_a_token_is_one_string_that_names_the_service_and_its_authority(
    made: str, capsys: Captured
) -> None:
    assert fleet.main(["token", "gpu-1", "--state", made]) == 0
    [line] = capsys.readouterr().out.splitlines()
    string = JoinString.parse(line)
    assert (string.address, string.port, string.node) == ("192.0.2.1", 9000, "gpu-1")
    assert string.pin == Registry(made).authority().pin
    Registry(made).book().check_token(string.token, "gpu-1", time.time())
    assert fleet.main(["token", "gpu-2", "--state", made, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "gpu-2"


def test_members_are_listed_and_withdrawn(made: str, capsys: Captured) -> None:
    assert fleet.main(["--state", made]) == 0
    assert capsys.readouterr().out.startswith("no machine has joined yet")
    registry = Registry(made)
    for name in ("a", "b"):
        token = registry.make_join_string(name).token
        registry.admit(token, name, make_request(make_key()))
    assert fleet.main(["withdraw", "b", "--state", made]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["a", "member"], ["b", "withdrawn"]]
    assert fleet.main(["--state", made, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["node"], one["state"]) for one in told] == [("a", "member"), ("b", "withdrawn")]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["token", "a b"], 64, "cannot be the name of a node"),
        (["withdraw", "c"], 66, "no node 'c' has joined"),
        (["withdraw"], 64, "'withdraw' is nothing that can be done"),
        (["dance"], 64, "'dance' is nothing that can be done"),
        (["init", "--address", "192.0.2.2"], 70, "has a fleet already"),
        (["init"], 64, "needs --address"),
        (["init", "--address", "h", "--store", "/no/such/folder"], 64, "is no folder here"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    made: str, capsys: Captured, words: list[str], code: int, sentence: str
) -> None:
    pin = Registry(made).authority().pin
    assert fleet.main([*words, "--state", made]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert Registry(made).authority().pin == pin


def test_without_a_fleet_there_are_no_tokens(state: str, capsys: Captured) -> None:
    for words in (["token", "a"], ["withdraw", "a"], []):
        assert fleet.main([*words, "--state", state]) == 66
        assert "`jupyter singularity fleet init` makes one" in capsys.readouterr().err
    assert not os.path.exists(state)


def test_a_wrong_join_string_is_not_repeated(
    state: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("singularity-join://secret@nowhere\n"))
    assert node.main(["join", "-", "--state", state]) == 64
    said = capsys.readouterr().err
    assert "this is not a whole join string" in said
    assert "secret" not in said
    assert not os.path.exists(state)


def test_who_has_joined_joins_again_only_when_told(state: str, capsys: Captured) -> None:
    where = Membership("gpu-1", "192.0.2.1", 9000)
    Identity(where, b"CA", b"CERT", b"KEY").save(state)
    string = JoinString("192.0.2.1", 9000, "gpu-2", "ab" * 32, "cd" * 32)
    assert node.main(["join", str(string), "--state", state]) == 70
    assert "has joined a fleet as 'gpu-1' already" in capsys.readouterr().err
    assert Identity.load(state).membership == where


def test_a_folder_that_cannot_be_written_costs_no_token(tmp_path: Path, capsys: Captured) -> None:
    string = JoinString("192.0.2.1", 9000, "gpu-2", "ab" * 32, "cd" * 32)
    (tmp_path / "file").write_text("")
    state = str(tmp_path / "file" / "state")
    assert node.main(["join", str(string), "--state", state]) == 64
    assert "the token is as good as before" in capsys.readouterr().err


def test_only_who_has_joined_can_run(state: str, capsys: Captured) -> None:
    assert node.main(["run", "--state", state, "--", "--NodeAgent.node=x"]) == 66
    assert "`jupyter singularity node join` joins one" in capsys.readouterr().err
    for words in (["run", "now"], ["join"], ["join", "x", "--", "--more"], ["walk"]):
        assert node.main([*words, "--state", state]) == 64


def test_run_becomes_the_agent_of_that_folder(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Identity(Membership("gpu-1", "192.0.2.1", 9000), b"CA", b"CERT", b"KEY").save(state)
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, argv, env: became.append(argv))
    assert node.main(["run", "--state", state, "--", "--NodeAgent.device_count=2"]) == 0
    words = [f"--NodeAgent.state_dir={state}", "--NodeAgent.device_count=2"]
    assert became[0][1:] == ["-m", "singularity_scheduler.agent", *words]
