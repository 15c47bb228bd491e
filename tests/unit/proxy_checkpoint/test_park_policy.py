"""Which way a device is parked: pure decisions from what was measured."""

from __future__ import annotations

import pytest
from singularity_proxy.checkpoint.device.park_policy import (
    COPY,
    DRIVER,
    KEPT,
    MAX_PENALTY,
    Choice,
    Measured,
    Measurements,
    choose,
    expected_s,
)

GIB = 1 << 30


def decide(known: Measurements, **changes: object) -> Choice:
    usual = {
        "device_bytes": 4 * GIB,
        "host_free_bytes": 64 * GIB,
        "driver": True,
        "recoverable": True,
    }
    return choose(known, **(usual | changes))  # type: ignore[arg-type]


def test_each_way_is_measured_once_and_then_the_faster_one_is_taken() -> None:
    known = Measurements()
    assert decide(known).way == DRIVER
    known.remember(DRIVER, Measured(4 * GIB, 2.0))
    assert decide(known).way == COPY
    known.remember(COPY, Measured(4 * GIB, 1.0))
    assert decide(known) == Choice(COPY, "expected 1.00 s instead of 2.00 s")
    for _ in range(KEPT):
        known.remember(COPY, Measured(4 * GIB, 9.0))
    assert decide(known) == Choice(DRIVER, "expected 2.00 s instead of 9.00 s")
    assert len(known.taken[COPY]) == KEPT


def test_the_driver_that_is_wanted_is_not_measured_against_anything() -> None:
    known = Measurements()
    known.remember(DRIVER, Measured(4 * GIB, 9.0))
    known.remember(COPY, Measured(4 * GIB, 1.0))
    known.failed()
    assert decide(known).way == COPY
    assert decide(known, wanted=DRIVER) == Choice(DRIVER, "it is set so")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"driver": False}, "cannot checkpoint"),
        ({"recoverable": False}, "keeps no journal"),
        ({"host_free_bytes": 5 * GIB - 1}, "no room"),
        ({"host_free_bytes": 0}, "no room"),
        ({"host_free_bytes": 0, "wanted": DRIVER}, "no room"),
        ({"recoverable": False, "wanted": DRIVER}, "keeps no journal"),
        ({"wanted": COPY}, "set so"),
    ],
)
def test_the_driver_is_not_taken_where_it_could_lose_something(
    changes: dict[str, object], reason: str
) -> None:
    choice = decide(Measurements(), **changes)
    assert choice.way == COPY
    assert reason in choice.reason


def test_a_driver_that_fails_is_left_alone_for_longer_and_longer() -> None:
    known = Measurements()
    pauses = []
    for _ in range(8):
        known.failed()
        pause = 0
        while decide(known).way == COPY:
            known.remember(COPY, Measured(GIB, 1.0))
            pause += 1
        pauses.append(pause)
    assert pauses == [2, 4, 8, 16, 32, 64, MAX_PENALTY, MAX_PENALTY]
    known.remember(DRIVER, Measured(GIB, 0.1))
    assert decide(known).way == DRIVER
    assert known.failures == 0


@pytest.mark.parametrize(
    ("measured", "size", "seconds"),
    [
        ([], 5, None),
        ([(10, 2.0)], 20, 4.0),
        ([(10, 2.0), (10, 4.0)], 10, 3.0),
        ([(10, 3.0), (20, 4.0)], 30, 5.0),  # a fixed part of 2 s and 0.1 s per unit
        ([(10, 4.0), (20, 2.0)], 30, 6.0),  # noise: nothing gets faster by being larger
        ([(0, 1.0)], 100, 1.0),
    ],
)
def test_the_expectation_is_a_fixed_part_and_a_rate(
    measured: list[tuple[int, float]], size: int, seconds: float | None
) -> None:
    found = expected_s([Measured(*m) for m in measured], size)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_measurements_are_remembered_as_text() -> None:
    known = Measurements()
    known.remember(COPY, Measured(GIB, 0.5))
    known.failed()
    assert Measurements.from_json(known.to_json()) == known
    for text in ("", "{}", "[]", '{"taken": {"copy": [{}]}, "failures": 0, "skipped": 0}'):
        with pytest.raises(ValueError):  # noqa: PT011  (the text is Python's or ours)
            Measurements.from_json(text)
