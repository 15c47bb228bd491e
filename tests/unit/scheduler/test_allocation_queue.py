"""In which order those who wait are served, and who may overtake whom."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from singularity_scheduler.core.allocation.queue import key_of
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World


def served(world: World, *claims: dict[str, Any]) -> list[ev.Id]:
    """In which order claims get the only device."""
    world.submit("first", 1, tier=PREMIUM)
    for number, more in enumerate(claims):
        world.submit(number, 1, **{"tier": PREMIUM, **more})
    order: list[ev.Id] = []
    world.finish("first")
    while world.actions:
        [action] = world.actions
        order.append(action.claim.id)
        world.finish(action.claim.id)
    return order


def test_higher_tiers_go_first() -> None:
    world = World(1)
    assert served(world, {"tier": BASIC}, {"tier": STANDARD}, {"tier": PREMIUM}) == [2, 1, 0]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_priorities_go_before_times(order: tuple[int, ...]) -> None:
    ranks: list[dict[str, Any]] = [{"priority": p} for p in order]
    assert served(World(1), *ranks) == [order.index(p) for p in (2, 1, 0)]


def test_first_come_first_served() -> None:
    assert served(World(1), *[{}] * 5) == [0, 1, 2, 3, 4]


def test_notebooks_go_before_batch_jobs() -> None:
    assert served(World(1), {"priority": 2}, {"kind": "interactive", "priority": 0}) == [1, 0]


def test_the_order_of_reasons() -> None:
    def place(risk: bool, starves: bool, notebook: bool, little: bool, high: bool) -> Any:
        claim = Claim(0, 1, kind="interactive" if notebook else "batch", priority=int(high))
        claim.at_risk, claim.starves, claim.level = risk, starves, int(not little)
        return key_of(claim)

    everything = list(product((True, False), repeat=5))
    assert sorted(everything, key=lambda one: place(*one)) == everything


def test_little_service_goes_before_much() -> None:
    world = World(1, las_thresholds_device_s=(50.0,))
    had = world.submit("had much", 1, priority=2)
    world.tell(ev.Release("had much"), 60)
    world.submit("held", 1, tier=PREMIUM)
    world.tell(ev.Want("had much"))
    new = world.submit("new", 1, priority=0)
    world.finish("held")
    assert (new.stage, had.stage) == (Stage.HELD, Stage.WAITING)


def test_who_waited_too_long_goes_first() -> None:
    world = World(1, starve_s=100.0)
    world.submit("held", 1, tier=PREMIUM)
    starves = world.submit("long", 1, 0, priority=0)  # from the very first moment on
    world.submit("notebook", 1, 50, kind="interactive", priority=2)
    assert not starves.starves
    world.until(100)
    assert starves.starves
    world.finish("held")
    assert world.done() == [("Grant", "long", "place.free")]
    assert not starves.starves


def test_who_waited_too_long_goes_first_also_where_nothing_can_be_promised() -> None:
    world = World(1, premium_fraction=0.95, standard_fraction=0.7, starve_s=7200.0)
    world.submit("held", 1, tier=PREMIUM)
    world.submit("more", 1, tier=PREMIUM)
    long = world.submit("long", 1, 10)
    world.until(7209)
    assert (long.at_risk, long.starves) == (False, False)
    world.until(7210)
    assert long.starves


def test_a_guarantee_at_risk_goes_first() -> None:
    world = World(1, 1, premium_fraction=0.5, standard_fraction=0.5, sla_window_s=3600.0)
    world.submit("other", 1, tier=BASIC)
    world.submit("held", 1, kind="interactive")
    world.tell(ev.Cordon("n0"))
    risky = world.submit("risky", 1, 10, priority=0)
    world.submit("notebook", 1, 900, kind="interactive")
    world.until(1809)
    assert not risky.at_risk
    world.until(1810)  # half of the time since then that is left of a window has gone by
    assert risky.at_risk
    world.finish("held")
    assert world.done()[0] == ("Grant", "risky", "place.free")
    assert not risky.at_risk


@pytest.mark.parametrize("how", [ev.Idle, ev.Release])
def test_what_was_urgent_is_not_when_it_is_wanted_again(how: type[ev.Idle | ev.Release]) -> None:
    world = World(1, starve_s=100.0)
    world.submit("held", 1)
    claim = world.submit("urgent", 1)
    world.until(150)
    assert claim.starves
    world.tell(how("urgent"))
    world.tell(ev.Want("urgent"), 160)
    assert (claim.stage, claim.starves) == (Stage.WAITING, False)


@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
def test_small_ones_overtake_only_where_they_may(depth: int, waited: bool) -> None:
    world = World(4, backfill_depth=depth)
    world.submit("a", 3)
    if waited:
        world.submit("b", 1)
    world.submit("large", 4)
    small = world.submit("small", 1)
    if waited:
        world.finish("b")
    assert (small.stage is Stage.HELD) is bool(depth)


def test_nobody_is_overtaken_where_that_is_forbidden() -> None:
    world = World(4, backfill_depth=0)
    world.submit("a", 3)
    world.submit("large", 4)
    waits = [world.submit(f"small {n}", 1) for n in range(2)]
    other = world.submit("other tier", 1, tier=BASIC)
    assert [c.stage for c in waits] == [Stage.WAITING] * 2
    assert other.stage is Stage.HELD
    world.finish("other tier")
    assert [c.stage for c in waits] == [Stage.WAITING] * 2
    world.tell(ev.Idle("large"))
    assert waits[0].stage is Stage.HELD


def test_one_type_of_devices_does_not_wait_for_another() -> None:
    world = World(2, backfill_depth=0)
    world.tell(ev.NodeUp("x", 2, pool="x"))
    world.submit("a", 2, pool="x")
    world.submit("waits", 2, pool="x")
    assert world.submit("free", 1).stage is Stage.HELD
