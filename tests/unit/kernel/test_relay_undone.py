"""Requests that a return to an older checkpoint has undone are answered by the relay."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_kernel.relay import jupyter_wire
from singularity_kernel.relay import store as relay_store
from singularity_kernel.relay.core import Core
from singularity_kernel.relay.store import Output, Store
from singularity_kernel.relay.tunnel import Dialer, Frame, read_hello
from singularity_kernel.relay.undone import Answers

SIGNER = jupyter_wire.Signer({"key": "secret"})
LIKE = {"session": "kernel", "username": "alice", "version": "5.4"}


def message(
    kind: str, content: dict[str, Any], parent: dict[str, Any] | None = None
) -> list[bytes]:
    return SIGNER.message([b"page"], kind, content, parent or {}, LIKE)


class Line:
    """A relay on disk and a kernel at its other end, which says what a test makes it say."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "relay.db")
        self.core = Core("s", Store(self.path), Answers(SIGNER, lambda: LIKE))
        self.shim = Dialer("s", 1)
        self.joins = 1
        self.connect()

    def connect(self) -> None:
        answer, _ = self.core.greet(read_hello(self.shim.hello(self.joins)))
        self.shim.welcome(Frame.decode(answer.encode()))

    def ask(self, kind: str = "execute_request", taken: bool = True) -> dict[str, Any]:
        """A page asks; its header."""
        parts = message(kind, {"code": "1"})
        self.core.request("shell", kind, parts)
        assert self.core.commit()
        if taken:
            for frame in self.core.tunnel.take():
                data = self.shim.receive(Frame.decode(frame.encode()))
                if data is not None:
                    self.shim.into[data.lane].done(data.number)
            self.pass_on()
        return jupyter_wire.header(parts)

    def say(self, lane: str, kind: str, content: dict[str, Any], head: dict[str, Any]) -> None:
        self.shim.out[lane].add(message(kind, content, head))
        self.pass_on()

    def pass_on(self) -> None:
        for frame in self.shim.take():
            self.core.receive(Frame.decode(frame.encode()))

    def publish(self) -> list[Output]:
        assert self.core.commit()
        outputs = self.core.take_outputs()
        self.core.sent(outputs)
        assert self.core.settle()
        return outputs

    def checkpoint(self) -> None:
        self.core.store.keep_from([self.core.store.positions()])
        self.image = copy.deepcopy(self.shim)

    def go_back(self, undo: bool = True) -> None:
        """The image of the checkpoint joins; `undo`: because somebody wanted it."""
        assert self.core.settle()
        self.core.lost()
        self.joins += 1
        assert self.core.begin(self.joins, fresh=False, undo=undo)
        self.shim = copy.deepcopy(self.image)
        self.connect()


def shown(outputs: list[Output]) -> list[tuple[str, str, str]]:
    """(kind, state or error, request) of each output."""
    found = []
    for output in outputs:
        content = json.loads(output.parts[-1])
        what = content.get("execution_state") or content.get("ename") or ""
        parent = jupyter_wire.parent(output.parts).get("msg_id", "")
        found.append((str(jupyter_wire.header(output.parts)["msg_type"]), what, str(parent)))
    return found


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line(tmp_path)
    yield made
    made.core.close()


def answer(line: Line, head: dict[str, Any]) -> None:
    line.say("shell", "execute_reply", {"status": "ok"}, head)
    line.publish()


def end_of(head: dict[str, Any]) -> list[tuple[str, str, str]]:
    request = head["msg_id"]
    return [
        ("error", "Undone", request),
        ("status", "idle", request),
        ("execute_reply", "Undone", request),
    ]


def test_each_request_without_a_reply_gets_its_end(line: Line) -> None:
    answer(line, line.ask())
    line.checkpoint()
    answer(line, line.ask())
    running, looked = line.ask(), line.ask("inspect_request")
    line.ask("comm_msg")  # expects no reply
    waits = line.ask(taken=False)
    line.publish()
    line.go_back()
    assert shown(line.publish()) == [
        *end_of(running),
        ("status", "idle", looked["msg_id"]),
        ("inspect_reply", "Undone", looked["msg_id"]),
    ]
    (run,) = [frame for frame in line.core.tunnel.take() if frame.parts]
    assert jupyter_wire.header(run.parts)["msg_id"] == waits["msg_id"], "the kernel never had it"
    line.go_back()
    assert line.publish() == [], "it was told once"


def test_a_reply_that_was_on_its_way_counts_for_none(line: Line) -> None:
    line.checkpoint()
    head = line.ask()
    line.say("shell", "execute_reply", {"status": "ok"}, head)
    assert line.core.commit()  # on disk, and sent to nobody
    line.go_back()
    assert shown(line.publish()) == end_of(head)


def test_after_a_node_died_all_of_it_is_run_again(line: Line) -> None:
    line.checkpoint()
    head = line.ask()
    line.publish()
    line.go_back(undo=False)
    assert line.publish() == []
    (again,) = line.core.tunnel.take()
    assert jupyter_wire.header(again.parts)["msg_id"] == head["msg_id"]


def test_a_relay_that_is_killed_at_that_moment_tells_it_later(line: Line) -> None:
    line.checkpoint()
    head = line.ask()
    line.publish()
    line.go_back()
    line.core.store.close()
    line.core = Core("s", Store(line.path), Answers(SIGNER, lambda: LIKE))
    assert shown(line.core.take_outputs()) == end_of(head)


def test_a_cell_is_answered_also_when_its_reply_is_not_kept_any_more(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_store, "KEPT_OUTPUTS", 10)
    line.checkpoint()
    answer(line, line.ask())
    loud = line.ask()
    for number in range(40):
        line.say("iopub", "stream", {"name": "stdout", "text": str(number)}, loud)
        line.publish()
    line.go_back()
    assert shown(line.publish()) == end_of(loud)
