"""What `%singularity` shows, without a kernel."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.kernel.memory import device_memory
from singularity_kernel.kernel.status import (
    Sentence,
    Table,
    ago,
    checkpoint_rows,
    history_rows,
    status_rows,
)
from singularity_proxy.wire.ring import RingFile, RingState
from singularity_scheduler.client.words import size

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (50 << 20, "50 MiB"), (5 << 40, "5 TiB")],
)
def test_bytes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (None, ""),
        ("", ""),
        ("yesterday", ""),
        ("2026-05-01T11:59:48Z", "12 s ago"),
        ("2026-05-01T11:57:00+00:00", "3 min ago"),
        ("2026-05-01T12:00:00+02:00", "2 h ago"),
        ("2026-04-28T11:00:00", "3 d ago"),
        ("2026-05-01T13:00:00Z", "0 s ago"),  # clocks differ
    ],
)
def test_ages(at: str | None, text: str) -> None:
    assert ago(at, NOW) == text


def rows(**status: Any) -> dict[str, str]:
    return dict(status_rows({"virtual_devices": 2, **status}, NOW))


def test_the_state_is_not_said_twice() -> None:
    assert rows(state="parked", reason="parked by ada")["State"] == "parked by ada"
    assert rows(state="ready", reason="its process runs")["State"] == "ready: its process runs"
    assert rows(state="ready")["State"] == "ready"


def test_the_cell_that_asks_is_named_as_what_keeps_the_session_busy() -> None:
    assert rows(busy=True)["Activity"] == "runs this cell"


def test_a_history_has_the_clocks_time_and_the_day_where_that_is_another() -> None:
    told = history_rows(
        [
            {"at": "2026-04-30T23:59:59Z", "state": "waiting", "reason": "no device is free"},
            {"at": "2026-05-01T13:00:05+02:00", "state": "running", "reason": ""},
            {"at": "yesterday", "state": "parked", "reason": ""},
            {"state": "ready", "reason": ""},
        ],
        NOW,
    )
    assert [when for when, _ in told] == ["2026-04-30 23:59:59", "11:00:05", "yesterday", ""]
    assert told[0][1] == "waiting: no device is free"


def test_devices_are_shown_virtual_to_physical() -> None:
    assert rows(devices=["cpu:1", "cpu:0"])["Devices"] == "cuda:0 -> cpu:1, cuda:1 -> cpu:0"
    assert rows(devices=[])["Devices"].startswith("2 virtual devices; none held now")


def test_the_last_checkpoint_has_an_age() -> None:
    last = {"id": "a1", "at": "2026-05-01T11:55:00Z", "bytes": 3 << 20, "level": "device"}
    assert rows(last_checkpoint=last)["Last checkpoint"] == "a1, 5 min ago, 3 MiB, device state"
    assert rows(last_checkpoint=None)["Last checkpoint"] == "none yet"


def test_a_checkpoint_says_whether_it_comes_back() -> None:
    one = {"id": "k1", "name": "good", "level": "process", "bytes": 1, "stored_bytes": 1}
    for more, said in (
        ({}, ""),
        ({"reason": "no CRIU"}, ""),
        ({"proved_at": NOW.isoformat()}, ", proved 0 s ago"),
        ({"unproved": "a file is gone"}, ", could not be proved: a file is gone"),
        ({"damaged": "it is cut", "unproved": "a file is gone"}, ", damaged: it is cut"),
    ):
        [(word, text)] = checkpoint_rows([{**one, **more}], NOW)
        assert (word, text) == ("good", f"k1, process state, 1 B, 1 B stored{said}")


def test_a_checkpoint_without_a_name_says_what_it_was_made_for() -> None:
    one = {"id": "k1", "name": "", "level": "process", "bytes": 1, "stored_bytes": 1}
    then = NOW - timedelta(hours=1)
    for cause, said in (
        ("", ""),
        ("periodic", "by itself, "),
        ("restore", "before restore, "),
        ("move", "before a move, "),
        ("drain", "drain, "),
        ("suspend", f"suspended {then.astimezone():%H:%M}, "),
    ):
        [(word, text)] = checkpoint_rows([{**one, "at": then.isoformat(), "cause": cause}], NOW)
        assert (word, text) == ("k1", f"{said}process state, 1 B, 1 B stored, 1 h ago")
    older = {**one, "at": "2026-03-02T10:00:00Z", "cause": "suspend"}
    assert checkpoint_rows([older], NOW)[0][1].startswith("suspended Mar ")
    [(word, text)] = checkpoint_rows([{**older, "name": "mine"}], NOW)
    assert (word, text.split(", ")[1]) == ("mine", "process state")


def test_the_last_checkpoint_says_whether_it_comes_back() -> None:
    last = {"id": "a1", "level": "process", "reason": "", "proved_at": NOW.isoformat()}
    assert rows(last_checkpoint=last)["Last checkpoint"] == "a1, process state, proved 0 s ago"


def test_a_return_is_told_with_the_time_of_its_checkpoint() -> None:
    loss = {"checkpoint": "20260501T115016-d4aae8b5", "level": "process", "lost": []}
    assert rows(loss=loss)["Last return"] == (
        "it came back from the checkpoint of 2026-05-01 11:50:16 UTC, process state; "
        "nothing is lost"
    )


def test_a_place_in_the_queue_is_shown_while_it_waits() -> None:
    found = rows(queue={"place": 2, "ahead": ["x"]}, waiting_since="2026-05-01T11:59:30Z")
    assert found["Queue"] == "place 2, 1 ahead, since 30 s ago"
    assert "Queue" not in rows(queue=None)


def test_who_waits() -> None:
    one = {"user": "bo", "name": "train", "tier": "premium", "devices": 1}
    assert rows(others_waiting=[one])["Others wait"] == "bo/train (premium, 1 device)"
    assert rows()["Others wait"] == "nobody"


def test_a_scheduler_that_is_away_is_said() -> None:
    assert "away" in rows(service="away")["Scheduler"]
    assert "Scheduler" not in rows()


def test_tables_escape_html_and_are_never_empty() -> None:
    table = Table("<t>", [("a", "<script>")])
    assert "<script>" not in table._repr_html_()
    assert repr(table) == "<t>\n  a  <script>"
    assert "nothing" in repr(Table("t", [], empty="nothing"))
    assert "nothing" in Table("t", [], empty="nothing")._repr_html_()
    assert Sentence("a < b")._repr_html_() == "<span>a &lt; b</span>"


@pytest.fixture
def ring(tmp_path: Path) -> RingFile:
    path = tmp_path / "a.ring"
    return RingFile.create(path, virtual_device=0, device_type="cpu", memory_capacity=4 << 30)


def test_memory_is_read_from_the_mapped_rings(ring: RingFile, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = f"7f0000000000-7f0000001000 rw-s 00000000 00:19 42   {ring.path}\n"
    maps.write_text(line * 2 + "7f00-7f01 r--p 0 0:0 0 \n7f02-7f03 r--p 0 0:0 1  /lib/x.so\n")
    expected = {"current": 0, "peak": 0, "capacity": 4 << 30}
    parked = {"device": "cuda:0", "held": False, **expected}
    assert device_memory([], str(maps)) == [parked]
    ring.set_state(RingState.ATTACHED)
    held = {"device": "cpu:1", "held": True, **expected}
    assert device_memory(["cpu:1"], str(maps)) == [held]
    assert rows(memory=[held])["Device memory"] == "cpu:1: 0 B of 4 GiB (peak 0 B)"
    assert rows(memory=[parked])["Device memory"] == "cuda:0: 0 B kept in host memory"
    ring.close()


def test_what_is_no_ring_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "short.ring").write_bytes(b"x")
    (tmp_path / "other.ring").write_bytes(bytes(4096))
    maps = tmp_path / "maps"
    names = ("short", "other", "gone")
    maps.write_text("".join(f"0-1 rw-s 0 0:0 1 {tmp_path}/{name}.ring\n" for name in names))
    assert device_memory(["cpu:0"], str(maps)) == []
    assert device_memory(["cpu:0"], str(tmp_path / "no such file")) == []
