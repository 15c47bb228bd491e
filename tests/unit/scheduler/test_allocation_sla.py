"""The account of what each tier promises, computed by hand: windows of 100 s."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_proxy.errors import Conflict
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from support.allocations import PREMIUM, STANDARD, Stage, World


def windowed(*sizes: int, **changed: Any) -> World:
    fractions = {"premium_fraction": 0.9, "standard_fraction": 0.5, "sla_window_s": 100.0}
    return World(*sizes, **{**fractions, **changed})


def judged(world: World, tier: int = STANDARD) -> tuple[int, int]:
    """(windows kept, windows) of a tier."""
    return world.state.account.kept[tier], world.state.account.windows[tier]


def seen(world: World, claim: Claim, at: float) -> tuple[float, float]:
    """(what it got, what it wanted) in the window of `at`."""
    world.until(at)
    world.state.account.advance(claim, at)
    return claim.sla_got, claim.sla_wanted


@pytest.mark.parametrize(("end", "windows"), [(50, 1), (100, 1), (101, 2), (350, 4)])
def test_windows_that_are_begun_count(end: float, windows: int) -> None:
    world = windowed(1)
    world.submit("a", 1)
    world.finish("a", end)
    assert judged(world) == (windows, windows)


@pytest.mark.parametrize(("free_at", "kept"), [(49, 1), (50, 1), (51, 0)])
def test_time_in_the_queue_counts(free_at: float, kept: int) -> None:
    world = windowed(1)
    world.submit("held", 1, tier=PREMIUM)
    claim = world.submit("a", 1)
    world.finish("held", free_at)
    assert seen(world, claim, 99) == pytest.approx((99 - free_at, 99))
    world.finish("a", 100)
    assert judged(world) == (kept, 1)


def test_a_partial_window_is_judged_by_what_was_wanted_in_it() -> None:
    world = windowed(1)
    world.submit("held", 1, tier=PREMIUM)
    world.submit("a", 1, 80)
    world.finish("held", 89)
    world.finish("a", 100)
    assert judged(world) == (1, 1)  # it got 11 s of 20


def test_a_window_goes_along_to_another_cluster() -> None:
    there, here = windowed(1), windowed(1)
    claim = there.submit("a", 1)
    there.submit("other", 1, tier=PREMIUM, at=20)  # takes the device
    there.left(claim, 20)
    there.tell(ev.Want("a"), 20)
    there.tell(ev.Depart("a"), 60)
    assert (judged(there), claim.waiting_since) == ((0, 0), 20)
    assert there.state.account.wanted == [0, 0, 1000]
    here.until(60)
    here.tell(ev.Submit(claim))
    assert claim.stage is Stage.HELD
    assert seen(here, claim, 90) == pytest.approx((20 + 30, 90))
    here.finish("a", 100)
    assert judged(here) == (1, 1)  # 60 s of 100


def test_who_has_devices_cannot_be_in_another_cluster() -> None:
    world = windowed(1)
    world.submit("a", 1)
    with pytest.raises(Conflict, match="session a does not wait for devices: park it before"):
        world.tell(ev.Depart("a"))


def test_many_windows_of_waiting_are_all_missed() -> None:
    world = windowed(1)
    world.submit("held", 1, tier=PREMIUM)
    world.submit("a", 1)
    world.finish("held", 1050)
    world.finish("a", 1200)
    assert judged(world) == (2, 12)  # the one that it got half of, and the last
    assert judged(world, PREMIUM) == (11, 11)


def test_idle_time_does_not_count() -> None:
    world = windowed(1)
    world.submit("other", 1, tier=PREMIUM)
    claim = world.submit("a", 1)
    world.tell(ev.Idle("a"), 10)  # it waited all of that
    world.finish("other", 20)
    world.tell(ev.Busy("a"), 80)
    assert seen(world, claim, 90) == pytest.approx((10, 20))
    world.tell(ev.Idle("a"), 95)
    world.tell(ev.Busy("a"), 450)
    world.finish("a", 460)
    assert judged(world) == (2, 2)  # 15 s of 25 in the first, and the last


def test_the_way_back_and_moves_count() -> None:
    world = windowed(1, 1)
    claim = world.submit("a", 1, costs=(5.0, 10.0, 20.0))
    world.tell(ev.Release("a"), 10)
    world.tell(ev.Want("a"), 20)
    assert seen(world, claim, 50) == pytest.approx((10 + 20, 40))
    [node] = world.where(claim)
    world.tell(ev.Drain(node))
    assert claim.stage is Stage.MOVING
    world.changed(claim, 75)
    assert seen(world, claim, 80) == pytest.approx((10 + 20 + 5, 70))


def test_a_way_back_of_several_windows_misses_them() -> None:
    world = windowed(1)
    world.submit("a", 1, costs=(0.0, 230.0, 0.0))
    world.tell(ev.Release("a"), 100)
    world.tell(ev.Want("a"), 100)
    world.finish("a", 500)
    # Kept: the first, the one of which it got 70 s, and the last.
    assert judged(world) == (3, 5)


def test_time_on_the_way_out_counts() -> None:
    world = windowed(1)
    claim = world.submit("a", 1)
    world.submit("p", 1, 20, tier=PREMIUM)
    assert claim.stage is Stage.LEAVING
    assert seen(world, claim, 50) == pytest.approx((20, 50))


@pytest.mark.parametrize(("devices", "share"), [(4, 0.75), (6, 0.5)])
def test_fewer_devices_than_its_world_size_count_in_part(devices: int, share: float) -> None:
    world = windowed(3)
    claim = world.submit("e", devices, minimum=1)
    assert claim.count == 3
    assert seen(world, claim, 60) == pytest.approx((60 * share, 60))


def test_who_is_behind_and_whether_all_can_be_served() -> None:
    world = windowed(2)
    world.submit("a", 2, tier=PREMIUM)
    claim = world.submit("b", 2)
    account = world.state.account
    assert seen(world, claim, 10) == (0, 10)
    assert account.behind(claim)
    assert not account.feasible(2)  # 1.8 and 1.0 devices are promised
    assert account.feasible(3)


def test_windows_may_get_another_length() -> None:
    world = windowed(1)
    claim = world.submit("a", 1)
    world.until(990)
    world.state.use(world.state.parameters.changed(sla_window_s=300.0))
    world.tell(ev.Tick())
    assert seen(world, claim, 1000)[1] <= 300
    world.finish("a", 1500)
    kept, windows = judged(world)
    assert kept == windows
    assert windows <= 10 + 2


def test_nothing_promised_is_always_kept() -> None:
    world = windowed(1, standard_fraction=0.0)
    world.submit("held", 1, tier=PREMIUM)
    world.submit("a", 1)
    world.finish("a", 250)
    assert judged(world) == (3, 3)


def test_a_guarantee_at_risk_takes_devices_of_its_tier() -> None:
    world = windowed(
        1,
        sla_window_s=3600.0,
        standard_fraction=0.4,
        las_thresholds_device_s=(10.0,),
        quantum_s=600.0,
    )
    world.submit("long", 1)
    world.tell(ev.Tick(), 500)
    late = world.submit("late", 1, 700)
    world.until(4000)
    assert late.stage is not Stage.WAITING
