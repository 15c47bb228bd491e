"""Elastic sessions: fewer devices rather than none, and more before they lie idle."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World


def test_it_starts_with_what_is_free() -> None:
    world = World(4)
    world.submit("a", 1)
    claim = world.submit("e", 4, minimum=2)
    assert claim.count == 3
    assert world.done() == [("Grant", "e", "place.smaller")]


@pytest.mark.parametrize(("used", "count"), [(1, 4), (5, 2), (6, 2), (7, 0)])
def test_it_has_only_numbers_of_devices_that_it_allows(used: int, count: int) -> None:
    world = World(8)
    world.submit("a", used, tier=PREMIUM)
    assert world.submit("e", 8, minimum=2, counts=(2, 4, 8)).count == count


def test_a_wide_one_starts_on_all_that_is_free_or_on_one_node() -> None:
    world = World(4, 4)
    world.submit("a", 1)
    assert world.submit("e", 8, minimum=2).count == 7
    spread = World(4, 4)
    spread.submit("a", 2)
    spread.submit("b", 3)  # on the other node; few devices are taken of one node alone
    assert spread.where(spread.submit("e", 8, minimum=2, counts=(2, 3, 8))) == {"n0": 2}


def test_it_grows_when_devices_become_free() -> None:
    world = World(4)
    world.submit("a", 2)
    claim = world.submit("e", 4, minimum=1)
    world.finish("a", 10)
    assert world.done() == [("Resize", "e", "grow")]
    assert claim.stage is Stage.RESIZING
    world.changed(claim)
    assert (claim.stage, claim.count) == (Stage.HELD, 4)


def test_it_grows_on_its_interval_only() -> None:
    world = World(4)
    world.submit("a", 2)
    world.submit("e", 4, minimum=1, interval_s=100.0)
    world.finish("a", 10)
    assert world.done() == []
    assert not world.until(99)
    assert [a.rule for a in world.until(100)] == ["grow"]


def test_those_who_wait_go_before_growth() -> None:
    world = World(4)
    world.submit("a", 2)
    claim = world.submit("e", 4, minimum=2)
    waits = world.submit("b", 2, tier=BASIC)
    world.finish("a")
    assert waits.stage is Stage.HELD
    assert claim.count == 2


def test_higher_tiers_grow_first() -> None:
    world = World(4)
    world.submit("fill", 2, tier=PREMIUM)
    low = world.submit("low", 2, minimum=1, tier=BASIC, counts=(1, 2), interval_s=1.0)
    assert low.count == 2
    high = world.submit("high", 2, 5, minimum=1, tier=STANDARD)
    world.changed(low)
    assert (low.count, high.count) == (1, 1)
    world.finish("fill", 10)
    assert [d[1] for d in world.done()] == ["high", "low"]


@pytest.mark.parametrize("idle", [False, True])
def test_idle_ones_do_not_grow(idle: bool) -> None:
    world = World(4)
    world.submit("a", 2)
    world.submit("e", 4, minimum=1)
    if idle:
        world.tell(ev.Idle("e"))
    world.finish("a")
    assert bool(world.actions) is not idle


@pytest.mark.parametrize(("rest_s", "grows"), [(5.0, False), (60.0, True)])
def test_after_a_rest_it_grows_at_once(rest_s: float, grows: bool) -> None:
    """A pause that is none keeps it to its interval."""
    world = World(4, idle_grace_s=30.0)
    world.submit("a", 2, tier=PREMIUM)
    claim = world.submit("e", 4, minimum=1, interval_s=500.0)
    world.tell(ev.Idle("e"), 10)
    world.finish("a", 11)
    assert world.done() == []
    world.tell(ev.Busy("e"), 10 + rest_s)
    assert world.done() == ([("Resize", "e", "grow")] if grows else [])
    if grows:
        world.changed(claim)
        assert claim.count == 4
    else:
        assert not world.until(499)
        assert [a.rule for a in world.until(500)] == ["grow"]


def test_what_is_kept_for_premium_sessions_is_not_grown_into() -> None:
    world = World(4, headroom_fraction=0.5)
    world.submit("a", 1)
    claim = world.submit("e", 3, minimum=1)
    assert claim.count == 1
    world.finish("a")
    assert [d[2] for d in world.done()] == ["grow"]
    world.changed(claim)
    world.until(1000)
    assert claim.count == 2


def test_it_shrinks_before_anybody_leaves_and_not_more_than_needed() -> None:
    world = World(8)
    world.submit("rigid", 2)
    claim = world.submit("e", 6, minimum=1)
    waits = world.submit("w", 2, 50, tier=PREMIUM)
    assert world.done() == [("Resize", "e", "shrink")]
    assert claim.count == 4
    assert waits.stage is Stage.GATHERING
    world.changed(claim)
    assert (waits.stage, claim.stage) == (Stage.HELD, Stage.HELD)


def test_it_shrinks_for_its_own_tier_and_never_below_its_least() -> None:
    world = World(4)
    claim = world.submit("e", 4, minimum=3)
    world.submit("one", 1)
    assert [d[2] for d in world.done()] == ["shrink"]
    world.changed(claim)
    two = world.submit("two", 1)
    assert (claim.count, two.stage) == (3, Stage.WAITING)


def test_it_shrinks_on_its_interval_only() -> None:
    world = World(4)
    world.submit("e", 4, minimum=1, interval_s=100.0)
    world.submit("w", 1, 10)
    assert not world.until(99)
    assert [a.rule for a in world.until(110)] == ["shrink"]


def test_it_shrinks_to_a_number_that_it_allows() -> None:
    world = World(8)
    claim = world.submit("e", 8, minimum=2, counts=(2, 4, 8))
    world.submit("w", 1)
    assert claim.count == 4
    world.changed(claim)
    assert world.state.claims["w"].stage is Stage.HELD
    # What it left beyond what was needed is free; it takes nothing back that does not add up to 8.
    assert world.state.pools[""].total[0] == 3


def test_an_elastic_one_of_several_nodes_leaves_the_node_that_is_asked_for() -> None:
    world = World(4, 4)
    claim = world.submit("e", 8, minimum=4)
    world.submit("w", 4, tier=PREMIUM)
    assert [d[2] for d in world.done()] == ["shrink"]
    [node] = world.where(claim).items()
    assert node[1] == 4
    world.changed(claim)
    assert world.where(world.state.claims["w"]).keys().isdisjoint({node[0]})


@pytest.mark.parametrize("more", [{}, {"interval_s": 500.0}])
def test_growth_that_failed_is_not_tried_again_at_once(more: dict[str, Any]) -> None:
    world = World(2, scale_interval_s=120.0)
    world.submit("a", 1)
    claim = world.submit("e", 2, minimum=1, **more)
    world.finish("a", 600)
    [action] = world.actions
    assert isinstance(action, do.Resize)
    world.tell(ev.ChangeFailed("e", claim.epoch), 601)
    assert (world.done(), claim.count, claim.stage) == ([], 1, Stage.HELD)
    wait = more.get("interval_s", 120.0)
    assert not world.until(600 + wait)
    assert [a.rule for a in world.until(601 + wait)] == ["grow"]


def test_a_shrink_that_failed_leaves_both_as_they_were() -> None:
    world = World(4)
    claim = world.submit("e", 4, minimum=1)
    waits = world.submit("w", 1)
    world.tell(ev.ChangeFailed("e", claim.epoch))
    assert (claim.count, claim.stage, waits.stage) == (4, Stage.HELD, Stage.WAITING)
    world.until(10_000)
    assert waits.stage is Stage.GATHERING
