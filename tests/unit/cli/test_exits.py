"""The one table of exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from singularity_proxy import errors
from singularity_scheduler.cli.framework import exits, output

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/command-line.md"


def constants() -> dict[str, int]:
    return {name: value for name, value in vars(exits).items() if name.isupper() and name[0] != "M"}


def test_every_code_has_a_meaning_and_they_differ() -> None:
    codes = constants()
    assert sorted(codes.values()) == sorted(exits.MEANINGS)
    assert len(set(codes.values())) == len(codes)


def test_the_documentation_shows_the_table() -> None:
    text = PAGE.read_text()
    for code, meaning in exits.MEANINGS.items():
        assert f"| {code} | {meaning} |" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BadRequest, 64),
        (errors.NotFound, 66),
        (errors.Unavailable, 69),
        (errors.Forbidden, 77),
        (exits.CannotWrite, 73),
        (errors.Conflict, 70),
        (errors.StaleEpoch, 70),
        (errors.NoSpace, 70),
        (errors.Unsupported, 70),
        (errors.ProxyFailed, 70),
        (errors.SingularityError, 70),
    ],
)
def test_codes_of_errors(error: type[errors.SingularityError], code: int) -> None:
    assert exits.code_of(error("no")) == code


def test_a_refusal_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.Conflict("it is called \x1b]0;x\x07\nroot: done")
    output.say("jupyter singularity park", error, as_json=False)
    said = capsys.readouterr().err
    mark = "\N{REPLACEMENT CHARACTER}"
    assert said == f"jupyter singularity park: it is called {mark}]0;x{mark} root: done\n"
    output.say("", error, as_json=True)
    assert json.loads(capsys.readouterr().err)["detail"] == error.message
