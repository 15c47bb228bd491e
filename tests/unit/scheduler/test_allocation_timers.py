"""What time alone does: idle devices are taken back, background moves pay, parameters change."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.state import NEVER
from support.allocations import Stage, World


def test_idle_devices_are_taken_back_after_a_while() -> None:
    world = World(1, idle_soft_s=900.0)
    claim = world.submit("a", 1)
    world.tell(ev.Idle("a"), 100)
    assert not world.until(999)
    assert [(a.claim.id, a.rule) for a in world.until(1000)] == [("a", "idle.reclaim")]
    world.left(claim)
    assert (claim.stage, claim.preempted) == (Stage.AWAY, False)


def test_who_was_busy_meanwhile_keeps_them() -> None:
    world = World(1, idle_soft_s=900.0)
    claim = world.submit("a", 1)
    world.tell(ev.Idle("a"), 100)
    world.tell(ev.Busy("a"), 500)
    world.tell(ev.Idle("a"), 600)
    assert not world.until(1499)
    assert claim.stage is Stage.HELD
    assert len(world.until(1500)) == 1


def test_idle_devices_are_kept_where_nobody_takes_them_back() -> None:
    world = World(1, idle_soft_s=0.0)
    world.submit("a", 1)
    world.tell(ev.Idle("a"))
    assert not world.until(1e6)
    assert world.state.next_due == NEVER


def test_taking_back_that_failed_is_tried_again_later() -> None:
    world = World(1, idle_soft_s=900.0)
    claim = world.submit("a", 1)
    world.tell(ev.Idle("a"))
    world.until(900)
    world.tell(ev.LeaveFailed("a", claim.epoch), 950)
    assert not world.until(1849)
    assert [a.rule for a in world.until(1850)] == ["idle.reclaim"]


@pytest.mark.parametrize("works", [True, False])
def test_who_is_idle_after_a_move_is_taken_from_too(works: bool) -> None:
    world = World(1, 1, idle_soft_s=900.0)
    claim = world.submit("a", 1)
    world.tell(ev.Drain("n0"))
    world.tell(ev.Idle("a"), 1)
    world.until(1000)
    assert claim.stage is Stage.MOVING
    if not works:
        world.tell(ev.Uncordon("n0"))
    world.tell((ev.Changed if works else ev.ChangeFailed)("a", claim.epoch))
    assert [a.rule for a in world.until(2000)] == ["idle.reclaim"]


def scattered(gain: float, cost_s: float, horizon_s: float = 300.0) -> World:
    """Two nodes of 4, each half used."""
    world = World(4, 4, defrag_interval_s=horizon_s, defrag_gain=gain)
    for id, devices in (("a", 2), ("gap", 2), ("b", 2)):
        world.submit(id, devices, costs=(cost_s, 0.0, cost_s))
    world.finish("gap")
    return world


def test_room_is_made_for_one_that_fits_nowhere() -> None:
    world = scattered(2.0, 1.0)
    waits = world.submit("large", 4)
    [(what, id, rule)] = world.done()
    assert (what, rule) == ("Migrate", "defragment")
    mover = world.state.claims[id]
    assert (mover.cause, waits.stage) == ("large", Stage.GATHERING)
    world.changed(mover)
    assert waits.stage is Stage.HELD
    assert waits.rule == "place.cleared"


@pytest.mark.parametrize(("cost_s", "moves"), [(149.0, True), (151.0, False)])
def test_room_is_made_only_when_that_pays(cost_s: float, moves: bool) -> None:
    # 4 devices for 300 s are worth 1200; a move of 2 devices there and back costs 4 * cost_s.
    world = scattered(2.0, cost_s)
    waits = world.submit("large", 4)
    assert (waits.stage is Stage.GATHERING) is moves


def test_a_move_that_failed_leaves_all_as_it_was() -> None:
    world = scattered(2.0, 1.0)
    waits = world.submit("large", 4)
    mover = world.state.claims[world.done()[0][1]]
    before = {node: 2 for node in ("n0", "n1") if node not in world.where(mover)}
    world.tell(ev.ChangeFailed(mover.id, mover.epoch))
    assert (mover.stage, world.where(mover)) == (Stage.HELD, before)
    [(_, id, rule)] = world.done()  # the other one is tried instead
    other = world.state.claims[id]
    assert (rule, other is mover, waits.stage) == ("defragment", False, Stage.GATHERING)
    world.tell(ev.ChangeFailed(id, other.epoch))
    assert (world.done(), other.stage, waits.stage) == ([], Stage.HELD, Stage.WAITING)


@pytest.mark.parametrize(("cost_s", "moves"), [(1.0, 1), (151.0, 0)])
def test_a_node_is_freed_in_the_background_when_that_pays(cost_s: float, moves: int) -> None:
    world = World(4, 4, defrag_interval_s=300.0, defrag_gain=2.0)
    for id, devices in (("a", 2), ("gap", 2), ("b", 1)):
        world.submit(id, devices, costs=(cost_s * 2, 0.0, cost_s * 2))
    world.finish("gap")
    actions = world.until(300)
    assert [(a.claim.id, a.rule) for a in actions] == [("b", "consolidate")] * moves
    if moves:
        world.changed(actions[0].claim)
        assert not world.until(4000)  # all is well, and nobody is moved back and forth


def test_nobody_is_moved_where_that_is_off() -> None:
    world = scattered(2.0, 0.0, 0.0)
    assert world.submit("large", 4).stage is Stage.WAITING
    assert not world.until(10_000)


def test_parameters_hold_from_the_next_event_on() -> None:
    world = World(1, idle_grace_s=1000.0)
    world.submit("idle", 1)
    world.tell(ev.Idle("idle"), 10)
    world.submit("waits", 1, 20)
    world.state.use(world.state.parameters.changed(idle_grace_s=5.0))
    world.tell(ev.Tick())
    assert world.done() == [("Preempt", "idle", "preempt.idle")]


def test_background_moves_may_be_switched_on_and_off() -> None:
    world = scattered(2.0, 0.0, 0.0)
    world.state.use(world.state.parameters.changed(defrag_interval_s=60.0))
    assert world.state.next_due <= world.at
    world.until(200)
    assert world.state.next_due == NEVER, "nothing has changed"
    world.submit("more", 1)
    assert world.state.next_due <= 260
    world.state.use(world.state.parameters.changed(defrag_interval_s=0.0))
    world.until(400)
    assert world.state.next_due == NEVER
