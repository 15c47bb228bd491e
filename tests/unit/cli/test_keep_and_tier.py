"""`keep`, `tier` and `priority`; what is kept and planned, and what devices do, in the views."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from singularity_proxy.errors import BadRequest, Forbidden
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.look import show
from singularity_scheduler.cli.look.board import Board
from singularity_scheduler.cli.look.views import session_card, session_table
from singularity_scheduler.cli.sessions import keep
from singularity_scheduler.cli.sessions.verbs import APPS
from singularity_scheduler.client.words import kept, left, parse_duration, plan
from support.cli_double import Double, session

Captured = pytest.CaptureFixture[str]

FIRST = session(1)["id"]
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
LATER = (NOW + timedelta(hours=2)).isoformat()
FIGURE = {
    "virtual_device": 0,
    "device": "cpu:1",
    "memory_used_bytes": 1 << 30,
    "memory_total_bytes": 4 << 30,
    "utilisation_percent": 36.6,
}


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double(session(1))
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=60.0: made)
    return made


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("15 min", 900),
        ("15m", 900),
        ("1.5H", 5400),
        ("2d", 172800),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1h", "2 weeks", "1h30", "h", "1e3"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(BadRequest, match="write 90s, 15min, 2h or 1d"):
        parse_duration(text)


def test_what_is_left() -> None:
    assert left(LATER, NOW) == 7200
    assert left(NOW.isoformat(), NOW + timedelta(seconds=5)) == 0
    assert left(None, NOW) is None


def test_kept_and_planned_in_words() -> None:
    assert kept({"keep_until": LATER}, NOW).startswith("kept alive for another 2.0 h: ")
    assert kept({"keep_until": None}, NOW).startswith("not kept alive")
    assert kept({"keep_until": NOW.isoformat()}, NOW).startswith("not kept alive")
    planned = {"what": "park", "at": LATER, "rule": "idle.reclaim", "why": "no call"}
    assert plan({"planned": planned}, NOW) == "park in 2.0 h: no call"
    assert plan({"planned": {**planned, "at": None}}, NOW) == (
        "park as soon as it can be done: no call"
    )
    assert plan({"planned": None}, NOW) == plan({}, NOW) == ""


@pytest.mark.parametrize(
    ("words", "seconds"), [([], 3600), (["--for", "2h"], 7200), (["--for=0"], 0)]
)
def test_keep(double: Double, capsys: Captured, words: list[str], seconds: float) -> None:
    until = (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()
    double.becomes = [{"keep_until": until if seconds else None}]
    assert keep.main(["nb1.ipynb", *words]) == 0
    assert double.calls[-1] == ("keep", FIRST, seconds)
    said = capsys.readouterr().out
    assert said.startswith(f"{FIRST} (nb1.ipynb) is {'kept' if seconds else 'not kept'} alive")
    assert keep.main([FIRST, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == FIRST


def test_keep_refuses_before_it_asks(double: Double, capsys: Captured) -> None:
    assert keep.main(["nb1.ipynb", "--for", "ever"]) != 0
    assert "'ever' is no length of time" in capsys.readouterr().err
    assert not [call for call in double.calls if call[0] == "keep"]


def test_tier_and_priority(double: Double, capsys: Captured) -> None:
    double.becomes = [{"tier": "basic", "priority": "medium"}]
    assert APPS["tier"].launch(["nb1.ipynb", "basic"]) == 0
    assert double.calls[-1] == ("tier", FIRST, "basic")
    assert capsys.readouterr().out.endswith("(tier basic, priority medium)\n")
    assert APPS["priority"].launch(["nb1.ipynb", "high", "--json"]) == 0
    assert double.calls[-1] == ("priority", FIRST, "high")
    assert APPS["tier"].launch(["nb1.ipynb"]) != 0
    double.refusals[FIRST] = Forbidden("the tier premium is not open to ada")
    capsys.readouterr()
    assert APPS["tier"].launch(["nb1.ipynb", "premium"]) != 0
    assert "the tier premium is not open to ada" in capsys.readouterr().err


def test_show_says_what_is_kept_planned_and_used(double: Double, capsys: Captured) -> None:
    now = datetime.now(timezone.utc)
    double.known[FIRST] |= {
        "devices": ["cpu:1"],
        "keep_until": (now + timedelta(hours=1)).isoformat(),
        "unused_since": (now - timedelta(minutes=5)).isoformat(),
        "planned": {"what": "park", "at": None, "rule": "idle.reclaim", "why": "it is idle"},
    }
    double.figures = [FIGURE]
    assert show.main(["nb1.ipynb"]) == 0
    out = capsys.readouterr().out
    assert "cuda:0 -> cpu:1 (1 GiB of 4 GiB, 37 % busy)" in out
    assert "park as soon as it can be done: it is idle" in out
    assert "its devices unused for 5 min" in out
    assert "kept alive for another" in out
    assert show.main(["nb1.ipynb", "--json"]) == 0
    assert "figures" not in json.loads(capsys.readouterr().out)


def test_devices_without_figures_are_only_named() -> None:
    card = dict(session_card({**session(1), "devices": ["cpu:1"]}, NOW).rows)
    assert card["Devices"] == "cuda:0 -> cpu:1"
    empty = {**FIGURE, "memory_used_bytes": None, "utilisation_percent": None}
    card = dict(session_card({**session(1), "devices": ["cpu:1"], "figures": [empty]}, NOW).rows)
    assert card["Devices"] == "cuda:0 -> cpu:1"


def test_the_list_says_what_is_kept() -> None:
    table = session_table([session(1, keep_until=LATER), session(2)], NOW)
    assert [row[4] for row in table.rows] == ["ready, kept", "ready"]


def test_the_board_shows_what_devices_do() -> None:
    board = Board()
    one = session(1, state="running", devices=["cpu:1"])
    board.apply({"event": "snapshot", "data": {"sessions": [one]}}, 0.0)
    told = {"session": FIRST, "devices": [FIGURE]}
    assert board.apply({"event": "devices", "data": told}, 0.0)
    assert not board.apply({"event": "devices", "data": {**told, "session": "other"}}, 0.0)
    assert board.ordered() == [{**one, "figures": [FIGURE]}]
    board.apply({"event": "session", "data": one}, 0.0)
    assert board.ordered()[0]["figures"] == [FIGURE], "a change of the session is none of these"
    assert any("cpu:1 1 GiB 37 %" in cell for cell in session_table(board.ordered(), NOW).rows[0])
    board.apply({"event": "devices", "data": {**told, "devices": []}}, 0.0)
    assert board.ordered() == [one]
