"""Command lines that are wrong are one sentence with the right exit code, and nothing happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy.errors import NoSpace
from singularity_scheduler.cli import main
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.look import history, logs, ls, show
from singularity_scheduler.cli.sessions import cancel
from singularity_scheduler.cli.sessions.verbs import APPS
from support.cli_double import Double, session

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double(session(1), session(2))
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: made)
    return made


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--limot", "3"], "there is no option --limot; did you mean --limit?"),
        (["--limit"], "the option --limit needs a value"),
        (["--limit", "many"], "--limit: expected an int, not the str 'many'."),
        (["--limit=-1"], "--limit must be a number of sessions, or 0 for all of them"),
        (["-x"], "there is no option -x; --help lists them"),
        (["-n3"], "there is no option -n3; did you mean -n?"),
        (["--kind", "both"], "--kind: expected any of"),
        (["--state", "awake"], "there is no state 'awake'; it is one of active, queued"),
        (["word"], "'word' is one word too many: jupyter singularity ls"),
        (["--LsApp.limot=3"], "there is no option --LsApp.limot; did you mean --LsApp.limit?"),
        (["--Other.limit=3"], "there is no option --Other.limit; did you mean --limit?"),
        (["--url", "hub:8000"], "the address 'hub:8000' must begin with http:// or https://"),
        (["--url", "http://[bad"], "the address 'http://[bad' is not one of a service"),
        (["--url", "http://127.0.0.1:99999/"], "the address 'http://127.0.0.1:99999/' is not"),
        (["--url", "http://"], "the address 'http://' is not one of a service"),
        (["--url", "http://a b/"], "the address 'http://a b/' is not one of a service"),
        (["--timeout=3"], "there is no option --timeout; "),
        (["--ServiceApp.timeout=0"], "the timeout must be more than 0 seconds"),
    ],
)
def test_wrong_lines(double: Double, capsys: Captured, words: list[str], sentence: str) -> None:
    assert ls.main(words) == 64
    out, err = capsys.readouterr()
    assert err.startswith(f"jupyter singularity ls: {sentence}")
    assert (out, err.count("\n")) == ("", 1)
    assert double.calls == []


def test_with_json_a_refusal_is_a_problem_document(capsys: Captured) -> None:
    assert ls.main(["--json", "--limot", "3"]) == 64
    out, err = capsys.readouterr()
    problem = json.loads(err)
    assert out == ""
    assert problem["status"] == 400
    assert problem["reason"] == "bad_request"
    assert problem["error"] == "BadRequest"
    assert problem["type"] == "urn:jupyter-singularity:bad_request"
    assert "--limot" in problem["detail"]


def test_the_number_of_words(double: Double, capsys: Captured) -> None:
    assert show.main([]) == 64
    assert "there is a word missing: jupyter singularity show SESSION" in capsys.readouterr().err
    assert APPS["park"].launch(["a", "b"]) == 64
    assert "'b' is one word too many" in capsys.readouterr().err
    assert cancel.main([]) == 64


def test_options_stand_anywhere(double: Double, capsys: Captured) -> None:
    assert cancel.main(["0001", "--yes", "0002", "--reason", "late", "--grace=1"]) == 0
    ends = [call for call in double.calls if call[0] == "end"]
    assert ends == [("end", "000100000000", "late", 1.0), ("end", "000200000000", "late", 1.0)]


def test_words_behind_two_dashes_are_no_options(double: Double, capsys: Captured) -> None:
    assert show.main(["--", "--json"]) == 66
    assert "no active session is called '--json'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "main", [ls.main, show.main, APPS["park"].launch, cancel.main, logs.main, history.main]
)
def test_every_command_has_help_and_shows_its_configuration(
    main: Callable[[list[str]], int],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert main(["--help"]) == 0
    assert "--json" in capsys.readouterr().out
    assert main(["--help-all"]) == 0
    assert "--ServiceApp.timeout=<Float>" in capsys.readouterr().out
    assert main(["--url", "http://a/", "--show-config"]) == 0
    assert "'http://a/'" in capsys.readouterr().out


def test_configuration_files(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    assert ls.main(["--generate-config"]) == 0
    own = tmp_path / "jupyter_singularity_ls_config.py"
    assert "# c.LsApp.limit = 100" in own.read_text()
    own.write_text("c.LsApp.limit = 7\n")
    shared = tmp_path / "jupyter_singularity_config.py"
    shared.write_text("c.ServiceApp.url = 'http://hub/'\nc.LsApp.limit = 3\n")
    capsys.readouterr()
    assert ls.main(["--show-config-json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ServiceApp"]["url"] == "http://hub/"
    assert shown["LsApp"]["limit"] == 7
    assert ls.main(["--limit", "9", "--show-config-json"]) == 0
    assert json.loads(capsys.readouterr().out)["LsApp"]["limit"] == 9


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("c.LsApp.limit = 'x'", 64, "--limit: expected an int"),
        ("this is no python", 64, "cannot be used (SyntaxError"),
        (None, 66, "there is no configuration file"),
    ],
)
def test_wrong_configuration_files(
    capsys: Captured, tmp_path: Path, text: str | None, code: int, sentence: str
) -> None:
    path = tmp_path / "my_config.py"
    if text is not None:
        path.write_text(text)
    assert ls.main(["--config", str(path)]) == code
    err = capsys.readouterr().err
    assert sentence in err
    assert err.splitlines()[-1].startswith("jupyter singularity ls: ")
    assert "Traceback" not in err


def test_missing_settings(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ls.main([]) == 69
    assert "SINGULARITY_API_URL and JUPYTERHUB_API_TOKEN are not set" in capsys.readouterr().err
    monkeypatch.setenv("SINGULARITY_API_URL", "http://127.0.0.1:1/")
    assert ls.main([]) == 69
    assert "JUPYTERHUB_API_TOKEN is not set" in capsys.readouterr().err
    monkeypatch.setenv("SINGULARITY_SESSION", "3f9c2a7b10de")
    assert ls.main([]) == 69
    assert "use %singularity in a cell" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "token", "sentence"),
    [
        ("hub:8000", "t", "the address 'hub:8000' must begin with http:// or https://"),
        ("http://127.0.0.1:1/", "a\tb", "what JUPYTERHUB_API_TOKEN holds is not a token"),
        ("http://127.0.0.1:1/", "t\u00f6ken", "what JUPYTERHUB_API_TOKEN holds is not a token"),
    ],
)
def test_settings_of_the_environment_that_are_wrong(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, url: str, token: str, sentence: str
) -> None:
    monkeypatch.setenv("SINGULARITY_API_URL", url)
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", token)
    assert ls.main([]) == 64
    assert capsys.readouterr().err == f"jupyter singularity ls: {sentence}\n"


def test_ctrl_c_while_a_command_is_loaded(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from singularity_scheduler import cli

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_command", interrupted)
    assert main(["ls"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("content", "code", "sentence"),
    [
        (None, 66, "cannot be read (No such file or directory)"),
        (b"", 64, "must hold a token in its first line"),
        (b"two words\n", 64, "must hold a token in its first line"),
        (b"\xff\xfe", 64, "does not hold a token"),
    ],
)
def test_token_files(
    capsys: Captured, tmp_path: Path, content: bytes | None, code: int, sentence: str
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    assert ls.main(["--url", "http://127.0.0.1:1/", "--token-file", str(path)]) == code
    assert sentence in capsys.readouterr().err


def test_a_token_file_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n# of ada\n")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "other")
    assert ls.LsApp(token_file=str(path)).token() == "secret"
    assert ls.LsApp().token() == "other"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lls"], "there is no command 'lls'; did you mean 'ls'?"),
        (["frobnicate"], "there is no command 'frobnicate'; it knows submit, run, ls"),
        (["--debug", "ls"], "options stand behind the command: jupyter singularity ls ..."),
        (["--jason"], "there is no option --jason; --help lists them"),
    ],
)
def test_the_base_command(capsys: Captured, words: list[str], sentence: str) -> None:
    assert main(words) == 64
    assert f"jupyter singularity: {sentence}" in capsys.readouterr().err


def test_help_of_a_command(capsys: Captured) -> None:
    assert main(["help", "ls"]) == 0
    assert "List your sessions" in capsys.readouterr().out
    assert main(["--version"]) == 0


def test_a_package_that_is_missing_is_named(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from singularity_scheduler import cli

    monkeypatch.setitem(cli.COMMANDS, "ls", ("no_such_package.ls", ""))
    assert main(["ls"]) == 70
    assert "no_such_package is not installed" in capsys.readouterr().err


def test_an_error_of_a_module_is_no_traceback(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, timeout: float | None = None) -> None:
        raise NoSpace("the disk is full; nothing was changed")

    monkeypatch.setattr(ServiceApp, "client", full)
    assert main(["ls"]) == 70
    assert capsys.readouterr().err == (
        "jupyter singularity ls: the disk is full; nothing was changed\n"
    )


def test_an_existing_configuration_file_is_not_replaced_unasked(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    own = tmp_path / "jupyter_singularity_ls_config.py"
    own.write_text("# mine\n")
    assert ls.main(["--generate-config"]) == 64
    assert "nothing was written: --yes replaces it" in capsys.readouterr().err
    assert own.read_text() == "# mine\n"
    assert ls.main(["--generate-config", "--yes"]) == 0
    assert own.read_text() != "# mine\n"
    (tmp_path / "file").write_text("")
    assert ls.main(["--generate-config", "--config", f"{tmp_path}/file/x.py"]) == 73
