"""Who gives devices up for whom: by tier, priority and loss, idle ones first, nobody needlessly."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World

LOW, HIGH = {"priority": 0}, {"priority": 2}


@pytest.mark.parametrize("nodes", [(2,), (1, 1)], ids=["one node", "two nodes"])
@pytest.mark.parametrize(
    ("asked", "spared"),
    [
        ({"tier": BASIC}, {"tier": STANDARD}),
        ({"tier": BASIC, **HIGH}, {"tier": STANDARD, **LOW}),
        ({"tier": BASIC, **LOW}, {"tier": BASIC, **HIGH}),
        ({"tier": BASIC, **LOW, "costs": (90.0, 9.0, 9.0)}, {"tier": BASIC, **HIGH}),
        ({"tier": BASIC, "costs": (1.0, 1.0, 1.0)}, {"tier": BASIC, "costs": (9.0, 9.0, 9.0)}),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_order_in_which_sessions_leave(
    asked: dict[str, Any], spared: dict[str, Any], turned: bool, nodes: tuple[int, ...]
) -> None:
    world = World(*nodes)
    first, second = (spared, asked) if turned else (asked, spared)
    world.submit("x", 1, **first)
    world.submit("y", 1, **second)
    world.submit("premium", 1, 50, tier=PREMIUM)
    assert world.done() == [("Preempt", "y" if turned else "x", "preempt.tier")]


def test_who_has_just_come_back_is_asked_last() -> None:
    world = World(2)
    world.submit("long there", 1, 0, tier=BASIC, costs=(5.0, 5.0, 5.0))
    world.submit("just come", 1, 100, tier=BASIC, costs=(5.0, 5.0, 5.0))
    world.submit("premium", 1, 101, tier=PREMIUM)
    assert world.done() == [("Preempt", "long there", "preempt.tier")]


def test_lower_tiers_leave_first_on_however_many_nodes() -> None:
    world = World(*[1] * 12)
    for number in range(11):
        world.submit(number, 1, tier=STANDARD)
    world.submit("basic", 1, tier=BASIC)
    world.submit("premium", 1, tier=PREMIUM)
    assert world.done() == [("Preempt", "basic", "preempt.tier")]


def test_idle_sessions_of_any_tier_leave_before_busy_ones() -> None:
    world = World(2)
    world.submit("busy", 1, tier=BASIC)
    idle = world.submit("idle", 1, tier=PREMIUM)
    world.tell(ev.Idle("idle"))
    world.submit("waits", 1, tier=BASIC)
    assert world.done() == [("Preempt", "idle", "preempt.idle")]
    assert not idle.wants
    world.left(idle)
    assert idle.stage is Stage.AWAY


def test_busy_sessions_of_the_same_or_a_higher_tier_stay() -> None:
    world = World(2)
    world.submit("same", 1, tier=STANDARD)
    world.submit("higher", 1, tier=PREMIUM)
    waits = world.submit("waits", 1, tier=STANDARD)
    world.until(1e6)
    assert (waits.stage, world.state.claims["same"].stage) == (Stage.WAITING, Stage.HELD)


def test_idle_devices_are_left_to_their_session_for_a_while() -> None:
    world = World(1, idle_grace_s=30.0)
    world.submit("idle", 1)
    world.tell(ev.Idle("idle"), 100)
    world.submit("waits", 1, 110)
    assert not world.until(129.9)
    assert [a.rule for a in world.until(130)] == ["preempt.idle"]


def test_devices_just_granted_are_kept_for_a_while() -> None:
    world = World(1, min_run_s=60.0)
    world.submit("idle", 1)
    world.tell(ev.Idle("idle"), 1)
    world.submit("waits", 1, 2)
    assert not world.until(59.9)
    assert [a.rule for a in world.until(60)] == ["preempt.idle"]


def test_a_higher_tier_waits_for_neither() -> None:
    world = World(1, min_run_s=60.0, idle_grace_s=30.0)
    world.submit("idle", 1, tier=BASIC)
    world.tell(ev.Idle("idle"), 1)
    world.submit("waits", 1, 2, tier=PREMIUM)
    assert world.done() == [("Preempt", "idle", "preempt.idle")]


def test_more_attained_service_gives_way_after_its_turn() -> None:
    world = World(1, las_thresholds_device_s=(50.0,), quantum_s=100.0)
    served = world.submit("served", 1)
    waits = world.submit("waits", 1, 10)
    assert not world.until(99)
    assert [a.rule for a in world.until(111)] == ["preempt.service"]
    world.left(served)
    assert (waits.stage, served.stage) == (Stage.HELD, Stage.WAITING)
    assert not world.until(159)  # both are on one level when `waits` has had 50 s as well
    world.until(1000)
    assert (waits.stage, served.stage) == (Stage.HELD, Stage.WAITING)


def test_nobody_leaves_while_devices_are_free() -> None:
    world = World(2, 4)
    world.submit("basic", 2, tier=BASIC)
    world.submit("premium", 4, tier=PREMIUM)
    assert world.done() == [("Grant", "premium", "place.free")]


def test_nobody_leaves_when_that_is_not_enough() -> None:
    world = World(4)
    world.submit("basic", 2, tier=BASIC)
    world.submit("premium", 2, tier=PREMIUM)
    waits = world.submit("waits", 4, tier=STANDARD)
    world.until(1e5)
    assert (waits.stage, world.state.claims["basic"].stage) == (Stage.WAITING, Stage.HELD)


def test_those_beyond_what_is_needed_are_let_off() -> None:
    world = World(6)
    world.submit("one", 1, tier=BASIC)
    world.submit("two", 2, tier=BASIC, costs=(1.0, 1.0, 1.0))
    world.submit("three", 3, tier=BASIC, costs=(2.0, 2.0, 2.0))
    world.submit("premium", 3, 50, tier=PREMIUM)
    # In order of loss they are one, two, three; one and two are enough.
    assert [d[1] for d in world.done()] == ["one", "two"]
    world = World(5)
    world.submit("one", 1, tier=BASIC)
    world.submit("four", 4, tier=BASIC, costs=(1.0, 1.0, 1.0))
    world.submit("premium", 4, 50, tier=PREMIUM)
    assert [d[1] for d in world.done()] == ["four"]  # without one, that is just enough


def test_a_session_that_leaves_is_told_for_whom_and_why() -> None:
    world = World(1)
    victim = world.submit("victim", 1, tier=BASIC)
    cause = world.submit("cause", 1, tier=PREMIUM)
    [action] = world.actions
    assert isinstance(action, do.Preempt)
    assert (action.cause, action.rule) == (cause, "preempt.tier")
    assert (action.rule, action.cause and action.cause.id) == ("preempt.tier", "cause")
    assert (victim.cause, victim.rule, victim.preempted) == ("cause", "preempt.tier", True)


def test_what_somebody_leaves_is_kept_for_whom_it_left() -> None:
    world = World(2)
    one = world.submit("one", 1, tier=BASIC)
    two = world.submit("two", 1, tier=BASIC)
    large = world.submit("large", 2, tier=STANDARD)
    assert {d[1] for d in world.done()} == {"one", "two"}
    world.left(one)
    assert world.submit("small", 1, tier=STANDARD).stage is Stage.WAITING
    assert (large.stage, large.count) == (Stage.GATHERING, 0)
    world.left(two)
    assert world.done() == [("Grant", "large", "place.cleared")]


def test_all_of_a_gang_leaves_for_the_devices_of_one_node() -> None:
    world = World(2, 2)
    gang = world.submit("gang", 4, tier=BASIC)
    world.submit("premium", 1, tier=PREMIUM)
    assert world.done() == [("Preempt", "gang", "preempt.tier")]
    world.left(gang)
    assert world.state.pools[""].total[0] == 3
    assert gang.stage is Stage.WAITING


def test_a_gang_clears_several_nodes_at_once() -> None:
    world = World(2, 2, 2)
    small = [world.submit(n, 1, tier=BASIC) for n in range(5)]
    gang = world.submit("gang", 4, tier=PREMIUM)
    leaving = [c for c in small if c.stage is Stage.LEAVING]
    assert 2 < len(leaving) < 5
    for claim in leaving:
        assert gang.stage is Stage.GATHERING
        world.left(claim)
    assert (gang.stage, gang.count) == (Stage.HELD, 4)


def test_a_gang_asks_an_elastic_gang_only_for_what_it_can_give() -> None:
    world = World(4, 4)
    elastic = world.submit("elastic", 8, minimum=5, tier=BASIC)
    gang = world.submit("gang", 6, tier=PREMIUM)
    # Only 3 can go without the rest: so all of it has to leave, and is asked once.
    assert world.done() == [("Preempt", "elastic", "preempt.tier")]
    world.left(elastic)
    assert gang.stage is Stage.HELD
