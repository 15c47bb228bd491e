"""When a device proxy counts as silent, stopped or hung, and when a long operation is told."""

from __future__ import annotations

import pytest
from singularity_scheduler.agent.devices.pulse import (
    LATE_S,
    SILENT_S,
    HeartWatch,
    Verdict,
    WorkWatch,
)


def look(heart: HeartWatch, now: float, beat: int, **more: object) -> Verdict:
    facts = {"stopped": False, "starved": False, "limit_s": 10.0} | more
    return heart.look(now, beat, **facts)  # type: ignore[arg-type]


def beating(until: float = 1.0) -> HeartWatch:
    heart = HeartWatch()
    for number in range(1, round(until / 0.2) + 1):
        assert look(heart, number * 0.2, number) is Verdict.WELL
    return heart


def test_a_silence_is_told_once_and_its_end_too() -> None:
    heart = beating()
    assert look(heart, 1.0 + SILENT_S - 0.1, 5) is Verdict.WELL
    assert look(heart, 1.0 + SILENT_S, 5) is Verdict.SILENT
    assert look(heart, 3.0, 5) is Verdict.WELL
    assert look(heart, 3.2, 6) is Verdict.BACK
    assert look(heart, 3.4, 7) is Verdict.WELL


def test_a_heart_that_waits_for_a_core_is_told_later() -> None:
    heart = beating()
    assert look(heart, 2.0, 5, starved=True) is Verdict.WELL
    assert look(heart, 1.0 + LATE_S, 5, starved=True) is Verdict.SILENT


@pytest.mark.parametrize(("limit", "verdict"), [(10.0, Verdict.HUNG), (0.0, Verdict.WELL)])
def test_a_silent_proxy_is_given_up_after_the_limit(limit: float, verdict: Verdict) -> None:
    heart = beating()
    assert look(heart, 2.0, 5, limit_s=limit) is Verdict.SILENT
    assert look(heart, 10.9, 5, limit_s=limit) is Verdict.WELL
    assert look(heart, 11.0, 5, limit_s=limit, starved=True) is verdict


def test_nothing_is_expected_of_a_heart_that_never_beat() -> None:
    heart = HeartWatch()
    assert all(look(heart, now, 0) is Verdict.WELL for now in range(100))


def test_stopped_is_more_than_an_instant() -> None:
    heart = beating()
    assert look(heart, 1.2, 5, stopped=True) is Verdict.WELL
    assert look(heart, 1.4, 6, stopped=True) is Verdict.WELL  # a tracer let it go again
    assert look(heart, 1.6, 6, stopped=True) is Verdict.WELL
    assert look(heart, 1.8, 6, stopped=False) is Verdict.WELL
    looks = [look(heart, 1.85 + n * 0.05, 6, stopped=True) for n in range(3)]
    assert looks == [Verdict.WELL, Verdict.WELL, Verdict.STOPPED]


def test_never_is_also_never_for_a_stopped_one() -> None:
    heart = beating()
    looks = [look(heart, 1.2 + n * 0.2, 5, stopped=True, limit_s=0.0) for n in range(60)]
    assert set(looks) == {Verdict.WELL, Verdict.SILENT}


def test_who_stood_still_itself_begins_anew() -> None:
    heart = beating()
    heart.forgive(100.0)
    assert look(heart, 100.2, 5) is Verdict.WELL
    assert look(heart, 100.0 + SILENT_S, 5) is Verdict.SILENT


def test_a_long_operation_is_told_at_growing_distances_and_when_it_is_over() -> None:
    work = WorkWatch()
    told = {now: took for now in range(1, 40_000) if (took := work.look(now, 7, 60.0)) is not None}
    assert told == {61: 60, 601: 600, 3601: 3600, 21601: 21600}
    assert work.look(40_000, 0, 60.0) == 0.0
    assert work.look(40_001, 0, 60.0) is None
    assert work.look(40_002, 8, 60.0) is None
    assert work.look(40_010, 9, 60.0) is None  # a short one is not told at its end either
    assert work.look(99_999, 9, 0.0) is None
