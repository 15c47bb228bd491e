"""Ages, sizes, names, tables and cards."""

from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone

import pytest
from rich.console import Console
from singularity_scheduler.cli.framework import texts
from singularity_scheduler.cli.framework.tables import Card, Column, Table, fit
from singularity_scheduler.cli.look.views import (
    device_table,
    history_table,
    session_card,
    session_table,
    summary,
)
from support.cli_double import session

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (86400 * 3 + 5, "3 d")],
)
def test_ages_have_one_unit(seconds: int, text: str) -> None:
    at = (NOW - timedelta(seconds=seconds)).isoformat()
    assert texts.age(at, NOW) == text


@pytest.mark.parametrize("text", [None, "", "yesterday", 5])
def test_what_is_no_time_has_no_age(text: object) -> None:
    assert texts.age(text, NOW) == ""


def test_a_time_without_zone_is_utc() -> None:
    assert texts.age("2026-11-21T11:59:30", NOW) == "30 s"
    assert texts.age("2026-11-21T11:59:30Z", NOW) == "30 s"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4 << 30, "4 GiB"), (5 << 40, "5 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert texts.size(count) == text


def test_a_terminal_gets_no_control_characters_of_others() -> None:
    assert texts.clean("a\x1b[31m\nred\x07") == "a\ufffd[31m red\ufffd"
    assert texts.clean(None) == ""
    row = session_table([session(1, name="\x1b]0;x\x07", reason="a\rb")], NOW).rows[0]
    assert all(c.isprintable() for text in row for c in text)


def test_a_reason_that_begins_with_the_state_is_not_doubled() -> None:
    assert texts.outcome({"state": "parked", "reason": "parked by ada"}) == "parked by ada"
    assert texts.outcome({"state": "parked", "reason": "idle"}) == "parked: idle"
    assert texts.outcome({"state": "parked"}) == "parked"


LONG = Table(
    [Column("id"), Column("n", right=True), Column("reason", least=10)],
    [["3f9c2a7b10de", "1", "because " * 40], ["3f9c2a7b10df", "12", "[red]so[/red]"]],
)


def on_terminal(what: object, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(what)
    return out.getvalue().splitlines()


def test_plain_tables_are_whole_and_aligned() -> None:
    head, first, second = LONG.plain().splitlines()
    assert head == "ID             N  REASON"
    assert first == f"3f9c2a7b10de   1  {'because ' * 40}".rstrip()
    assert second == "3f9c2a7b10df  12  [red]so[/red]"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_terminal_and_ids_stay_whole(width: int) -> None:
    lines = on_terminal(LONG.rich(width), width)
    assert len(lines) == 4  # head, rule, one line per row
    assert max(map(len, lines)) <= width
    assert "3f9c2a7b10de" in lines[2]
    assert "…" in lines[2]
    assert "[red]so[/red]" in lines[3]  # a text is never markup


COLUMNS = [
    Column("id"),
    Column("name", least=10),
    Column("kind", drop=1),
    Column("tier", drop=2),
    Column("reason", least=20),
]


@pytest.mark.parametrize(
    ("total", "widths"),
    [
        (200, [12, 30, 11, 8, 90]),  # all fits
        (120, [12, 30, 11, 8, 51]),  # the short one stays whole
        (80, [12, 15, 11, 8, 26]),  # both give way
        (68, [12, 16, 0, 8, 26]),  # kind is left out
        (50, [12, 12, 0, 0, 22]),  # tier too
        (20, [12, 10, 0, 0, 20]),  # no less than that
    ],
)
def test_what_gives_way_when_the_terminal_is_narrow(total: int, widths: list[int]) -> None:
    assert fit(COLUMNS, [12, 30, 11, 8, 90], total) == widths


def test_an_empty_table_is_a_sentence() -> None:
    table = Table([Column("id")], [], "there is none")
    assert table.plain() == table.rich(80) == "there is none"


def test_cards() -> None:
    card = Card([("Id", "3f9c"), ("Reason", "[b]x[/b] " * 20)])
    assert card.plain().splitlines()[0] == "Id      3f9c"
    assert max(map(len, on_terminal(card.rich(50), 50))) <= 50


def test_users_are_shown_when_there_are_several() -> None:
    alone = session_table([session(1), session(2)], NOW)
    several = session_table([session(1), session(2, user="bob")], NOW)
    assert "user" not in [c.title for c in alone.columns]
    assert [row[1] for row in several.rows] == ["ada", "bob"]


def test_a_run_with_everything() -> None:
    document = session(
        1,
        kind="batch",
        state="queued",
        process_state="queued",
        held_back=True,
        virtual_devices=2,
        queue={"place": 3, "ahead": 2},
        waiting_since="2026-11-21T11:58:00+00:00",
        last_checkpoint={
            "id": "c1",
            "at": "2026-11-21T11:00:00Z",
            "bytes": 2048,
            "level": "device",
        },
        others_waiting=[{"user": "bob", "name": "eval", "tier": "premium", "devices": 1}],
        exit_code=0,
        run={
            "notebook": "/home/ada/in.ipynb",
            "output": "/home/ada/out.ipynb",
            "parameters": {"lr": 0.1, "name": "x"},
            "kernel": None,
            "folder": "/home/ada",
            "variables": ["A", "B"],
        },
    )
    rows = dict(session_card(document, NOW).rows)
    assert rows["State"] == "queued, held back: its process runs"
    assert rows["Queue"] == "place 3, 2 ahead, waits for 2 min"
    assert rows["Others wait"] == "bob/eval (premium, 1 device)"
    assert rows["Checkpoint"] == "c1, 1 h ago, 2 KiB, device state"
    assert rows["Parameters"] == 'lr=0.1, name="x"'
    assert rows["Variables"] == "A, B"
    assert rows["Output"] == "/home/ada/out.ipynb"
    assert rows["Exit code"] == "0"
    assert rows["Devices"] == "2 virtual devices, holds none"
    assert "Kernel" not in rows
    assert "Activity" not in rows


def test_devices_and_nodes() -> None:
    cluster = {
        "nodes": [
            {"id": "a", "connected": True, "devices": 2},
            {"id": "b", "connected": False, "devices": 0},
        ],
        "devices": [
            {
                "id": "cpu:0",
                "node": "a",
                "name": "core",
                "capacity_bytes": 1 << 30,
                "session": None,
            },
            {
                "id": "cpu:1",
                "node": "a",
                "name": "core",
                "capacity_bytes": 0,
                "session": "other",
                "drained": {"by": "ada", "reason": "fan", "at": None},
                "health": {
                    "memory_used_bytes": 64 << 20,
                    "utilisation_percent": 12.4,
                    "temperature_c": 88,
                },
            },
        ],
        "waiting": {"premium": 0, "basic": 2},
    }
    assert device_table(cluster).rows == [
        ["a", "yes", "cpu:0", "1 GiB", "free", "", "", "", "ok", "core"],
        [
            *("a", "yes", "cpu:1", "", "(taken)", "64 MiB", "12 %", "88 °C"),
            *("drained by ada: fan", "core"),
        ],
        ["b", "no", "none", "", "", "", "", "", "", ""],
    ]
    assert summary(cluster) == "1 of 2 nodes connected, 1 of 2 devices taken, waiting: 2 basic"
    assert device_table({}).plain() == "no node has ever connected"


def test_history() -> None:
    change = {"at": "2026-11-21T11:58:00Z", "state": "ready", "rule": "r", "reason": "x\ny"}
    assert history_table([change], NOW).rows == [["2 min", "ready", "r", "x y"]]
