"""The commands that take sessions into the store and out of it; the service is a double."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from singularity_scheduler.cli.framework.base import ServiceApp
from singularity_scheduler.cli.framework.completing_words import earlier_words
from singularity_scheduler.cli.look import checkpoints
from singularity_scheduler.cli.look.board import Board
from singularity_scheduler.cli.look.views import (
    cannot_store,
    checkpoint_table,
    progress_text,
    speed,
)
from singularity_scheduler.cli.moves import (
    checkpoint,
    fork,
    migrate,
    moving,
    reopen,
    restore,
    resume,
    suspend,
)
from singularity_scheduler.cli.moves.moving import checkpoint_choices, loss_text, under_way
from support.cli_double import Double, session

Captured = pytest.CaptureFixture[str]
FIRST, SECOND = "000100000000", "000200000000"

LOSS = {
    "level": "process",
    "back": ["its process", "2 files"],
    "lost": ["1 open socket"],
    "rolled_back": True,
    "hashes_checked": 12,
    "checkpoint": "k1",
    "at": "2026-11-21T10:00:00+00:00",
}
AWAY = {"state": "suspended", "process_state": "suspended", "reason": "it is in the store"}


def stored(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"20261121T10000{number}-abcdef",
        "name": "",
        "at": f"2026-11-21T10:00:0{number}.000+00:00",
        "level": "process",
        "bytes": 3 << 30,
        "stored_bytes": 1 << 20,
        "sent_bytes": 5,
        "incarnation": 1,
        "reason": "",
        "damaged": None,
        "restorable": True,
        **changes,
    }


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double(session(1, checkpoints=2), session(2, checkpoints=0))
    made.stored[FIRST] = [
        stored(2, name="before fine tuning"),
        stored(1, level="device", reason="criu is missing", damaged="chunk ab is wrong"),
    ]
    monkeypatch.setattr(ServiceApp, "client", lambda self, timeout=None: made)
    monkeypatch.setattr(moving, "LOOK_S", 0.01)
    return made


@pytest.mark.parametrize(
    ("main", "words", "becomes", "call", "code"),
    [
        (suspend.main, [], AWAY, ("suspend", FIRST), 0),
        (suspend.main, ["lunch time"], AWAY, ("suspend", FIRST, "lunch time"), 0),
        (suspend.main, [], {"reason": "could not be suspended"}, ("suspend", FIRST), 70),
        (resume.main, [], {}, ("resume", FIRST), 0),
        (resume.main, [], AWAY, ("resume", FIRST), 70),
        (resume.main, [], {**AWAY, "called_back": True}, ("resume", FIRST), 0),
        (
            resume.main,
            ["--from", "best one", "--on", "node-2"],
            {"loss": LOSS},
            ("resume", FIRST, {"checkpoint": "best one", "node": "node-2"}),
            0,
        ),
        (
            migrate.main,
            ["--node", "node-2"],
            {"node": "node-2", "loss": LOSS},
            ("migrate", FIRST, {"node": "node-2"}),
            0,
        ),
        (migrate.main, ["--node=node-2"], {}, ("migrate", FIRST, {"node": "node-2"}), 70),
        (
            migrate.main,
            ["--cluster", "west-1"],
            {"cluster": "west-1", "loss": LOSS},
            ("migrate", FIRST, {"cluster": "west-1"}),
            0,
        ),
        (migrate.main, ["--cluster=west-1"], {}, ("migrate", FIRST, {"cluster": "west-1"}), 70),
        (checkpoint.main, ["a name"], {}, ("checkpoint", FIRST, "a name"), 0),
        (
            checkpoint.main,
            ["--level", "process"],
            {},
            ("checkpoint", FIRST, None, "process"),
            0,
        ),
        (restore.main, ["best one"], {"loss": LOSS}, ("restore", FIRST, "best one", False), 0),
        (
            restore.main,
            ["k1", "--discard"],
            {"loss": LOSS},
            ("restore", FIRST, "k1", True),
            0,
        ),
        (restore.main, ["k1"], {"reason": "it goes on"}, ("restore", FIRST, "k1", False), 70),
        (fork.main, [], {"id": SECOND}, ("fork", FIRST, None, None), 0),
        (
            fork.main,
            ["k1", "--called", "b"],
            {"id": SECOND},
            ("fork", FIRST, "k1", "b"),
            0,
        ),
        (fork.main, ["--name", "b"], {"id": SECOND}, ("fork", FIRST, None, "b"), 0),
    ],
)
def test_what_is_asked_and_how_it_ends(
    double: Double,
    capsys: Captured,
    main: Any,
    words: list[str],
    becomes: dict[str, Any],
    call: tuple[object, ...],
    code: int,
) -> None:
    double.becomes = [becomes, becomes]
    assert main(["nb1.ipynb", *words]) == code
    assert double.calls[-1] == call
    capsys.readouterr()
    assert main([FIRST, *words, "--json"]) == code
    assert json.loads(capsys.readouterr().out) == session(1, checkpoints=2) | becomes


def test_what_takes_long_is_waited_for_and_its_loss_is_told(
    double: Double, capsys: Captured
) -> None:
    double.becomes = [{"state": "migrating", "process_state": "resuming"}]
    double.known[FIRST] |= {"node": "node-2", "loss": LOSS, "reason": "came back"}
    assert migrate.main([FIRST, "--node", "node-2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{FIRST} (nb1.ipynb) is ready: came back"
    assert [line.split("  ")[1] for line in out[1:]] == [
        *("Rolled back", "Not brought back", "Came back", "Level", "Checked")
    ]
    assert "1 open socket" in out[2]


def test_under_way() -> None:
    assert under_way({"process_state": "suspending"})
    assert under_way({"process_state": "suspended", "state": "migrating"})
    waits = {"process_state": "suspended", "state": "migrating", "called_back": True}
    assert not under_way(waits), "waiting for room may take hours"
    assert not under_way({"process_state": "live", "state": "running"})


def test_loss_and_speed_in_words() -> None:
    assert loss_text(None) == ""
    assert "Not brought back  nothing" in loss_text({**LOSS, "lost": []})
    assert "1 hash\n" in loss_text({**LOSS, "hashes_checked": 1}) + "\n"
    assert speed({"rate": 120 * 2**20, "eta_s": 3.2}) == "120 MiB/s, 3 s left"
    assert speed({"rate": 0.0, "eta_s": None}) == ""
    assert speed({"rate": 1.0, "eta_s": 600}) == "1 B/s, 10 min left"


def test_the_table_of_checkpoints(double: Double, capsys: Captured) -> None:
    assert checkpoints.main(["nb1.ipynb"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "ID", "LEVEL", "SIZE", "STORED", "AGE", "NOTE"]
    assert "before fine tuning" in first
    assert "3 GiB" in first
    assert "1 MiB" in first
    assert "damaged: chunk ab is wrong" in second
    assert checkpoints.main([]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(FIRST)
    assert checkpoints.main([SECOND]) == 0
    assert capsys.readouterr().out == "there is no checkpoint\n"
    assert checkpoints.main([FIRST, "--delete", "before fine tuning", "--json"]) == 0
    [left] = json.loads(capsys.readouterr().out)
    assert left["level"] == "device"
    assert checkpoints.main(["--delete", "x"]) == 64
    assert checkpoint.main([FIRST, " "]) == 64
    assert restore.main([FIRST]) == 64


def test_what_a_checkpoint_was_made_for_stands_in_brackets() -> None:
    now = datetime(2026, 11, 21, 10, 5, tzinfo=timezone.utc)
    kept = [stored(1, cause="restore"), stored(2, cause="drain", name="mine"), stored(3)]
    lines = checkpoint_table(kept, now, True, "").rows
    assert [line[0] for line in lines] == ["(before restore)", "mine", ""]


def test_completion_of_checkpoints() -> None:
    found = checkpoint_choices("", [stored(2, name="best"), stored(1), stored(0, name="best")])
    assert found == {
        "best": "process state, 3 GiB",
        "20261121T100001-abcdef": "process state, 3 GiB",
    }
    assert checkpoint_choices("x", [stored(2, name="best")]) == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("jupyter-singularity restore ", []),
        ("jupyter-singularity restore tra", []),
        ("jupyter-singularity restore train.ipynb ", ["train.ipynb"]),
        ("jupyter singularity fork --json 3f9c be", ["3f9c"]),
        ("jupyter-singularity restore 'my run' 'before f", ["my run"]),
    ],
)
def test_which_words_come_first(line: str, words: list[str]) -> None:
    environ = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    assert earlier_words("", environ) == words


def test_progress_in_the_live_table() -> None:
    board = Board()
    board.apply({"event": "snapshot", "data": {"sessions": [session(1)]}}, 0.0)
    told = {"bytes_done": 450, "bytes_total": 1000, "rate": 100.0, "eta_s": 5.5}
    event = {"event": "progress", "data": {"session": FIRST, "progress": told}}
    assert board.apply(event, 1.0)
    assert progress_text(board.sessions[FIRST]) == "45 % of 1000 B, 100 B/s, 6 s left"
    event["data"]["progress"] = None  # type: ignore[index]
    assert board.apply(event, 2.0)
    assert progress_text(board.sessions[FIRST]) == ""
    event["data"]["session"] = SECOND  # type: ignore[index]
    assert not board.apply(event, 3.0)


def test_nodes_that_cannot_store_say_why() -> None:
    able = {"available": True, "reason": ""}
    not_able = {"available": False, "reason": "criu is missing"}
    nodes = [
        {"id": "a", "connected": True, "images": able},
        {"id": "b", "connected": True, "images": not_able},
        {"id": "c", "connected": False, "images": not_able},
    ]
    assert cannot_store({"nodes": nodes}) == ["node b cannot store whole sessions: criu is missing"]


UNDO = {"checkpoint": "k1", "name": "", "until": "2026-11-22T10:00:00+00:00"}
OVER = {"state": "completed", "process_state": "completed"}


def test_the_end_of_the_newest_session_of_a_name_is_taken_back(
    double: Double, capsys: Captured
) -> None:
    """Not that of one that still runs, or that cannot be."""
    for number, changes in (
        (3, {**OVER, "undo_end": UNDO}),
        (4, {**OVER, "undo_end": UNDO}),
        (5, {**OVER, "undo_end": None}),
        (6, {"undo_end": None}),
    ):
        added = session(number, name="a.ipynb", **changes)
        double.known[added["id"]] = added
    double.becomes = [{**AWAY, "reason": "ada took its end back"}] * 2
    assert reopen.main(["a.ipynb"]) == 0
    assert double.calls[-1] == ("reopen", "000400000000")
    assert "the end of" in (said := capsys.readouterr().out)
    assert "is taken back: it is suspended: ada took its end back" in said
    assert reopen.main(["0003", "--json"]) == 0
    assert double.calls[-1] == ("reopen", "000300000000")


def test_what_has_no_end_to_take_back_is_said(double: Double, capsys: Captured) -> None:
    assert reopen.main(["nb1.ipynb"]) != 0
    assert "there is no session 'nb1.ipynb' whose end can be taken back" in capsys.readouterr().err
    assert not [call for call in double.calls if call[0] == "reopen"]
