"""Positions in a session's log, through cuts, the end of the session, and users' tricks."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound
from singularity_scheduler.agent.sessions.logs import SessionLogs, _whole_characters
from singularity_scheduler.agent.sessions.record import Life

SESSION = "0123456789ab"


class Box:
    """The parts of the agent that logs need, and one live session."""

    def __init__(self, folder: Path, log_bytes: int = 1000, keep_logs: int = 2) -> None:
        self.folder = folder
        (folder / SESSION).mkdir()
        self.log = folder / SESSION / "capsule.log"
        settings = SimpleNamespace(
            state_dir=str(folder / "state"),
            log_bytes=log_bytes,
            keep_logs=keep_logs,
            session_dir=lambda session: str(folder / session),
        )
        (folder / "state").mkdir()
        self.live = self.session(SESSION)
        self.node: Any = SimpleNamespace(
            settings=settings, sessions={SESSION: self.live}, try_save=lambda live: None
        )
        self.logs = SessionLogs(self.node)

    def session(self, name: str, mode: str = "capsule") -> Any:
        record = SimpleNamespace(
            session=name, mode=mode, uid=os.getuid(), log_cut=0, life=Life.LIVE
        )
        return SimpleNamespace(record=record)

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def read(self, offset: int = 0, limit: int = 10_000) -> tuple[str, int, int]:
        found = self.logs.read(SESSION, offset, limit)
        return found["text"], found["offset"], found["next_offset"]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_reading_goes_on_where_it_stopped(box: Box) -> None:
    box.write("one\ntwo\n")
    assert box.read() == ("one\ntwo\n", 0, 8)
    assert box.read(8) == ("", 8, 8)
    box.write("three\n")
    assert box.read(8) == ("three\n", 8, 14)
    assert box.read(4, 5) == ("two\nt", 4, 9)
    assert box.read(99) == ("", 14, 14)  # never beyond what there is


def test_positions_stay_right_when_the_beginning_is_cut_off(box: Box) -> None:
    box.write("a" * 1500 + "END\n")
    box.logs.trim(box.live)
    text, offset, after = box.read()
    assert (len(text), offset, after) == (500, 1004, 1504)
    assert text.endswith("aEND\n"[-4:])
    box.write("more\n")
    assert box.read(after) == ("more\n", 1504, 1509)
    assert box.read(10)[1] == 1004  # what was cut is skipped, and said


def test_the_log_outlives_the_session(box: Box) -> None:
    box.write("a" * 1500 + "END\n")
    box.logs.trim(box.live)
    box.logs.keep(box.live)
    box.log.unlink()
    box.node.sessions.clear()
    text, offset, after = box.read(1500)
    assert (text, offset, after) == ("END\n", 1500, 1504)
    assert os.stat(next((box.folder / "state/logs").glob("*/*"))).st_mode & 0o777 == 0o600


def test_only_the_newest_logs_are_kept(box: Box) -> None:
    for number in range(4):
        name = f"{number:012x}"
        (box.folder / name).mkdir()
        (box.folder / name / "capsule.log").write_text(name)
        box.logs.keep(box.session(name))
        kept = box.folder / f"state/logs/{os.getuid()}/{name}-0.log"
        os.utime(kept, (number, number))
    assert box.logs.read(f"{3:012x}", 0, 100)["text"] == f"{3:012x}"
    with pytest.raises(NotFound, match="not kept any more"):
        box.logs.read(f"{0:012x}", 0, 100)


def test_nothing_stays_of_sessions_whose_logs_were_looked_for(box: Box) -> None:
    def patterns() -> int:
        return sum(type(one) is re.Pattern for one in gc.get_objects())

    box.logs.keep(box.session("0" * 12))
    before = patterns()
    for number in range(300):
        name = f"{number:012x}"
        box.logs.go_on(box.session(name))
        with pytest.raises(NotFound, match="not kept any more"):
            box.logs.read(name, 0, 100)
    assert patterns() - before < 10


def test_of_a_huge_log_only_the_end_is_kept(box: Box) -> None:
    box.write("begin\n")
    os.truncate(box.log, 1 << 40)  # costs its user nothing
    box.write("END\n")
    box.logs.keep(box.live)
    box.node.sessions.clear()
    text, offset, after = box.read()
    assert (len(text), after) == (1000, (1 << 40) + 4)
    assert text.endswith("END\n")
    assert offset == after - 1000


def test_what_could_not_be_kept_leaves_nothing_behind(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.write("text")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    box.logs.keep(box.live)
    assert not [p for p in (box.folder / "state").rglob("*") if p.is_file()]


def test_a_log_that_its_user_replaced_is_not_read(box: Box, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    for make in (box.log.symlink_to, box.log.hardlink_to):
        make(secret)
        with pytest.raises(NotFound):
            box.read()
        box.logs.keep(box.live)
        assert not list((tmp_path / "state").rglob("*.log"))
        box.log.unlink()
    os.mkfifo(box.log)
    with pytest.raises(NotFound):
        box.read()


def test_a_command_in_a_terminal_has_no_log_here(box: Box) -> None:
    box.live.record.mode = "joined"
    with pytest.raises(Conflict, match="in somebody's terminal: its output is there"):
        box.read()


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, 0), (0, (1 << 20) + 1)])
def test_wrong_positions(box: Box, offset: int, limit: int) -> None:
    with pytest.raises(BadRequest):
        box.read(offset, limit)


def test_a_session_that_is_just_starting_has_printed_nothing(box: Box) -> None:
    box.live.record.life = Life.STARTING
    assert box.read() == ("", 0, 0)


def test_a_character_is_never_cut_in_two(box: Box) -> None:
    text = "aé€😀z"
    box.write(text)
    for limit in range(4, 12):
        got, offset = "", 0
        while True:
            part, _, offset = box.read(offset, limit)
            if not part:
                break
            got += part
        assert got == text
    assert _whole_characters(b"\xff\xfe") == b"\xff"  # no UTF-8 at all: still goes on


def test_half_a_character_at_the_very_end_is_shown_once_the_session_has_ended(box: Box) -> None:
    box.log.write_bytes("ok é".encode()[:-1])
    assert box.read() == ("ok ", 0, 3)
    box.logs.keep(box.live)
    box.node.sessions.clear()
    assert box.read(3) == ("\N{REPLACEMENT CHARACTER}", 3, 4)


def test_what_is_no_text_still_comes_through(box: Box) -> None:
    box.log.write_bytes(b"ok \xff\xfe\x80\x80\x80\x80\x80 end")
    seen, offset = "", 0
    for _ in range(20):
        part, _, offset = box.read(offset, 4)
        seen += part
    assert seen.startswith("ok ")
    assert seen.endswith(" end")
