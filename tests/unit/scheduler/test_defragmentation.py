"""Busy sessions make room on their node for one that needs more devices than are free."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_scheduler.core.allocation.defrag import SETTLES_S
from singularity_scheduler.core.operations import defragmentation
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Abilities
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from support.scheduler_core import AT_ONCE, World, reads

ABLE = Abilities(store="folder")
PATIENT = {"relocate_after_s": 30.0, "quantum_s": 1e6, "min_run_s": 1e6}
"""Nobody takes turns here."""


def split(
    *holders: int,
    others: int = 3,
    tier: Tier = Tier.STANDARD,
    held_s: float = SETTLES_S,
    **changed: Any,
) -> World:
    """Node `full` has 4 devices, which busy sessions h0, h1, .. have had for `held_s`; `wide` waits
    there for all of them. Node `other` came later and has `others` free."""
    world = World(4, "full", ABLE, AT_ONCE.changed(**{**PATIENT, **changed}))
    for number, devices in enumerate(holders):
        world.holding(f"h{number}", tier, devices)
    world.create("wide", devices=4)
    assert world["wide"].node == "full"
    world.now += held_s
    for number in range(len(holders)):
        world.do(ev.Activity(f"h{number}", True, world.now))
    world.join("other", others, ABLE)
    world.need("wide")
    assert world["wide"].word == "waiting"
    return world


def tick(world: World, seconds: float = 40.0) -> list[str]:
    """Who is on its way out of `full` after a look."""
    world.now += seconds
    world.do(ev.Tick("full"))
    names = [sid for sid in world.state.sessions if sid.startswith("h")]
    return [sid for sid in names if world[sid].process_state.value == "suspending"]


def test_who_is_in_the_way_goes_on_elsewhere() -> None:
    world = split(2)
    assert tick(world, 10.0) == []
    assert tick(world) == ["h0"]
    assert [c.rule for c in world.history if c.session == "h0"][-1] == "place.defragment"
    assert "because alice/wide needs 4 devices of node full" in reads(world["h0"])
    world.answer()
    assert (world["wide"].node, world["wide"].word) == ("full", "running")
    assert (world["h0"].node, world["h0"].word) == ("other", "running")


def test_several_go_when_all_of_them_find_a_place() -> None:
    world = split(1, 2)
    assert sorted(tick(world)) == ["h0", "h1"]
    world.answer()
    assert [world[sid].node for sid in ("wide", "h0", "h1")] == ["full", "other", "other"]
    assert [world[sid].word for sid in ("wide", "h0", "h1")] == ["running"] * 3


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (split(2, others=1), "no place elsewhere"),
        (split(1, 2, others=2), "no place for all of them"),
        (split(2, tier=Tier.PREMIUM), "a higher tier"),
        (split(2, defrag_interval_s=0.0), "switched off"),
        (split(2, relocate_after_s=0.0), "nobody leaves by himself"),
        (split(2, defrag_gain=31.0), "4 devices for 300 s are not 31 times 2 for 20 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nobody_goes(world: World, why: str) -> None:
    assert tick(world, 1000.0) == [], why
    assert world["wide"].word == "waiting"


def test_it_pays_by_what_the_last_move_took() -> None:
    world = split(2, defrag_gain=29.0)
    assert tick(world) == ["h0"]
    held = world["h0"]
    assert defragmentation.cost_s(held) == 2 * 20.0
    world.answer()
    assert defragmentation.cost_s(world["h0"]) == 2 * 2 * world["h0"].suspend_s > 0


def test_one_that_has_just_come_is_let_be() -> None:
    world = split(2, held_s=1.0)
    assert tick(world, SETTLES_S / 2) == []
    assert tick(world, SETTLES_S / 2) == ["h0"]


@pytest.mark.parametrize("others", [False, True])
def test_others_that_wait_do_not_take_what_is_made_free(others: bool) -> None:
    """Where two have to go, one after the other, somebody who needs less would be served first."""
    world = World(3, "full", ABLE, AT_ONCE.changed(**PATIENT))
    world.holding("h0", devices=1)
    world.holding("h1", devices=2)
    for sid, devices in (("wide", 3), ("small", 1)):
        world.create(sid, devices=devices)
    world.now += SETTLES_S
    for sid in ("h0", "h1"):
        world.do(ev.Activity(sid, True, world.now))
    world.need("wide")
    for node in ("one", "two"):
        world.join(node, 2, ABLE)
    world.now += 60.0
    if others:
        world.need("small")
        assert (world["small"].node, world["small"].word) == ("full", "waiting")
    assert sorted(tick(world, 1.0)) == ([] if others else ["h0", "h1"])


def test_without_a_place_by_then_it_waits_in_the_store_and_comes_back() -> None:
    world = split(2)
    assert tick(world) == ["h0"]
    world.do(ev.NodeLost("other", 100.0))
    world.answer()
    assert world["wide"].word == "running"
    assert world["h0"].returning
    world.join("other", 3, ABLE)
    world.answer()
    assert (world["h0"].node, world["h0"].word) == ("other", "running")


def test_as_few_as_possible_go() -> None:
    """Of 1, 1, 3 and 3 devices, one with three and one with one make room for four."""
    world = World(8, "full", ABLE, AT_ONCE.changed(**PATIENT))
    for number, devices in enumerate((1, 1, 3, 3)):
        world.holding(f"h{number}", devices=devices)
    world.create("wide", devices=4)
    world.now += SETTLES_S
    for number in range(4):
        world.do(ev.Activity(f"h{number}", True, world.now))
    world.need("wide")
    world.join("one", 3, ABLE)
    world.join("two", 3, ABLE)
    leave = tick(world)
    assert sorted(world[sid].virtual_devices for sid in leave) == [1, 3]
    world.answer()
    assert world["wide"].word == "running"


def test_nobody_goes_for_one_who_would_not_be_served_first() -> None:
    """A notebook that came later goes before the run that came first, and needs less."""
    world = World(4, "full", ABLE, AT_ONCE.changed(**PATIENT))
    world.holding("h0", devices=2)
    world.create("wide", devices=4, kind=Kind.BATCH)
    world.create("small", devices=3)
    world.now += SETTLES_S
    world.do(ev.Activity("h0", True, world.now))
    world.need("wide")
    world.join("other", 2, ABLE)
    world.now += 60.0
    world.need("small")
    assert world["small"].node == "full"
    assert tick(world, 1.0) == []
    assert tick(world) == ["h0"]
    assert "because alice/small needs 3 devices" in reads(world["h0"])


def test_it_goes_where_devices_are_free_and_takes_none_from_others() -> None:
    """Although less sessions are on a node that others have filled, and it might preempt those."""
    world = split(2, tier=Tier.PREMIUM, others=0)
    world.do(ev.EndAsked("wide", "alice"))
    world.answer()
    world.create("large", Tier.PREMIUM, devices=4)
    world.need("large")
    world.join("busy", 3, ABLE)
    world.holding("basic", Tier.BASIC, devices=3)
    assert world["basic"].node == "busy"
    world.join("free", 3, ABLE)
    for number in range(3):
        world.create(f"idle{number}")
    tick(world)
    world.answer()
    assert (world["h0"].node, world["basic"].word) == ("free", "running")


def test_a_full_quota_does_not_keep_one_from_moving() -> None:
    world = World(4, "full", ABLE, AT_ONCE.changed(**PATIENT))
    world.do(adm.QuotaAsked("root", adm.VirtualCluster("team", 2, may_borrow=False)))
    spec = SessionSpec(Kind.INTERACTIVE, Tier.STANDARD, 2, "h0", virtual_cluster="team")
    world.do(ev.SessionCreated("h0", "alice", spec))
    world.answer()
    world.do(ev.Activity("h0", True, world.now))
    world.need("h0")
    world.answer()
    assert world["h0"].word == "running"
    world.create("wide", devices=4)
    world.now += SETTLES_S
    world.do(ev.Activity("h0", True, world.now))
    world.need("wide")
    world.join("other", 2, ABLE)
    assert tick(world) == ["h0"]
