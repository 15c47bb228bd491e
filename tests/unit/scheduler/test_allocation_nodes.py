"""Nodes that are closed, emptied, lost and back, with sessions in every state on them."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.allocation import engine, invariants
from singularity_scheduler.core.allocation import events as ev
from support.allocations import BASIC, PREMIUM, Stage, World


def test_nothing_new_is_placed_on_a_closed_node() -> None:
    world = World(2)
    held = world.submit("held", 1)
    world.tell(ev.Cordon("n0"))
    waits = world.submit("waits", 1, tier=PREMIUM)
    assert (held.stage, waits.stage) == (Stage.HELD, Stage.WAITING)
    world.tell(ev.Uncordon("n0"))
    assert waits.stage is Stage.HELD


def test_a_node_is_opened_again_after_something_has_left_it() -> None:
    world = World(2)
    world.submit("a", 1)
    for event in (ev.Cordon("n0"), ev.Finish("a"), ev.Uncordon("n0")):
        engine.decide(world.state, event, world.at)  # nobody looks in between
    invariants.check(world.state)
    assert world.submit("b", 2).stage is Stage.HELD


def test_nobody_gathers_devices_of_a_closed_node() -> None:
    world = World(2)
    victim = world.submit("low", 2, tier=BASIC)
    waits = world.submit("high", 2, tier=PREMIUM)
    world.tell(ev.Cordon("n0"))
    world.left(victim)
    assert (waits.stage, waits.given) == (Stage.WAITING, {})
    world.tell(ev.Uncordon("n0"))
    assert waits.stage is Stage.HELD


def test_a_drain_moves_who_fits_elsewhere_and_preempts_the_rest() -> None:
    world = World(4)
    large, small = world.submit("large", 2), world.submit("small", 1)
    world.tell(ev.NodeUp("n1", 2))
    world.tell(ev.Drain("n0"))
    assert world.done() == [
        ("Migrate", "large", "node.drain"),
        ("Preempt", "small", "node.drain"),
    ]
    world.changed(large)
    world.left(small)
    assert (world.where(large), small.stage) == ({"n1": 2}, Stage.WAITING)
    assert not world.state.pools[""].by_id["n0"].holders


def test_idle_sessions_are_not_moved_but_put_away() -> None:
    world = World(1, 1)
    claim = world.submit("a", 1)
    world.tell(ev.Idle("a"))
    world.tell(ev.Drain("n0"))
    assert world.done() == [("Preempt", "a", "node.drain")]
    world.left(claim)
    assert claim.stage is Stage.AWAY


def test_the_part_of_a_gang_on_a_drained_node_moves() -> None:
    world = World(2, 2, 2)
    gang = world.submit("gang", 4)
    assert world.where(gang) == {"n0": 2, "n1": 2}
    world.tell(ev.Drain("n0"))
    assert world.done() == [("Migrate", "gang", "node.drain")]
    world.changed(gang)
    assert world.where(gang) == {"n1": 2, "n2": 2}


def test_a_gang_that_fits_nowhere_else_leaves_as_a_whole() -> None:
    world = World(2, 2)
    gang = world.submit("gang", 4)
    world.tell(ev.Drain("n0"))
    world.left(gang)
    assert (gang.stage, gang.given) == (Stage.WAITING, {})


@pytest.mark.parametrize("works", [True, False])
def test_who_was_on_its_way_to_a_drained_node_leaves_it_too(works: bool) -> None:
    world = World(1, 1)
    claim = world.submit("a", 1)
    world.tell(ev.Drain("n0"))
    assert claim.stage is Stage.MOVING
    world.tell(ev.Drain("n1"))
    answer = ev.Changed if works else ev.ChangeFailed
    world.tell(answer("a", claim.epoch))
    assert claim.stage is Stage.HELD  # where it is not to stay
    actions = world.until(60)
    assert [(a.claim.id, a.rule) for a in actions] == [("a", "node.drain")]
    assert claim.stage is Stage.LEAVING


def test_who_could_not_leave_a_drained_node_is_asked_again() -> None:
    world = World(1)
    claim = world.submit("a", 1)
    world.tell(ev.Drain("n0"))
    world.tell(ev.LeaveFailed("a", claim.epoch))
    assert claim.stage is Stage.HELD
    assert [a.rule for a in world.until(60)] == ["node.drain"]
    world.tell(ev.LeaveFailed("a", claim.epoch))
    world.tell(ev.Uncordon("n0"))
    assert not world.until(1000)
    assert claim.stage is Stage.HELD


def test_who_gathers_on_a_drained_node_waits_for_another() -> None:
    world = World(2)
    victim = world.submit("low", 1, tier=BASIC)
    waits = world.submit("high", 2, tier=PREMIUM)
    assert (waits.stage, world.where(waits)) == (Stage.GATHERING, {"n0": 1})
    world.tell(ev.Drain("n0"))
    assert (waits.stage, waits.given) == (Stage.WAITING, {})
    world.left(victim)
    world.tell(ev.NodeUp("n1", 2))
    assert world.where(waits) == {"n1": 2}


def test_all_on_a_lost_node_wait_and_come_back_from_their_checkpoints() -> None:
    world = World(4)
    claims = [world.submit(n, 1) for n in range(3)]
    epochs = [claim.epoch for claim in claims]
    world.tell(ev.NodeLost("n0"))
    assert world.done() == [("Lost", n, "node.lost") for n in range(3)]
    assert [c.epoch - e for c, e in zip(claims, epochs, strict=True)] == [1, 1, 1]
    world.tell(ev.NodeUp("n0", 2))
    assert [c.stage for c in claims] == [Stage.HELD, Stage.HELD, Stage.WAITING]


def test_idle_sessions_of_a_lost_node_do_not_come_back_by_themselves() -> None:
    world = World(1, 1)
    claim = world.submit("a", 1)
    world.tell(ev.Idle("a"))
    world.tell(ev.NodeLost("n0"))
    assert claim.stage is Stage.AWAY
    world.tell(ev.Want("a"))
    assert world.where(claim) == {"n1": 1}


def test_a_gang_is_lost_with_one_of_its_nodes() -> None:
    world = World(2, 2)
    gang = world.submit("gang", 4)
    world.tell(ev.NodeLost("n1"))
    assert (gang.stage, gang.given) == (Stage.WAITING, {})
    assert world.state.pools[""].total[0] == 2


def test_a_move_whose_target_is_lost_does_not_happen() -> None:
    world = World(1, 1)
    claim = world.submit("a", 1)
    world.tell(ev.Drain("n0"))
    world.tell(ev.NodeLost("n1"))
    assert (claim.stage, world.where(claim)) == (Stage.HELD, {"n0": 1})
    assert world.actions == []


def test_a_move_whose_source_is_lost_is_lost() -> None:
    world = World(1, 1)
    claim = world.submit("a", 1)
    world.tell(ev.Drain("n0"))
    old = claim.epoch
    world.tell(ev.NodeLost("n0"))
    assert world.done()[0] == ("Lost", "a", "node.lost")
    assert world.where(claim) == {"n1": 1}
    world.tell(ev.Changed("a", old))
    assert claim.stage is Stage.HELD


def test_the_gang_whose_new_part_is_lost_stays() -> None:
    world = World(2, 2, 2)
    gang = world.submit("gang", 4)
    world.tell(ev.Drain("n0"))
    world.tell(ev.NodeLost("n2"))
    assert world.where(gang) == {"n0": 2, "n1": 2}
    # It is still to leave, and there is no other node now.
    assert [a.rule for a in world.until(60)] == ["node.drain"]


def test_what_was_leaving_a_lost_node_is_lost() -> None:
    world = World(1)
    claim = world.submit("low", 1, tier=BASIC)
    waits = world.submit("high", 1, tier=PREMIUM)
    old = claim.epoch
    world.tell(ev.NodeLost("n0"))
    assert world.done() == [("Lost", "low", "node.lost")]
    assert (claim.stage, waits.stage) == (Stage.WAITING, Stage.WAITING)
    world.tell(ev.Left("low", old))
    assert claim.stage is Stage.WAITING


def test_what_was_shrinking_away_from_a_lost_node_is_lost() -> None:
    world = World(4, 4)
    claim = world.submit("e", 8, minimum=4)
    world.submit("w", 4, tier=PREMIUM)
    [stays] = world.where(claim)
    [goes] = {"n0", "n1"} - {stays}
    world.tell(ev.NodeLost(goes))
    assert world.done()[0] == ("Lost", "e", "node.lost")


def test_who_gathered_on_a_lost_node_waits_again() -> None:
    world = World(2, 2)
    low = [world.submit(n, 1, tier=BASIC) for n in range(4)]
    gang = world.submit("gang", 4, tier=PREMIUM)
    assert [c.stage for c in low] == [Stage.LEAVING] * 4
    world.left(low[0])
    world.tell(ev.NodeLost("n1"))
    for claim in low:
        if claim.stage is Stage.LEAVING:
            world.left(claim)
    assert (gang.stage, gang.given) == (Stage.WAITING, {})
    world.tell(ev.NodeUp("n1", 2))
    assert gang.stage is Stage.GATHERING


def test_lost_devices_are_not_counted() -> None:
    world = World(2, 4)
    world.tell(ev.NodeLost("n1"))
    assert world.state.pools[""].capacity == 2
    world.tell(ev.NodeUp("n1", 3))
    assert world.state.pools[""].capacity == 5
    assert world.submit("a", 3).stage is Stage.HELD
