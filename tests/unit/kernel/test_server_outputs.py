"""What waits for a page: on disk, once, for the page that asked."""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.server.notebooks import _check
from singularity_kernel.server.notes import KEEP_GONE_S, Notes
from singularity_kernel.server.outputs import Kept, KeptStream, Waiting


def message(number: int, page: str = "a") -> list[bytes]:
    """An output of a cell that `page` has run."""
    fields = (
        {"msg_id": f"m{number}", "msg_type": "stream", "session": "kernel"},
        {"msg_id": "cell", "session": page},
        {},
        {"text": str(number)},
    )
    return [b"stream", b"<IDS|MSG>", b"signature", *(json.dumps(f).encode() for f in fields)]


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Callable[..., Waiting]]:
    """What one server after the other makes for the same kernel."""
    made: list[Waiting] = []

    def make(limit: int = 1 << 20) -> Waiting:
        made.append(Waiting(tmp_path / "kernel.outputs", limit))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[..., Waiting]


def test_the_next_server_has_what_waited_and_only_the_asker_takes_it(waiting: Make) -> None:
    first = waiting()
    for number, page in enumerate("aba"):
        first.add("iopub", message(number, page))
    first.add("iopub", message(0))  # a relay that was not sure
    again = waiting()
    assert again.askers == {"a", "b"}
    assert again.take("c") == []
    assert again.take("a") == [("iopub", message(0)), ("iopub", message(2))]
    assert again.take("a") == []
    assert waiting().messages == [("iopub", message(1, "b"))]
    again.forget()
    assert waiting().messages == []


def test_a_file_whose_writer_was_killed_has_what_is_whole_and_takes_more(
    waiting: Make, tmp_path: Path
) -> None:
    first = waiting()
    first.add("iopub", message(0))
    whole = (tmp_path / "kernel.outputs").read_bytes()
    first.add("shell", message(1))
    both = (tmp_path / "kernel.outputs").read_bytes()
    for end in range(len(whole), len(both)):
        (tmp_path / "kernel.outputs").write_bytes(both[:end])
        second = waiting()
        assert second.messages == [("iopub", message(0))]
        second.add("iopub", message(2))
        second.close()
        assert waiting().messages == [("iopub", message(0)), ("iopub", message(2))]


def test_a_disk_that_was_full_in_the_middle_of_a_record_costs_that_record(
    waiting: Make, tmp_path: Path
) -> None:
    first = waiting()
    first.add("iopub", message(0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        space = (tmp_path / "kernel.outputs").stat().st_size + 40
        resource.setrlimit(resource.RLIMIT_FSIZE, (space, before[1]))
        first.add("iopub", message(1))
        assert (tmp_path / "kernel.outputs").stat().st_size == space
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    first.add("iopub", message(2))
    assert [parts for _, parts in first.messages] == [message(n) for n in range(3)]
    assert [parts for _, parts in waiting().messages] == [message(0), message(2)]


def test_of_too_much_the_oldest_is_dropped_and_that_is_said(waiting: Make, caplog: Any) -> None:
    size = sum(map(len, message(0)))
    few = waiting(2 * size)
    for number in range(9):
        few.add("iopub", message(number))
    few.add("iopub", [*message(9), b"alone too much" * size])
    assert [parts for _, parts in few.messages] == [message(7), message(8)]
    assert waiting(2 * size).messages == few.messages
    assert caplog.text.count("wait for their page") <= 2  # once for each reader
    none = waiting(0)
    none.add("iopub", message(10))
    assert none.messages == []


def test_pages_that_never_come_back_cost_nobody_else_an_output(waiting: Make) -> None:
    first = waiting()
    for number, page in enumerate("abac"):
        first.add("iopub", message(number, page))
    first.add("iopub", message(4, ""))
    first.keep_only(["b", "new"])
    left = [("iopub", message(1, "b")), ("iopub", message(4, ""))]
    assert first.messages == left
    assert waiting().messages == left


class Stream:
    """A ZMQStream as far as it matters."""

    def on_recv(self, callback: Any, copy: bool = True) -> None:
        self.callback = callback


def test_a_look_takes_nothing_and_the_page_gets_what_comes_after_the_rest() -> None:
    below, collected, looked, sent = Stream(), [], [], []
    stream = KeptStream(below, collected.append)
    below.callback([b"1"])
    stream.on_recv(looked.append)
    below.callback([b"2"])
    stream.stop_on_recv()
    below.callback([b"3"])
    stream.on_recv_stream(lambda given, parts: sent.append((given is stream, parts)))
    below.callback([b"4"])
    assert collected == [[b"1"], [b"2"], [b"3"]]
    assert looked == [[b"2"]]
    assert sent == [(True, [b"4"])]


def test_the_streams_of_pages_that_never_come_back_are_given_up() -> None:
    streams = {page: {"shell": Stream(), "control": Stream()} for page in "ab"}
    kept = Kept(None, dict(streams))
    assert kept.leave_only(["b", "new"]) == list(streams["a"].values())
    assert kept.pages == {"b": streams["b"]}


def test_notes_outlive_the_server_and_bad_ones_do_no_harm(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "server")
    notes.note("k1", kernel_name="python3")
    notes.note("k1", notebook="a.ipynb")
    notes.note("k2", kernel_name="other")
    notes.outputs("k2").write_bytes(b"x")
    again = Notes(tmp_path / "server")
    assert again.of("k1") == {"kernel_name": "python3", "notebook": "a.ipynb"}
    again.keep_only({"k1"}, now=1000.0)
    assert notes.outputs("k2").exists(), "a list without a kernel is not its end"
    assert Notes(tmp_path / "server").of("k2") == {"kernel_name": "other", "gone_at": 1000.0}
    again.keep_only({"k1"}, now=1000.0 + KEEP_GONE_S + 1)
    assert not notes.outputs("k2").exists()
    assert Notes(tmp_path / "server").of("k2") == {}
    again.mark_gone("k1")
    assert again.of("k1").pop("gone_at")
    again.mark_back("k1")
    assert Notes(tmp_path / "server").of("k1") == {"kernel_name": "python3", "notebook": "a.ipynb"}
    again.mark_gone("k3")  # nothing was noted of it
    assert again.of("k3") == {}
    (tmp_path / "server/kernels.json").write_text("[1")
    assert Notes(tmp_path / "server").of("k1") == {}


def test_a_table_of_notebooks_that_cannot_be_used_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "notebooks.db"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    _check(path)
    assert (tmp_path / "notebooks.unusable").exists()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT * FROM session").fetchall() == []
    database.close()
