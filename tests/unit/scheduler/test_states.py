"""The state table is complete, closed and explained."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.values.states import (
    DEVICE_MEANING,
    DEVICE_TRANSITIONS,
    FINAL,
    PROCESS_MEANING,
    PROCESS_TRANSITIONS,
    WORDS,
    DeviceEvent,
    DeviceState,
    InvalidTransition,
    ProcessEvent,
    ProcessState,
    next_device,
    next_process,
    word,
)
from singularity_scheduler.text.errors import in_words


def test_every_state_and_word_has_a_meaning() -> None:
    assert set(PROCESS_MEANING) == set(ProcessState)
    assert set(DEVICE_MEANING) == set(DeviceState)
    words = {
        word(p, d, moving) for p in ProcessState for d in DeviceState for moving in (False, True)
    }
    assert words == set(WORDS)
    assert all("\n" not in meaning for meaning in WORDS.values())


def test_every_event_is_used_and_final_states_are_final() -> None:
    assert {event for _, event in PROCESS_TRANSITIONS} == set(ProcessEvent)
    assert {event for _, event in DEVICE_TRANSITIONS} == set(DeviceEvent)
    leaving = {event for state, event in PROCESS_TRANSITIONS if state in FINAL}
    assert leaving == {ProcessEvent.REOPEN}


def test_every_state_can_be_reached_and_left() -> None:
    assert set(PROCESS_TRANSITIONS.values()) | {ProcessState.QUEUED} == set(ProcessState)
    assert {state for state, _ in PROCESS_TRANSITIONS} == set(ProcessState)
    assert set(DEVICE_TRANSITIONS.values()) == set(DeviceState)
    assert {state for state, _ in DEVICE_TRANSITIONS} == set(DeviceState)


def test_invalid_transition_says_who_where_what_and_how_it_came_there() -> None:
    with pytest.raises(InvalidTransition) as caught, in_words():
        next_device(DeviceState.NONE, DeviceEvent.PARK, "abc", ("held --park--> parking",))
    facts = {
        "session": "abc",
        "start": "none",
        "event": "park",
        "story": ["held --park--> parking"],
    }
    code = {"reason_code": "no_such_step", "reason_args": facts}
    assert caught.value.fields == facts | code
    assert str(caught.value) == (
        "session abc cannot 'park' while it is 'none' (its last steps: held --park--> parking)"
    )
    with pytest.raises(InvalidTransition, match="cannot 'live' while it is 'failed'"), in_words():
        next_process(ProcessState.FAILED, ProcessEvent.LIVE, "abc")


def test_words_people_read() -> None:
    live = ProcessState.LIVE
    assert word(live, DeviceState.NONE) == "ready"
    assert word(live, DeviceState.HELD) == "running"
    assert word(live, DeviceState.PARKING, moving=True) == "migrating"
    assert word(ProcessState.FAILED, DeviceState.PARKING) == "failed"
