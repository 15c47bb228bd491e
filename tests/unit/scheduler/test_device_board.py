"""The newest figures of sessions' devices: who is told what, and when nothing is."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.service.nodes.device_board import DeviceBoard
from support.scheduler_core import World

GIB = 1 << 30


class Board:
    """A board over a world in which session "a" holds two devices of 4 GiB."""

    def __init__(self) -> None:
        self.world = World(2)
        self.world.holding("a", devices=2)
        self.told: list[dict[str, Any]] = []
        self.board = DeviceBoard(self.world.state, lambda: self.world.now)
        self.board.on_change = self._hear

    def _hear(self, view: SessionView, document: dict[str, Any]) -> None:
        assert view.id == document["session"]
        self.told.append(document)

    def report(self, *figures: tuple[int, float], node: str = "local") -> None:
        devices = [
            {
                "virtual_device": number,
                "device": f"cpu:{number}",
                "memory_used_bytes": memory,
                "utilisation_percent": percent,
            }
            for number, (memory, percent) in enumerate(figures)
        ]
        self.board.seen(node, {"a": devices})

    def do(self, event: ev.Event) -> None:
        """Decide on it, with the board as an observer, and let the agent answer."""
        self.board(self.world.do(event))
        while self.world.pending:
            before = len(self.world.all_actions)
            self.world.answer()
            assert len(self.world.all_actions) == before
        view = self.world.state.sessions.get("a")
        if view is not None:
            self.board(ev.Decision(sessions=(view,)))

    @property
    def document(self) -> dict[str, Any]:
        return self.board.document(self.world["a"])


def test_before_the_first_report_there_are_devices_without_figures():
    b = Board()
    assert b.document["at"] is None
    assert [d["device"] for d in b.document["devices"]] == ["cpu:0", "cpu:1"]
    assert {d["memory_used_bytes"] for d in b.document["devices"]} == {None}
    assert {d["memory_total_bytes"] for d in b.document["devices"]} == {4 * GIB}
    assert b.told == []


def test_what_ranks_share_is_told_when_its_state_changes() -> None:
    b = Board()
    report = {"state": "on", "why_off": "", "steps": 4, "executed": 8, "spared": 8, "compared": 2}
    for changes, told in (({}, 1), ({"steps": 9}, 1), ({"state": "off", "why_off": "x"}, 2)):
        squashing = {**report, **changes}
        figures = [
            {"virtual_device": v, "device": f"cpu:{v}", "squashing": squashing} for v in range(2)
        ]
        b.board.seen("local", {"a": figures})
        assert len(b.told) == told
        assert b.document["devices"][1]["squashing"] == squashing


def test_figures_are_kept_and_told_only_when_they_change():
    b = Board()
    b.report((GIB, 50.0), (0, 0.0))
    assert b.told == [b.document]
    first = b.document["devices"][0]
    assert (first["memory_used_bytes"], first["utilisation_percent"]) == (GIB, 50.0)
    b.world.now += 5.0
    b.report((GIB + 1000, 51.0), (0, 1.0))
    assert len(b.told) == 1, "nobody would see that"
    assert b.document["devices"][0]["utilisation_percent"] == 51.0, "but who asks gets it"
    b.report((GIB + 1000, 52.0), (0, 1.0))
    assert len(b.told) == 2, "small changes add up to what was told"
    b.report((2 * GIB, 52.0), (0, 1.0))
    assert len(b.told) == 3


def test_a_figure_that_is_not_known_any_more_is_told():
    b = Board()
    b.report((GIB, 50.0), (GIB, 50.0))
    b.report((GIB, 50.0))
    assert [d["memory_used_bytes"] for d in b.told[-1]["devices"]] == [GIB, None]


def test_reports_of_others_and_of_devices_that_it_gave_back_do_not_count():
    b = Board()
    b.report((GIB, 50.0), (GIB, 50.0), node="other")
    assert (b.told, b.document["at"]) == ([], None)
    b.report((GIB, 50.0), (GIB, 50.0))
    b.do(ev.ParkAsked("a", "alice"))
    assert b.told[-1]["devices"] == []
    assert len(b.told) == 2
    b.report((GIB, 50.0), (GIB, 50.0))
    assert b.document["devices"] == []
    assert len(b.told) == 2


def test_one_that_comes_back_is_told_anew():
    b = Board()
    b.report((GIB, 50.0), (GIB, 50.0))
    b.do(ev.ParkAsked("a", "alice"))
    b.do(ev.ResumeAsked("a", "alice"))
    assert b.world["a"].devices == ("cpu:0", "cpu:1")
    b.report((GIB, 50.0), (GIB, 50.0))
    assert [len(told["devices"]) for told in b.told] == [2, 0, 2]


def test_an_ended_session_leaves_nothing_behind():
    b = Board()
    b.report((GIB, 50.0), (GIB, 50.0))
    b.board(b.world.do(ev.EndAsked("a", "alice")))
    view = b.world["a"]
    b.board(b.world.do(ev.Ended("a")))
    assert b.told[-1]["devices"] == []
    assert b.board.document(view)["at"] is None
