"""Busy/idle reports when the agent is slow, absent or refuses; no kernel involved."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.events import EventManager, available_events
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult
from singularity_kernel.kernel.activity import Activity
from singularity_kernel.provision.environment import NESTED
from support.kernel_relay import wait_until


def cell() -> ExecutionResult:
    return ExecutionResult(ExecutionInfo("x", True, False, True, None))


@pytest.fixture
def ip() -> SimpleNamespace:
    return SimpleNamespace(events=EventManager(None, available_events))


@pytest.fixture
def server(short_dir: Path) -> Iterator[socket.socket]:
    """Listens; nobody accepts or reads unless the test does."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_dir / "agent.sock"))
        listening.listen()
        listening.settimeout(20)
        yield listening


@pytest.fixture
def activity(ip: SimpleNamespace, short_dir: Path) -> Iterator[Activity]:
    found = Activity(ip, str(short_dir / "agent.sock"))
    yield found
    found.stop()
    assert not found._thread.is_alive()


def reports(connection: socket.socket, count: int) -> list[bool]:
    with connection.makefile("r") as lines:
        return [json.loads(lines.readline())["params"]["busy"] for _ in range(count)]


def test_only_changes_are_told(server: socket.socket, activity: Activity) -> None:
    activity.start()
    connection, _ = server.accept()
    outer, inner, empty = cell(), cell(), cell()
    activity.before(outer.info)
    activity.before(inner.info)  # a cell run by a cell
    activity.after(inner)
    activity.after(empty)  # never started
    assert activity.busy
    activity.after(outer)
    cancelled = cell()
    activity.before(cancelled.info)
    activity.after(None)
    with connection:
        assert reports(connection, 5) == [False, True, False, True, False]


def test_a_cancelled_cell_of_one_thread_leaves_the_others(
    server: socket.socket, activity: Activity
) -> None:
    activity.start()
    elsewhere, here = cell(), cell()
    other = threading.Thread(target=activity.before, args=(elsewhere.info,))
    other.start()
    other.join()
    activity.before(here.info)
    activity.after(None)
    assert activity.busy
    activity.after(elsewhere)
    assert not activity.busy


def test_an_agent_that_never_reads_does_not_hold_a_cell_up(
    server: socket.socket, activity: Activity
) -> None:
    activity.start()
    for _ in range(20_000):  # more than any socket buffer takes
        result = cell()
        activity.before(result.info)
        activity.after(result)
    connection, _ = server.accept()
    connection.close()
    wait_until(lambda: activity._sock is not None, why="it did not connect again")


def test_an_agent_that_comes_later_learns_the_present_state(
    activity: Activity, short_dir: Path
) -> None:
    activity.start()  # nobody listens
    running = cell()
    activity.before(running.info)
    with socket.socket(socket.AF_UNIX) as late:
        late.bind(str(short_dir / "agent.sock"))
        late.listen()
        late.settimeout(20)
        connection, _ = late.accept()
    with connection:
        assert reports(connection, 1) == [True]


def test_none_outside_a_session_or_nested_in_one(
    ip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Activity.from_environment(ip) is None
    monkeypatch.setenv("SINGULARITY_SOCKET", "/nowhere")
    assert Activity.from_environment(ip) is not None
    monkeypatch.setenv(NESTED, "1")
    assert Activity.from_environment(ip) is None
