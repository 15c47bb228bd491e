"""Devices that are kept free for premium sessions, and who leaves when one took them."""

from __future__ import annotations

import pytest
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World


def full(*, headroom: float = 0.25, nodes: tuple[int, ...] = (4, 4)) -> World:
    """Basic and standard sessions of one device each hold all that they may have."""
    world = World(*nodes, headroom_fraction=headroom, las_thresholds_device_s=(50.0,))
    for number in range(int(sum(nodes) * (1 - headroom))):
        tier = BASIC if number % 2 else STANDARD
        world.submit(f"s{number}", 1, tier=tier)
    return world


def free(world: World) -> int:
    [pool] = world.state.pools.values()
    return pool.total[0]


def test_who_is_asked_leaves_before_the_next_one_comes() -> None:
    world = full()
    assert free(world) == 2
    premium = world.submit("p0", 1, 10, tier=PREMIUM)
    assert premium.stage is Stage.HELD
    leaving = [action.claim for action in world.actions if action.rule == "preempt.headroom"]
    assert [claim.tier for claim in leaving] == [BASIC]
    world.left(leaving[0], 11)
    assert free(world) == 2
    assert leaving[0].stage is Stage.WAITING  # what is kept free is not for it


def test_nobody_else_is_asked_while_one_leaves() -> None:
    world = full()
    world.submit("p0", 1, 10, tier=PREMIUM)
    world.submit("p1", 1, 11, tier=PREMIUM)
    leaving = [c for c in world.state.claims.values() if c.stage is Stage.LEAVING]
    assert len(leaving) == 2
    for claim in leaving:
        world.left(claim, 12)
    assert free(world) == 2


def test_other_tiers_ask_nobody_to_leave() -> None:
    world = World(4, 4, headroom_fraction=0.25)
    for number in range(6):
        world.submit(f"s{number}", 1, tier=STANDARD)
        assert all(action.rule == "place.free" for action in world.actions)


@pytest.mark.parametrize(("devices", "asked"), [(1, 1), (3, 0)])
def test_nobody_leaves_more_than_is_missing(devices: int, asked: int) -> None:
    world = World(4, headroom_fraction=0.25)
    world.submit("holder", devices, tier=BASIC)
    for number in range(4 - devices - 1):
        world.submit(f"s{number}", 1, tier=STANDARD)
    world.submit("p", 1, 10, tier=PREMIUM)
    rules = [action.rule for action in world.actions]
    assert rules.count("preempt.headroom") == asked


def test_premium_sessions_make_no_room_for_each_other_ahead() -> None:
    world = World(4, headroom_fraction=0.25)
    for number in range(4):
        world.submit(f"p{number}", 1, tier=PREMIUM)
        assert [action.rule for action in world.actions] == ["place.free"]


def test_who_starves_takes_from_its_own_level() -> None:
    world = World(1, las_thresholds_device_s=(10.0,), quantum_s=5.0, starve_s=1000.0)
    first = world.submit("first", 1)
    second = world.submit("second", 1, 20)  # goes first: it had nothing yet
    world.left(first, 20)
    third = world.submit("third", 1, 40)
    world.left(second, 40)
    world.finish("third", 60)
    holder, waiter = (first, second) if first.stage is Stage.HELD else (second, first)
    assert holder.level == waiter.level == 1
    assert third.id not in world.state.claims
    done = world.until(1500)
    assert [(a.rule, a.claim) for a in done] == [("preempt.starves", holder)]


def test_a_premium_session_that_has_just_come_is_not_moved() -> None:
    """Moves for a gap that fits three: the session in the way is left alone for ten minutes."""
    world = World(4, 4, defrag_interval_s=300.0, defrag_gain=2.0)
    world.submit("a", 2, tier=PREMIUM)
    world.submit("gap", 2, tier=PREMIUM)
    world.submit("b", 1, tier=PREMIUM)
    world.finish("gap", 1)
    assert world.until(599) == []
    assert [action.rule for action in world.until(901)] == ["consolidate"]
