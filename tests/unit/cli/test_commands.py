"""What the commands ask and print; the service is a double."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timezone

import pytest
from singularity_proxy.errors import Conflict
from singularity_scheduler.cli.framework.app import unknown_command
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.framework.commands import COMMANDS
from singularity_scheduler.cli.look import history, logs, ls, nodes, show, why
from singularity_scheduler.cli.look.board import STAYS_S, Board
from singularity_scheduler.cli.look.logs import how_it_ended, keep_lines, last_lines
from singularity_scheduler.cli.moves import checkpoint, migrate, resume
from singularity_scheduler.cli.moves.migrate import target
from singularity_scheduler.cli.sessions import cancel
from singularity_scheduler.cli.sessions.verbs import APPS
from singularity_scheduler.client.verbs import VERBS
from singularity_scheduler.client.words import MEANT, find_nearest
from support.cli_double import Double, session

Captured = pytest.CaptureFixture[str]
FIRST, SECOND = "000100000000", "000200000000"


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    failed = session(3, state="failed", process_state="failed", kind="batch")
    made = Double(session(1), session(2), failed)
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: made)
    return made


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("stop", "cancel"),
        ("kill", "cancel"),
        ("status", "show"),
        ("LS", "ls"),
        ("list", "ls"),
        ("Suspned", "suspend"),
        ("docter", "doctor"),
        ("show", "show"),
        ("é", None),
        ("%s", None),
    ],
)
def test_who_knows_other_programs_is_told_what_does_it_here(word: str, meant: str | None) -> None:
    assert find_nearest(word, COMMANDS) == meant
    if meant != word:
        sentence = unknown_command(word)
        assert sentence.startswith(f"there is no command '{word}'; ")
        assert sentence.endswith(f"did you mean '{meant}'?") == (meant is not None)


def test_words_of_other_programs_lead_to_commands_or_verbs() -> None:
    known = {*COMMANDS, *VERBS}
    assert not [word for word, meant in MEANT.items() if not known.issuperset(meant)]
    assert not [word for word in MEANT if word in COMMANDS and word in VERBS]


# ---- ls ------------------------------------------------------------------------------------------


def test_ls_is_newest_first_and_active_only(double: Double, capsys: Captured) -> None:
    assert ls.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", SECOND, FIRST]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], {"state": "active", "kind": None, "user": None, "limit": 100}),
        (["-a"], {"state": None, "kind": None, "user": None, "limit": 100}),
        (["--all", "-n", "5"], {"state": None, "kind": None, "user": None, "limit": 5}),
        (["--state", "failed"], {"state": "failed", "kind": None, "user": None, "limit": 100}),
        (
            ["--kind=batch", "--user", "ada"],
            {"state": "active", "kind": "batch", "user": "ada", "limit": 100},
        ),
    ],
)
def test_what_ls_asks(
    double: Double, capsys: Captured, words: list[str], asked: dict[str, object]
) -> None:
    assert ls.main(words) == 0
    assert double.calls == [("sessions_page", {**asked, "cursor": None})]


def test_ls_json_is_an_array_of_documents(double: Double, capsys: Captured) -> None:
    assert ls.main(["--all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["id"] for s in found] == ["000300000000", SECOND, FIRST]
    assert found[2] == session(1)
    assert ls.main(["--user", "nobody", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_ls_says_when_there_are_more(double: Double, capsys: Captured) -> None:
    assert ls.main(["--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == "only the 1 newest are shown; --limit 0 shows all\n"
    assert ls.main(["--limit", "1", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_ls_takes_page_after_page() -> None:
    double = Double(*(session(n) for n in range(1, 2501)))
    found, more = asyncio.run(ls.newest(double, 0))  # type: ignore[arg-type]
    assert (len(found), more) == (2500, False)
    assert [call[1]["limit"] for call in double.calls] == [1000, 1000, 1000]
    found, more = asyncio.run(ls.newest(double, 1500))  # type: ignore[arg-type]
    assert (len({s["id"] for s in found}), more) == (1500, True)


def test_ls_of_nothing_is_a_sentence(double: Double, capsys: Captured) -> None:
    assert ls.main(["--user", "nobody"]) == 0
    assert capsys.readouterr().out == "there is no active session like that\n"


# ---- one session ---------------------------------------------------------------------------------


def test_show_why_history(double: Double, capsys: Captured) -> None:
    assert show.main(["nb1.ipynb"]) == 0
    assert capsys.readouterr().out.startswith(f"Id        {FIRST}\n")
    assert show.main(["0001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == session(1)
    assert why.main(["0001"]) == 0
    assert capsys.readouterr().out == "it waits for \ufffd[31mada\n"
    assert why.main(["0001", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"] == {"place": 1}
    assert history.main(["0001", "-n", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rule"] == "process.live"
    assert double.calls[-1] == ("history", FIRST, 5)
    assert history.main(["0001", "--limit", "0"]) == 64


@pytest.mark.parametrize(
    ("main", "words", "call"),
    [
        (APPS["park"].launch, [], ("park", FIRST)),
        (APPS["preempt"].launch, [], ("preempt", FIRST)),
        (resume.main, [], ("resume", FIRST)),
        (migrate.main, [], ("migrate", FIRST, None)),
        (migrate.main, ["--device", "1"], ("migrate", FIRST, 1)),
        (migrate.main, ["--device=cpu:1"], ("migrate", FIRST, "cpu:1")),
        (checkpoint.main, [], ("checkpoint", FIRST, None)),
        (checkpoint.main, ["before"], ("checkpoint", FIRST, "before")),
    ],
)
def test_verbs(
    double: Double, capsys: Captured, main: object, words: list[str], call: tuple[object, ...]
) -> None:
    assert main(["nb1.ipynb", *words]) == 0  # type: ignore[operator]
    assert double.calls[-1] == call
    assert capsys.readouterr().out.startswith(f"{FIRST} (nb1.ipynb)")
    assert main([FIRST, *words, "--json"]) == 0  # type: ignore[operator]
    assert json.loads(capsys.readouterr().out) == session(1)


def test_several_devices_of_migrate() -> None:
    assert target(" cpu:1, cpu:2 ") == ["cpu:1", "cpu:2"]
    assert target("") is None


def test_nodes(double: Double, capsys: Captured) -> None:
    double.cluster_document["nodes"] = [{"id": "a", "connected": True}]
    assert nodes.main([]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["a", "yes", "none"]
    assert err.startswith("1 of 1 node connected")
    assert nodes.main(["--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (double.cluster_document, "")


# ---- cancel --------------------------------------------------------------------------------------


def ended(double: Double) -> list[str]:
    return [call[1] for call in double.calls if call[0] == "end"]


def test_one_session_is_ended_without_a_question(double: Double, capsys: Captured) -> None:
    assert cancel.main(["nb1.ipynb"]) == 0
    assert ended(double) == [FIRST]
    assert capsys.readouterr().out == f"{FIRST} (nb1.ipynb) is cancelled: ended by ada\n"
    assert cancel.main(["0002", "0002", "--json"]) == 0
    assert [s["id"] for s in json.loads(capsys.readouterr().out)] == [SECOND]


class Stdin:
    def __init__(self, answer: str) -> None:
        self.answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "code", "count"), [("y\n", 0, 2), ("Yes\n", 0, 2), ("\n", 130, 0), ("", 130, 0)]
)
def test_several_are_asked_about(
    double: Double,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    count: int,
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(answer))
    assert cancel.main(["0001", "0002"]) == code
    assert len(ended(double)) == count
    err = capsys.readouterr().err
    assert f"  {FIRST} (nb1.ipynb)\n" in err
    assert "End 2 sessions? [y/N] " in err
    assert ("nothing was ended" in err) == (count == 0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["0001", "0002"], "2 sessions would be ended and nobody can be asked here"),
        (["--all"], "2 sessions would be ended and nobody can be asked here"),
        (["0001", "--all"], "give sessions or --all, not both"),
        (["0001", "--user", "ada"], "--user only goes with --all"),
        (["--all", "--state", "x"], "there is no state 'x'"),
        (["--all", "--kind", "x"], "there is no kind 'x'"),
        (["--grace", "700", "0001"], "--grace must be a number of seconds from 0 to 600"),
    ],
)
def test_what_cancel_does_not_do(
    double: Double,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    class Pipe(Stdin):
        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Pipe(""))
    assert cancel.main(words) == 64
    assert sentence in capsys.readouterr().err
    assert ended(double) == []


def test_an_unknown_one_keeps_the_others(double: Double, capsys: Captured) -> None:
    assert cancel.main([FIRST, "ffffffffffff", "--yes"]) == 66
    assert ended(double) == []


def test_a_refused_one_does_not_keep_the_others(double: Double, capsys: Captured) -> None:
    double.refusals[FIRST] = Conflict("not now")
    assert cancel.main([FIRST, SECOND, "-y", "--json"]) == 70
    out, err = capsys.readouterr()
    assert [s["id"] for s in json.loads(out)] == [SECOND]
    assert json.loads(err)["detail"] == "not now"


def test_all_is_of_one_user(double: Double, capsys: Captured) -> None:
    double.known[SECOND]["user"] = "bob"
    assert cancel.main(["--all", "--yes"]) == 64
    assert "2 sessions of 2 users (ada, bob)" in capsys.readouterr().err
    assert cancel.main(["--all", "--user", "bob", "--yes"]) == 0
    assert ended(double) == [SECOND]
    assert cancel.main(["--all", "--user", "eve", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("there is no active session like that\n")


# ---- logs ----------------------------------------------------------------------------------------

PARTS = ["one\ntw", "o\nthr", "ee\rthree\n", "four"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "one\ntwo\nthree\rthree\nfour"),
        (["--tail", "2"], "three\rthree\nfour"),
        (["--tail", "0"], ""),
        (["--tail", "9"], "one\ntwo\nthree\rthree\nfour"),
    ],
)
@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_logs(
    double: Double, capsys: Captured, words: list[str], text: str, follow: list[str]
) -> None:
    double.log_parts = PARTS
    assert logs.main(["000300000000", *words, *follow]) == (1 if follow else 0)
    assert capsys.readouterr().out == text


def test_the_tail_is_followed_from_where_it_ended(double: Double, capsys: Captured) -> None:
    double.log_parts, double.printed_later = ["ein\nzwölf\n"], ["drei\n", "fünf"]
    assert logs.main(["000300000000", "-f", "--tail", "1"]) == 1
    assert capsys.readouterr().out == "zwölf\ndrei\nfünf"
    offsets = [call[2:] for call in double.calls if call[0] == "log"]
    assert offsets == [(0, False), (len("ein\nzwölf\n".encode()), True)]


def test_logs_of_nothing_say_so(double: Double, capsys: Captured) -> None:
    assert logs.main([FIRST]) == 0
    out, err = capsys.readouterr()
    told = f"nothing was printed so far; {FIRST} (nb1.ipynb) is ready: its process runs\n"
    assert (out, err) == ("", told)
    double.known[FIRST] |= {"process_state": "queued", "state": "queued", "reason": "place 2"}
    assert logs.main(["-f", FIRST]) == 1
    assert capsys.readouterr().err == f"{FIRST} (nb1.ipynb) is queued: place 2\n"


def test_logs_as_json(double: Double, capsys: Captured) -> None:
    double.log_parts = PARTS
    assert logs.main(["000300000000", "--json", "--tail=1"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "session": "000300000000",
        "state": "failed",
        "exit_code": None,
        "text": "four",
    }


def test_only_a_completed_session_is_a_success() -> None:
    assert how_it_ended({"process_state": "completed"}) == 0
    assert how_it_ended({"process_state": "cancelled"}) == 1


def test_last_lines_are_kept_over_parts() -> None:
    from collections import deque

    kept: deque[str] = deque(maxlen=3)
    for part in ["a\nb", "b\nc\nd\n", "e"]:
        keep_lines(kept, part)
    assert last_lines("".join(kept), 2) == "d\ne"
    keep_lines(kept, "")
    assert last_lines("".join(kept), 3) == "c\nd\ne"


# ---- top -----------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


def test_the_board_follows_the_events() -> None:
    board = Board()
    gone = session(9, state="failed", process_state="failed")
    assert board.apply({"event": "snapshot", "data": {"sessions": [session(1), gone]}}, 0.0)
    assert list(board.sessions) == [FIRST]
    waiting = session(2, state="waiting", queue={"place": 2, "ahead": 1})
    assert board.apply({"event": "session", "data": waiting}, 1.0)
    assert board.apply({"event": "queue", "data": {"places": {SECOND: 1, "x": 2}}}, 1.0)
    assert board.sessions[SECOND]["queue"] == {"place": 1, "ahead": 0}
    assert not board.apply({"event": "queue", "data": {"places": {SECOND: 1}}}, 1.0)
    assert not board.apply({"event": "something new", "data": {}}, 1.0)
    assert [s["id"] for s in board.snapshot(NOW)["sessions"]] == [SECOND, FIRST]
    assert board.snapshot(NOW)["at"] == "2026-11-21T12:00:00.000+00:00"


def test_what_ended_stays_a_while() -> None:
    board = Board()
    board.apply({"event": "session", "data": session(1, process_state="completed")}, 10.0)
    board.forget_ended(10.0 + STAYS_S - 1)
    assert FIRST in board.sessions
    board.forget_ended(10.0 + STAYS_S)
    assert board.sessions == {}


@pytest.mark.parametrize("height", [12, 24, 50])
def test_the_screen_fits(height: int) -> None:
    import io

    from rich.console import Console

    board = Board()
    sessions = [session(n) for n in range(1, 100)]
    board.apply({"event": "snapshot", "data": {"sessions": sessions}}, 0.0)
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=True).print(board.screen(NOW, 100, height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert any("more sessions" in line for line in lines)
