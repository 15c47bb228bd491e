"""Quotas of virtual clusters: borrowing, giving back, and never more than is theirs."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.allocation import events as ev
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World


def team(may_borrow: bool = True, devices: int = 2, size: int = 4) -> World:
    world = World(size)
    world.tell(ev.Quota("team", devices, may_borrow))
    return world


def test_devices_beyond_the_quota_are_borrowed() -> None:
    world = team()
    own = world.submit("own", 2, virtual_cluster="team")
    more = world.submit("more", 2, virtual_cluster="team")
    assert (own.borrowed, more.borrowed, more.stage) == (False, True, Stage.HELD)


def test_who_may_not_borrow_waits_though_devices_are_free() -> None:
    world = team(may_borrow=False)
    world.submit("own", 2, virtual_cluster="team")
    more = world.submit("more", 1, virtual_cluster="team")
    assert more.stage is Stage.WAITING
    world.finish("own")
    assert (more.stage, more.borrowed) == (Stage.HELD, False)


def test_borrowed_devices_are_given_back() -> None:
    world = team()
    world.submit("own", 2, virtual_cluster="team")
    more = world.submit("more", 2, virtual_cluster="team")
    cause = world.submit("other", 1)
    assert world.done() == [("Preempt", "more", "preempt.borrowed")]
    world.left(more)
    assert (cause.stage, more.stage, more.borrowed) == (Stage.HELD, Stage.WAITING, False)


def test_a_lower_tier_does_not_ask_for_borrowed_devices() -> None:
    world = team(devices=0)
    world.submit("more", 4, virtual_cluster="team", tier=STANDARD)
    assert world.submit("low", 1, tier=BASIC).stage is Stage.WAITING
    world.submit("high", 1, tier=PREMIUM)
    assert world.done() == [("Preempt", "more", "preempt.tier")]


def test_who_borrows_takes_free_and_idle_devices_only() -> None:
    world = team(devices=0)
    world.submit("busy", 3, tier=BASIC)
    world.submit("idle", 1, tier=PREMIUM)
    borrower = world.submit("b", 1, virtual_cluster="team", tier=PREMIUM)
    assert borrower.stage is Stage.WAITING
    world.tell(ev.Idle("idle"))
    world.until(20)
    assert world.done() == [("Preempt", "idle", "preempt.idle")]


def test_who_borrows_is_served_after_those_with_a_right() -> None:
    world = World(1)
    world.tell(ev.Quota("team", 0))
    world.submit("held", 1, tier=PREMIUM)
    borrower = world.submit("b", 1, virtual_cluster="team", kind="interactive", priority=2)
    right = world.submit("r", 1, priority=0)
    world.finish("held")
    assert (right.stage, borrower.stage) == (Stage.HELD, Stage.WAITING)


def test_what_was_borrowed_becomes_theirs_as_far_as_the_quota_reaches() -> None:
    world = team(size=6)
    world.submit("own", 2, virtual_cluster="team")
    one = world.submit("one", 1, virtual_cluster="team")
    three = world.submit("three", 3, virtual_cluster="team")
    assert one.borrowed
    assert three.borrowed
    world.finish("own")
    assert (one.borrowed, three.borrowed) == (False, True)


def test_a_session_that_shrinks_makes_room_in_its_quota() -> None:
    world = World(4, 4)
    world.tell(ev.Quota("team", 4))
    elastic = world.submit("e", 4, minimum=2, virtual_cluster="team")
    more = world.submit("more", 2, virtual_cluster="team", tier=PREMIUM)
    world.submit("fill", 2, tier=PREMIUM)
    assert more.borrowed
    world.submit("other", 2)
    assert world.done() == [("Resize", "e", "shrink")]
    assert more.borrowed
    world.changed(elastic)
    assert not more.borrowed


def test_devices_that_are_being_gathered_count() -> None:
    world = World(4)
    world.tell(ev.Quota("team", 4, False))
    victim = world.submit("low", 4, tier=BASIC)
    first = world.submit("first", 4, virtual_cluster="team")
    second = world.submit("second", 2, virtual_cluster="team")
    world.tell(ev.NodeUp("more", 4))
    assert (first.stage, second.stage) == (Stage.GATHERING, Stage.WAITING)
    world.left(victim)
    assert (first.stage, first.borrowed, second.stage) == (Stage.HELD, False, Stage.WAITING)
    assert world.state.quotas["team"].own == 4


def test_an_elastic_session_stays_within_its_quota() -> None:
    world = World(8)
    world.tell(ev.Quota("team", 3))
    claim = world.submit("e", 8, minimum=2, virtual_cluster="team")
    assert (claim.count, claim.borrowed) == (3, False)
    world.submit("a", 1)
    world.finish("a")
    assert world.done() == []


@pytest.mark.parametrize(("devices", "borrowed"), [(0, True), (3, True), (4, False), (None, False)])
def test_a_quota_may_change(devices: int | None, borrowed: bool) -> None:
    world = team(devices=4)
    claim = world.submit("a", 4, virtual_cluster="team")
    world.tell(ev.Quota("team", devices))
    assert claim.borrowed is borrowed
    world.submit("b", 1)
    assert bool(world.actions) is borrowed


def test_a_larger_quota_serves_who_waits() -> None:
    world = team(may_borrow=False, devices=0)
    claim = world.submit("a", 1, virtual_cluster="team")
    assert claim.stage is Stage.WAITING
    world.tell(ev.Quota("team", 1, False))
    assert claim.stage is Stage.HELD


def test_who_has_to_borrow_from_now_on_is_in_nobody_s_way() -> None:
    world = World(4, backfill_depth=0)
    world.tell(ev.NodeUp("x", 2, pool="x"))
    world.tell(ev.Quota("team", 4))
    world.submit("held", 2, tier=PREMIUM)
    large = world.submit("large", 4, virtual_cluster="team", priority=2)
    small = world.submit("small", 1)
    assert (large.stage, small.stage) == (Stage.WAITING, Stage.WAITING)
    world.submit("elsewhere", 1, pool="x", virtual_cluster="team")
    assert (large.stage, small.stage) == (Stage.WAITING, Stage.HELD)
