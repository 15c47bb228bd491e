"""The session's count of steps, from what the rings of its processes show."""

from __future__ import annotations

from pathlib import Path

from singularity_proxy.worker import steps
from singularity_scheduler.agent.sessions.steps import StepCount


def test_one_process_counts_from_its_start_also_under_the_next_agent() -> None:
    count = StepCount()
    assert count.look({"r1": 40})
    assert count.total == 40
    assert not count.look({"r1": 40})
    assert count.look({"r1": 43})
    assert count.total == 43


def test_processes_in_step_make_one_step_together() -> None:
    count = StepCount()
    count.look({})
    count.look({"r1": 0, "r2": 0})
    for step in range(1, 100):  # seen a little apart
        count.look({"r1": step, "r2": step - 1})
    assert count.total == 99
    count.look({"r1": 99, "r2": 99})
    assert count.total == 99


def test_one_after_another_counts_on() -> None:
    count = StepCount()
    count.look({})
    count.look({"r1": 0})
    count.look({"r1": 10})
    assert not count.look({})
    count.look({"r2": 0})
    assert count.look({"r2": 5})
    assert count.total == 15


def test_a_number_that_cannot_be_is_none() -> None:
    count = StepCount()
    assert not count.look({"r1": 1 << 60})
    assert count.look({"r1": 3, "r2": 1 << 63})
    assert count.total == 3


def test_a_file_that_cannot_show_them_breaks_no_device(tmp_path: Path) -> None:
    small = tmp_path / "r1.ring"
    small.write_bytes(b"x" * 100)
    for path in (small, tmp_path / "gone"):
        steps.show_in(str(path))
        assert steps._page is None
