"""Where free devices are taken: best fit, whole gangs, islands, racks, and home first."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from support.allocations import Claim, Stage, World


def masks(claim: Claim) -> list[int]:
    return list(claim.given.values())


def test_a_gap_is_filled_before_an_empty_node_is_begun() -> None:
    world = World(4, 4)
    first = world.submit("first", 3)
    [used] = world.where(first)
    second = world.submit("second", 2)
    assert world.where(second).keys() != {used}
    assert world.where(world.submit("third", 1)) == {used: 1}


def test_devices_of_one_island_go_together() -> None:
    world = World(8, islands=(0x0F, 0xF0))
    assert masks(world.submit("three", 3)) == [0b0111]
    assert masks(world.submit("four", 4)) == [0xF0]
    assert masks(world.submit("one", 1)) == [0b1000]


def test_a_demand_larger_than_an_island_takes_as_few_as_possible() -> None:
    world = World(6, islands=(0b11, 0b1100, 0b110000))
    world.submit("one", 1)
    assert masks(world.submit("four", 4)) == [0b111100]


def test_devices_in_no_island_are_used_too() -> None:
    world = World(4, islands=(0b11,))
    assert masks(world.submit("two", 2)) == [0b11]
    assert masks(world.submit("rest", 2)) == [0b1100]


def test_a_gang_has_all_its_devices_or_none() -> None:
    world = World(4, 4)
    world.submit("one", 1)
    gang = world.submit("gang", 8)
    assert (gang.stage, gang.given) == (Stage.WAITING, {})
    world.finish("one")
    assert world.where(gang) == {"n0": 4, "n1": 4}
    assert world.done() == [("Grant", "gang", "place.free")]


def test_a_gang_stays_in_one_rack_when_it_can() -> None:
    world = World()
    for name, rack in (("a", "left"), ("b", "right"), ("c", "left"), ("d", "right")):
        world.tell(ev.NodeUp(name, 4, rack))
    world.submit("one node of the left", 4)
    gang = world.submit("gang", 8)
    assert world.where(gang) == {"b": 4, "d": 4}


def test_what_a_gang_needs_besides_whole_nodes_fills_a_gap() -> None:
    world = World(4, 4, 2)
    assert world.where(world.submit("gang", 5)) == {"n0": 4, "n2": 1}


def test_a_session_comes_back_where_it_was() -> None:
    world = World(2, 4)
    claim = world.submit("a", 1)
    assert world.where(claim) == {"n0": 1}
    world.tell(ev.Release("a"))
    world.submit("b", 3)  # on n1: best fit would now be there
    world.tell(ev.Want("a"))
    [grant] = world.actions
    assert isinstance(grant, do.Grant)
    assert (world.where(claim), grant.back) == ({"n0": 1}, "attach")


@pytest.mark.parametrize("why", ["closed", "lost"])
def test_a_session_whose_home_is_gone_comes_back_from_elsewhere(why: str) -> None:
    world = World(1, 1)
    world.submit("a", 1)
    [grant] = world.actions
    assert isinstance(grant, do.Grant)
    assert (grant.back, world.where(grant.claim)) == ("start", {"n0": 1})
    world.tell(ev.Release("a"))
    if why == "lost":  # with all that was parked on it, though it comes back itself
        world.tell(ev.NodeLost("n0"))
        world.tell(ev.NodeUp("n0", 1))
        world.tell(ev.Cordon("n1"))
    else:
        world.tell(ev.Cordon("n0"))
    world.tell(ev.Want("a"))
    [grant] = world.actions
    assert isinstance(grant, do.Grant)
    assert (grant.back, world.where(grant.claim)) == ("resume", {f"n{int(why == 'closed')}": 1})


def test_a_session_from_elsewhere_is_not_at_home() -> None:
    there, here = World(2), World(2)
    claim = there.submit("a", 1)
    there.finish("a")
    here.tell(ev.Submit(claim))
    [grant] = here.actions
    assert isinstance(grant, do.Grant)
    assert grant.back == "resume"


def test_types_of_devices_are_kept_apart() -> None:
    world = World()
    waits = world.submit("early", 1)
    typed = world.submit("typed", 1, pool="h200")
    assert (waits.stage, typed.stage) == (Stage.WAITING, Stage.WAITING)
    world.tell(ev.NodeUp("a", 2, pool="a100"))
    assert world.where(waits) == {"a": 1}
    assert typed.stage is Stage.WAITING
    world.tell(ev.NodeUp("h", 2, pool="h200"))
    assert world.where(typed) == {"h": 1}


def test_a_node_may_come_back_with_other_devices() -> None:
    world = World(2)
    world.tell(ev.NodeLost("n0"))
    world.tell(ev.NodeUp("n0", 4, pool="new"))
    claim = world.submit("a", 4, pool="new")
    world.tell(ev.NodeLost("n0"))
    assert claim.stage is Stage.WAITING
    assert [(a.claim.id, a.rule) for a in world.actions] == [("a", "node.lost")]
