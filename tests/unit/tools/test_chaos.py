"""The chaos campaign's own parts: its schedule replays, and its checks see what they are for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chaos import faults, growth, processes, programs, report, schedule, settle, verbs, watch
from chaos.campaign import Result, sum_up
from chaos.clock import Clock
from chaos.notebooks import Idle
from chaos.subjects import Lines, Lost, Subject
from chaos.tab import Cell, Tab
from chaos.timeline import Timeline, Violation
from chaos.world import PATIENCE_S
from jupyter_client.session import Session
from singularity_proxy.errors import Unavailable
from singularity_spawner.proc import Process

HOUR = 3600.0


def test_a_seed_replays_and_another_one_is_another_schedule() -> None:
    assert schedule.draw(7, 600.0) == schedule.draw(7, 600.0)
    assert schedule.draw(7, 600.0) != schedule.draw(8, 600.0)


def test_a_longer_schedule_of_a_seed_begins_as_a_shorter_one() -> None:
    short, long = schedule.draw(3, 300.0), schedule.draw(3, 900.0)
    assert long[: len(short)] == short


@pytest.mark.parametrize("seed", range(5))
def test_three_times_20_minutes_have_600_faults_and_each_of_its_kind(seed: int) -> None:
    steps = schedule.draw(seed, HOUR / 3)
    named = [step.name for step in steps if step.kind == "fault"]
    assert len(named) >= 250, len(named)  # a fifth finds nobody
    assert set(named) == set(schedule.FAULTS)
    assert {step.name for step in steps if step.kind == "verb"} == set(schedule.VERBS)
    assert [step.at for step in steps] == sorted(step.at for step in steps)


def test_some_faults_come_together_and_some_while_the_last_one_is_repaired() -> None:
    times = [step.at for step in schedule.draw(1, HOUR) if step.kind == "fault"]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert sum(gap < 0.25 for gap in gaps) > 40
    assert sum(gap < 2.1 for gap in gaps) > 150


def test_each_step_has_something_that_carries_it_out() -> None:
    assert set(schedule.FAULTS) == set(faults.FAULTS)
    assert set(schedule.VERBS) == set(verbs.VERBS)


class FakeWorld:
    """Knows that the session is in that incarnation now."""

    def __init__(self, incarnation: int) -> None:
        self.timeline, self.incarnation = Timeline(lambda _: None), incarnation

    async def session(self, _: str) -> dict[str, int]:
        return {"incarnation": self.incarnation}


class FakeSubject:
    """A subject whose session was seen in incarnation 1."""

    name, rounds, session = "ada/gpt", 0, "s"
    check_went_back = Subject.check_went_back

    def __init__(self, incarnation: int = 1) -> None:
        self.world = FakeWorld(incarnation)
        self.counted, self.incarnation = 0, 1

    def advance(self, counted: int) -> None:
        self.counted = counted


EXPECTED = {0: ["a", "b", "c", "d"]}


def printed(*said: str, incarnation: int = 1, gap: bool = False) -> list[tuple[str, str]]:
    """(rule, text) of each violation that a subject is found to have committed by printing."""

    async def take() -> list[tuple[str, str]]:
        subject: Any = FakeSubject(incarnation)
        lines = Lines(subject, EXPECTED, gaps=True)
        for text in said:
            lines.take(text, gap)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [(v.rule, v.text) for v in subject.world.timeline.violations]

    return asyncio.run(take())


def test_lines_that_come_once_and_in_order_are_right_in_whatever_pieces() -> None:
    assert printed("step 0 a\nst", "ep 1 b\n", "step 2 c\nstep 3 d\n") == []


def test_another_value_a_missing_line_and_one_that_comes_twice_are_seen() -> None:
    assert [rule for rule, _ in printed("step 0 a\nstep 1 x\n")] == ["bitwise"]
    assert [rule for rule, _ in printed("step 0 a\nstep 2 c\n")] == ["lines"]
    assert [rule for rule, _ in printed("step 0 a\nstep 1 b\nstep 1 b\n")] == ["once"]
    assert [rule for rule, _ in printed("step 7 z\n")] == ["lines"]


def test_a_line_may_be_lost_with_a_server_and_come_again_after_a_return() -> None:
    assert printed("step 0 a\nstep 2 c\n", gap=True) == []
    assert printed("step 0 a\nstep 1 b\nstep 1 b\n", incarnation=2) == []
    assert [r for r, _ in printed("step 1 b\nstep 0 x\n", incarnation=2, gap=True)] == ["bitwise"]


def test_a_return_takes_several_cells_back_each_of_them_once() -> None:
    async def take() -> list[str]:
        subject: Any = FakeSubject(2)
        first, second = (Lines(subject, EXPECTED, gaps=True) for _ in range(2))
        for cell in (first, second, first):
            for text in ("step 0 a\n", "step 1 b\n", "step 0 a\n", "step 1 b\n"):
                cell.take(text, False)
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            before = [v.rule for v in subject.world.timeline.violations]
            if cell is second:
                assert before == []
        return before

    assert asyncio.run(take()) == ["once"]


def test_the_same_violation_counts_once() -> None:
    timeline = Timeline(lambda _: None)
    for _ in range(3):
        timeline.violate("stuck", "ada/gpt", "it waits")
    timeline.violate("stuck", "bob/csv", "it waits")
    assert len(timeline.violations) == 2
    [entry, _] = timeline.around(timeline.violations[0].at)
    assert "ada/gpt" in str(entry)


def test_growth_is_how_the_floor_rises_at_equal_numbers_of_sessions() -> None:
    def of(value: Callable[[int], float], live: Callable[[int], int]) -> float | None:
        return growth.grown_by([(60.0 * t, live(t), value(t)) for t in range(40)])

    # More sessions, and what is taken for a moment, are no growth.
    assert of(lambda t: 100.0 * (1 + t % 2), lambda t: 1 + t % 2) == pytest.approx(0.0)
    assert of(lambda t: 900.0 if t % 3 == 0 else 100.0, lambda t: 4) == pytest.approx(0.0)
    # Twice as much at the end, at either number of sessions, is.
    grown = of(lambda t: (1 + t % 2) * (100.0 + 4.0 * t), lambda t: 1 + t % 2)
    assert grown is not None
    assert grown > 0.5
    assert of(lambda t: 100.0, lambda t: t) is None, "no number of sessions twice"
    assert growth.grown_by([(0.0, 1, 1.0), (100.0, 1, 2.0)]) is None, "too short"


@pytest.mark.parametrize("killed_at", [None, 20], ids=["lives", "killed"])
def test_growth_is_that_of_one_process_not_of_the_next(
    monkeypatch: pytest.MonkeyPatch, killed_at: int | None
) -> None:
    monkeypatch.setattr(processes, "rss", lambda pid: 100.0 * pid)
    monkeypatch.setattr(processes, "fds", lambda pid: 7.0)
    found = growth.Growth(nodes=1)
    for minute in range(40):
        pid = 2 if killed_at is not None and minute >= killed_at else 1
        service = processes.Found(Process(pid, 7, 1, False), "service", "", "", "")
        found.look(60.0 * minute, [service], live=3)
    assert found.of("service", "rss") == pytest.approx(0.0), "the second one is larger, not grown"
    assert len([lives for lives in found.samples["service", "rss"] if lives]) == (
        1 if killed_at is None else 2
    )


def test_the_report_has_sums_the_worst_and_each_violation() -> None:
    first = Result(1, 60.0, {"faults": 10, "violations": 0, "service_back_s_p95": 2.0})
    second = Result(2, 60.0, {"faults": 12, "violations": 1, "service_back_s_p95": 3.5})
    second.violations = [Violation(5.0, "lost", "ada/gpt", "gone")]
    first.by_name, second.by_name = {"fault hub.kill": 2}, {"fault hub.kill": 1}
    assert sum_up([first, second]) == {"faults": 22, "violations": 1, "service_back_s_p95": 3.5}
    found = report.render([first, second], 1.0, 3)
    assert (found["faults"], found["seeds"], found["seconds"]) == (22, [1, 2], 120.0)
    assert found["violations_kept"] is False
    assert found["service_back_s_p95_kept"] is False
    assert found["by_name"] == {"fault": {"hub.kill": 3}}
    [violation] = found["violation_list"]
    assert (violation["seed"], violation["rule"]) == (2, "lost")


def test_the_rows_of_the_writer_and_where_two_lists_differ() -> None:
    assert programs.csv_rows(3) == ["0,0", "1,1", "2,33"]
    assert programs.first_difference(["a", "b"], ["a", "c"]) == 1
    assert programs.first_difference(["a"], ["a", "c"]) == 1
    assert programs.lines("rank 1 step 2 0x1p+0\nstep 3 x\nstep") == [(1, 2, "0x1p+0"), (0, 3, "x")]


def test_the_clock_moves_for_service_and_agents_alone(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    clock.make()
    clock.set(7200.0)

    def ahead(*words: str) -> float:
        program = "import time; print(time.time() - time.clock_gettime(time.CLOCK_REALTIME))"
        env = {**os.environ, **clock.environment()}
        command = [sys.executable, "-c", program, *words]
        return float(subprocess.run(command, env=env, capture_output=True, check=True).stdout)

    assert ahead("singularity_scheduler.agent") == pytest.approx(7200.0, abs=1.0)
    assert ahead("singularity_proxy.device") == pytest.approx(0.0, abs=1.0)
    clock.set(0.0)
    assert ahead("singularity_scheduler.service") == pytest.approx(0.0, abs=1.0)


def test_a_mistake_of_the_campaign_is_told_and_its_report_stays() -> None:
    world = FakeWorld(1)

    async def fail() -> None:
        raise KeyError("nobody thought of this")

    async def go() -> None:
        task = asyncio.create_task(fail(), name="step")
        await asyncio.wait({task})
        settle.note_mistake(world, task)  # type: ignore[arg-type]

    asyncio.run(go())
    [told] = world.timeline.violations
    assert "nobody thought of this" in told.text


class FakeTab:
    """A page whose messages are kept, in a world where each look for news takes 2 s."""

    def __init__(self, world: Any) -> None:
        self.world, self.sockets, self.comes = world, [], 0
        """`comes`: with which sending the reply does; 0: never."""

    async def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        self.world.calm_s += 2.0
        self.world.timeline.began -= 2.0
        self.world.see()
        raise Unavailable(what)

    async def send(self, cell: Cell) -> None:
        cell.sent += 1
        if cell.sent == self.comes:
            cell.status, cell.idle = "ok", True


def lost_in_store(*, hit: bool, busy: bool = False, comes: int = 2) -> tuple[list[str], Cell]:
    """The rules that were broken, and the cell, of a notebook that was suspended when its cell was
    sent, with nothing on its way to the kernel that would call it back."""
    world: Any = FakeWorld(1)
    world.calm_s, world.off, world.draining = 0.0, set(), False
    world.hit_since = lambda at, user, session: hit and at <= 5.0
    tab: Any = FakeTab(world)
    tab.comes = comes
    notebook = Idle(world, "ada", 1)
    cell = Cell("id", "print(1)", 0.0, sent=1)

    def see() -> None:
        notebook.see({"process_state": state, "busy": busy, "called_back": False, "reason": "-"})
        notebook.seen_at = world.timeline.now

    async def bring_back() -> dict[str, Any]:
        nonlocal state
        state = "live"
        if busy:
            cell.status, cell.idle = "ok", True
        return {}

    state, world.see, notebook.bring_back = "suspended", see, bring_back  # type: ignore[method-assign]
    with contextlib.suppress(Lost):
        asyncio.run(notebook._finish(tab, cell))
    return [v.rule for v in world.timeline.violations], cell


def test_a_cell_that_was_lost_in_the_store_is_sent_again_where_something_was_hit() -> None:
    assert lost_in_store(hit=True)[0] == []
    assert lost_in_store(hit=True)[1].sent == 2


def test_a_notebook_that_is_forgotten_in_the_store_is_seen() -> None:
    rules, cell = lost_in_store(hit=False)
    assert (rules, cell.sent) == (["stuck", "messages"], 2)
    assert lost_in_store(hit=True, busy=True)[0] == ["stuck"]


def test_a_cell_of_which_nothing_ever_comes_back_is_seen() -> None:
    rules, cell = lost_in_store(hit=True, comes=0)
    assert rules == ["stuck", "messages", "messages"]
    assert cell.sent == 3


def test_a_kernel_that_has_run_a_cell_takes_it_when_it_is_sent_again() -> None:
    sent: list[str] = []

    class Socket:
        async def write_message(self, message: str) -> None:
            sent.append(message)

    async def twice() -> Cell:
        tab = Tab(FakeWorld(1), "ada", "idle.ipynb")  # type: ignore[arg-type]
        tab._socket = Socket()  # type: ignore[assignment]
        cell = await tab.execute("visits += 1")
        await tab.send(cell)
        return cell

    assert asyncio.run(twice()).sent == 2
    server, kernel = Session(key=b"k"), Session(key=b"k")
    for message in sent:  # as a Jupyter server passes it on
        parts = server.serialize(json.loads(message))
        _, parts = kernel.feed_identities(parts)
        assert kernel.deserialize(parts)["content"]["code"] == "visits += 1"


@pytest.mark.parametrize(("sent", "wrong"), [(1, "visit 6 instead of 5"), (2, "")])
def test_a_cell_that_was_sent_twice_may_have_been_run_twice(sent: int, wrong: str) -> None:
    world: Any = FakeWorld(1)
    world.hit_since = lambda at, user, session: False
    notebook = Idle(world, "ada", 1)
    notebook.tab = Tab(world, "ada", "idle.ipynb")
    cell = Cell("id", "print(1)", 0.0, sent=sent)
    assert asyncio.run(notebook.judge_count(4, 6, "visit", cell)) == wrong


def test_a_notebook_is_not_visited_before_what_it_begins_with_was_run() -> None:
    world: Any = FakeWorld(1)
    notebook = Idle(world, "ada", 1)
    looks = []

    async def look() -> str:
        looks.append(notebook.begun)
        return "seen"

    notebook.look = look  # type: ignore[method-assign]
    assert asyncio.run(notebook.visit()) == ""
    notebook.begun = True
    assert asyncio.run(notebook.visit()) == "seen"
    assert looks == [True]


@pytest.mark.parametrize("now", [2, 4, 9])
def test_a_count_may_jump_to_that_of_a_checkpoint_once(now: int) -> None:
    world: Any = FakeWorld(2)
    world.hit_since = lambda at, user, session: False
    notebook = Idle(world, "ada", 1)
    notebook.tab = Tab(world, "ada", "idle.ipynb")
    cell = Cell("id", "print(1)", 0.0, sent=1)
    assert asyncio.run(notebook.judge_count(4, now, "visit", cell)) == ""
    assert not world.timeline.violations
    assert notebook.counted == now
    again = asyncio.run(notebook.judge_count(4, now, "visit", cell))
    told = [v.rule for v in world.timeline.violations]
    assert (again, told) == (("visit 9 instead of 5", []) if now == 9 else ("", ["once"]))


def test_a_session_that_nobody_began_is_a_leak() -> None:
    """As one is that takes the place of a fork which was ended."""
    subject = SimpleNamespace(name="user1/idle", session="now", history=["before"])
    world = SimpleNamespace(timeline=Timeline(), calm_s=0.0, ended={"ended": 0.0}, nodes=["node-1"])
    look = watch.Watch(world, [subject])  # type: ignore[arg-type, list-item]
    ours = {name: {"forked_from": None} for name in ("now", "before", "ended")}
    fork = {"fork": {"forked_from": "now"}}
    stranger = {"forked_from": None, "name": "idle.ipynb", "user": "user1", "reason": "it runs"}
    for world.calm_s in (0.0, 300.0):
        look._look_for_strangers({**ours, **fork})
    assert world.timeline.violations == []
    for world.calm_s in (300.0, 300.0 + PATIENCE_S + 1.0):
        assert world.timeline.violations == []
        look._look_for_strangers({**ours, "another": stranger})
    [violation] = world.timeline.violations
    assert (violation.rule, violation.subject) == ("leak", "another")
