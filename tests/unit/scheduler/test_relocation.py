"""Who waits on a full node goes where devices are free."""

from __future__ import annotations

from dataclasses import replace

import pytest
from singularity_scheduler.core.moves import relocation
from singularity_scheduler.core.moves.relocation import LOOKED_AT
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Abilities
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from support.scheduler_core import AT_ONCE, World, outcome, reads

ABLE = Abilities(store="folder")


def two_nodes(abilities: Abilities = ABLE, patience_s: float = 30.0) -> World:
    """`full` has one device, which a busy session has, and one session that waits for it; `free`
    came later and has two."""
    world = World(1, "full", abilities, AT_ONCE.changed(relocate_after_s=patience_s))
    world.holding("holder")
    world.create("waiter")
    world.join("free", 2, abilities)
    world.need("waiter")
    assert world["waiter"].word == "waiting"
    assert world["waiter"].node == "full"
    return world


def tick(world: World, seconds: float, node: str = "full") -> None:
    world.now += seconds
    world.do(ev.Tick(node))


def test_it_moves_after_a_while_and_gets_devices_there() -> None:
    world = two_nodes()
    tick(world, 10)
    assert world["waiter"].word == "waiting"
    tick(world, 30)
    assert [c.rule for c in world.history if c.session == "waiter"][-1] == "place.elsewhere"
    assert "moves to node free, which has 1 device free" in reads(world["waiter"])
    world.answer()
    assert (world["waiter"].node, world["waiter"].word) == ("free", "running")
    assert world["holder"].word == "running"


@pytest.mark.parametrize(
    "world",
    [
        two_nodes(patience_s=0.0),
        two_nodes(Abilities(store="folder", image_trouble="CRIU is missing")),
    ],
    ids=["switched off", "no process images"],
)
def test_it_stays_where_that_cannot_be(world: World) -> None:
    tick(world, 1_000)
    assert (world["waiter"].word, world["waiter"].node) == ("waiting", "full")
    assert not world.pending


def test_nobody_moves_to_a_node_where_somebody_waits() -> None:
    world = two_nodes()
    world.do(ev.SessionCreated("wide", "bob", spec_of(2)))
    world.answer()
    assert world["wide"].node == "free"
    world.do(ev.SessionCreated("one", "bob", spec_of(1)))
    world.answer()
    assert world["one"].node == "free"
    world.do(ev.Activity("one", True, world.now))
    world.need("one")
    world.answer()
    world.need("wide")
    tick(world, 100)
    assert (world["wide"].word, world["waiter"].word) == ("waiting", "waiting")


NAMES = ("n1", "n2", "n3")


@pytest.mark.parametrize("free", [1, 2, 3])
def test_each_free_device_calls_one_of_three_that_wait(free: int) -> None:
    world = World(1, "n1", ABLE, AT_ONCE.changed(relocate_after_s=30.0))
    for node in NAMES:
        if node != "n1":
            world.join(node, 1, ABLE)
        world.holding(f"holder-{node}")
        world.create(node)
        world.need(node)
        assert (world[node].node, world[node].word) == (node, "waiting")
    for number in range(free):
        world.join(f"free-{number}", 1, ABLE)
    stayed = ["live"] * (3 - free)
    for state in ("suspending", "resuming"):
        for node in NAMES:
            tick(world, 40.0, node)
        assert sorted(world[n].process_state.value for n in NAMES) == stayed + [state] * free
        moves, world.pending = world.pending, []
        for action in moves:
            world.do(outcome(action))
    world.answer()
    words = [world[node].word for node in NAMES]
    assert sorted(words) == ["running"] * free + ["waiting"] * (3 - free)
    assert len({world[node].node for node in NAMES}) == 3


def test_those_that_fit_nowhere_do_not_keep_others_from_leaving() -> None:
    here = ("local",)
    world = World(1, "full", ABLE, AT_ONCE.changed(relocate_after_s=30.0))
    world.holding("holder")
    for number in range(LOOKED_AT + 4):
        spec = SessionSpec(Kind.INTERACTIVE, Tier.PREMIUM, 1, f"s{number:02}", locations=here)
        world.do(ev.SessionCreated(spec.name, "bob", spec))
        world.answer()
        world.need(spec.name)
    world.create("behind")
    world.need("behind")
    world.answer()
    world.join("west", 1, replace(ABLE, cluster="west"))
    tick(world, 100)
    moved = [sid for sid, v in world.state.sessions.items() if v.process_state.value != "live"]
    assert moved == ["behind"]


def test_nobody_is_looked_at_who_needs_more_devices_than_are_free_on_any_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = two_nodes()
    world.join("free", 0, ABLE)
    monkeypatch.delattr(relocation, "may_leave")
    tick(world, 100)
    assert world["waiter"].word == "waiting"


def test_one_that_could_not_be_stored_is_let_be_for_a_while() -> None:
    world = two_nodes()
    tick(world, 40)
    [leave] = [a for a in world.pending if isinstance(a, ev.Suspend)]
    world.pending.remove(leave)
    world.do(ev.SuspendFailed("waiter", leave.epoch, leave.seq, "the store is full"))
    assert world["waiter"].word == "waiting"
    tick(world, 31)
    assert world["waiter"].word == "waiting"
    tick(world, 40)
    assert world["waiter"].process_state.value == "suspending"


def spec_of(devices: int) -> SessionSpec:
    return SessionSpec(Kind.INTERACTIVE, Tier.STANDARD, devices, "")
