"""What found no place is remembered, and nobody waits for devices that fit because of that."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.allocation import events as ev
from support.allocation_noise import Noise
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World


def test_devices_that_became_free_are_found_at_once() -> None:
    world = World(8)
    world.submit("a", 8)
    waits = world.submit("b", 8, 1)
    world.finish("a", 2)
    assert waits.stage is Stage.HELD


def test_devices_that_their_holder_would_not_give_up_are_found_when_it_ends() -> None:
    world = World(8, quantum_s=1000.0, las_thresholds_device_s=(80.0,))
    world.submit("a", 8)
    world.until(20)
    waits = world.submit("b", 8)  # may take from `a`, but not before its turn is over
    world.submit("c", 1)
    world.finish("c", 21)
    assert waits.stage is Stage.WAITING
    world.finish("a", 22)
    assert waits.stage is Stage.HELD


def test_devices_are_found_when_somebody_has_changed() -> None:
    world = World(4)
    small = world.submit("small", 4, minimum=2, tier=BASIC)
    world.submit("in the way", 2, tier=BASIC)  # shrinks it
    waits = world.submit("waits", 4, tier=PREMIUM)
    assert waits.stage is Stage.WAITING
    world.changed(small)
    assert waits.stage is Stage.GATHERING


def test_what_is_kept_for_premium_sessions_is_not_forgotten() -> None:
    world = World(8, headroom_fraction=0.5)
    world.submit("a", 4)
    waits = world.submit("b", 2)
    assert waits.stage is Stage.WAITING
    premium = world.submit("c", 4, tier=PREMIUM)
    assert premium.stage is Stage.HELD
    world.finish("c")
    assert waits.stage is Stage.WAITING
    world.finish("a")
    assert waits.stage is Stage.HELD


def test_what_is_kept_is_found_when_devices_become_free_elsewhere() -> None:
    world = World(4, 4, 2, headroom_fraction=0.3)
    world.submit("a", 4)
    world.submit("b", 1)
    waits = world.submit("c", 4)  # there are 4 free on a node, but 3 of 5 are kept
    assert (waits.stage, world.state.pools[""].total[0]) == (Stage.WAITING, 5)
    world.submit("d", 2)
    world.finish("d")
    assert waits.stage is Stage.WAITING
    world.tell(ev.NodeUp("n3", 2))
    assert waits.stage is Stage.HELD


def test_a_gang_finds_devices_that_were_too_few_on_a_node() -> None:
    world = World(4, 4)
    world.submit("a", 3)
    world.submit("b", 3)
    world.submit("no node has them", 4)
    gang = world.submit("gang", 5)
    assert gang.stage is Stage.WAITING
    world.finish("a")
    assert world.where(world.state.claims["no node has them"]) == {"n0": 4}
    world.finish("b")
    assert gang.stage is Stage.WAITING
    world.finish("no node has them")
    assert gang.stage is Stage.HELD


@pytest.mark.parametrize("depth", [0, 1])
def test_who_waits_behind_another_is_tried_when_that_one_goes(depth: int) -> None:
    world = World(4, backfill_depth=depth)
    world.submit("a", 3)
    for number in range(depth + 1):
        world.submit(f"large {number}", 4 + number)
    behind = world.submit("behind", 1, tier=STANDARD)
    assert behind.stage is Stage.WAITING
    world.tell(ev.Release("large 0"))
    assert behind.stage is Stage.HELD


def test_one_may_overtake_only_so_many() -> None:
    world = World(4, backfill_depth=1)
    world.submit("a", 3)
    world.submit("large", 4)
    assert world.submit("first", 1).stage is Stage.HELD


@pytest.mark.parametrize("seed", range(8))
def test_what_is_remembered_of_failed_searches_changes_no_decision(seed: int) -> None:
    # Where devices are kept for premium sessions, what others take meanwhile may make a
    # difference; who may have free ones is checked there as everywhere (see `invariants`).
    depth = (0, 100)[seed % 2]
    one = Noise(seed, headroom_fraction=0.0, backfill_depth=depth)
    two = Noise(seed, forget=True, headroom_fraction=0.0, backfill_depth=depth)
    for _ in range(300):
        one.step()
        two.step()
    assert one.lines == two.lines != []
