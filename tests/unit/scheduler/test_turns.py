"""A node's turn by the engine that replays traces: turns inside a tier, guarantees, the line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.experience import TAKES
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import VirtualCluster
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.explain import precedence
from singularity_scheduler.explain.why import explain
from support.scheduler_core import AT_ONCE, World, reads

HOUR = 3600.0
TURNS = AT_ONCE.changed(las_thresholds_device_s=(HOUR,), quantum_s=600, standard_fraction=0.0)
"""Who was served for an hour lets others go first, but not within ten minutes of its turn."""


def later(world: World, seconds: float) -> None:
    """Time goes by, in which nothing happens but ticks."""
    world.now += seconds - 1
    for node in list(world.state.nodes):
        world.do(ev.Tick(node))


def word(world: World, sid: str) -> str:
    return world[sid].word


def test_who_was_served_for_long_lets_one_of_its_tier_go_first() -> None:
    world = World(1, parameters=TURNS)
    world.computing("old")
    later(world, 2 * HOUR)
    world.holding("new")
    assert [c.rule for c in world.history if c.session == "old"][-2:] == [
        "preempt.service",
        "device.parked",
    ]
    assert "it is that one's turn" in reads(world["old"])
    world.need("old")
    later(world, 300)
    assert (word(world, "new"), word(world, "old")) == ("running", "waiting")


def test_a_turn_is_not_interrupted_by_one_of_the_same_level() -> None:
    world = World(1, parameters=TURNS)
    world.computing("a")
    later(world, 300)
    world.create("b")
    world.need("b")
    later(world, 1200)
    assert (word(world, "a"), word(world, "b")) == ("running", "waiting")
    later(world, HOUR)
    assert (word(world, "a"), word(world, "b")) == ("parking", "waiting")


def test_a_guarantee_at_risk_takes_devices_of_its_own_tier() -> None:
    parameters = AT_ONCE.changed(
        las_thresholds_device_s=(60.0,), quantum_s=600, standard_fraction=0.5
    )
    world = World(1, parameters=parameters)
    world.holding("b")
    later(world, 100)
    world.do(ev.ParkAsked("b", "alice"))
    world.answer()
    world.computing("a")
    later(world, 2 * HOUR)
    world.need("b")
    later(world, HOUR / 2 - 60)
    assert (word(world, "a"), word(world, "b")) == ("running", "waiting"), "both had their share"
    later(world, 61)
    assert word(world, "a") == "parking"
    [told] = [reads(c) for c in world.history if c.rule == "preempt.guarantee"]
    assert "would not get what standard promises" in told


def test_guarantees_that_cannot_be_kept_make_nobody_leave() -> None:
    parameters = AT_ONCE.changed(las_thresholds_device_s=(), quantum_s=60)
    world = World(1, parameters=parameters)
    world.computing("a")
    later(world, HOUR)
    world.create("b")
    world.need("b")
    later(world, 3 * HOUR)
    assert (word(world, "a"), word(world, "b")) == ("running", "waiting")


def test_smaller_ones_may_go_before_one_that_fits_nowhere() -> None:
    world = World(2)
    world.holding("a")
    world.create("big", devices=2)
    world.create("small")
    world.need("big")
    world.need("small")
    assert word(world, "small") == "attaching"


def test_the_line_is_the_order_in_which_they_are_served() -> None:
    world = World(1, parameters=TURNS)
    world.computing("p", Tier.PREMIUM)
    world.create("first")
    world.create("second")
    world.need("first")
    world.need("second")
    assert list(turns.line(world.state, "local")) == ["first", "second"]
    served = replace(world["first"].share, attained_device_s=2 * HOUR)
    world.state.apply(ev.Decision(sessions=(replace(world["first"], share=served),)))
    assert list(turns.line(world.state, "local")) == ["second", "first"]
    assert turns.place(world.state, world["first"]) == 2
    assert "before it: alice/second" in explain(world.state, world["first"], world.now)["sentence"]


def test_the_line_follows_what_changes() -> None:
    world = World(1)
    world.computing("p", Tier.PREMIUM)
    world.create("a")
    world.need("a")
    assert list(turns.line(world.state, "local")) == ["a"]
    world.create("b", Tier.PREMIUM)
    world.need("b")
    assert list(turns.line(world.state, "local")) == ["b", "a"]
    world.do(ev.EndAsked("b", "alice"))
    assert list(turns.line(world.state, "local")) == ["a"]
    world.do(ev.PreemptAsked("a", "root"))
    assert list(turns.line(world.state, "local")) == ["a"], "it waits, though it is held back"


def test_nothing_is_kept_free_on_a_node_for_premium_sessions() -> None:
    world = World(2, parameters=AT_ONCE.changed(headroom_fraction=0.5))
    world.holding("a")
    world.holding("b")
    assert (word(world, "a"), word(world, "b")) == ("running", "running")


def quota(world: World, name: str, devices: int) -> None:
    world.do(adm.QuotaAsked("root", VirtualCluster(name, devices)))
    world.answer()


def member(world: World, sid: str, cluster: str) -> None:
    """A busy session of a virtual cluster that asks for a device."""
    spec = SessionSpec(Kind.INTERACTIVE, Tier.STANDARD, 1, sid, virtual_cluster=cluster)
    world.do(ev.SessionCreated(sid, "alice", spec))
    world.answer()
    world.do(ev.Activity(sid, True, world.now))
    world.need(sid)
    world.answer()


def test_the_line_follows_what_a_virtual_cluster_uses_on_other_nodes() -> None:
    world = World(1, "n1")
    quota(world, "team", 1)
    world.holding("p1", Tier.PREMIUM)
    member(world, "first", "team")
    world.create("second")
    world.need("second")
    assert list(turns.line(world.state, "n1")) == ["first", "second"]
    world.join("n2", 1)
    member(world, "elsewhere", "team")
    assert (world["elsewhere"].node, word(world, "elsewhere")) == ("n2", "running")
    assert list(turns.line(world.state, "n1")) == ["second", "first"]
    assert precedence.rule(world.state, world["second"], world["first"]) == "quota"
    assert turns.place(world.state, world["first"]) == 2
    quota(world, "team", 2)
    assert list(turns.line(world.state, "n1")) == ["first", "second"]
    quota(world, "team", 1)
    world.do(ev.EndAsked("elsewhere", "alice"))
    world.answer()
    assert list(turns.line(world.state, "n1")) == ["first", "second"]


def test_the_line_follows_the_time_and_the_devices_of_its_node() -> None:
    parameters = AT_ONCE.changed(standard_fraction=0.2, las_thresholds_device_s=())
    world = World(2, parameters=parameters)
    world.holding("p", Tier.PREMIUM)
    world.submit("run", devices=2)
    world.need("run")
    later(world, HOUR / 2)
    world.create("new", devices=2)
    world.need("new")
    assert list(turns.line(world.state, "local")) == ["new", "run"]
    later(world, HOUR / 2)
    assert list(turns.line(world.state, "local")) == ["run", "new"], "its guarantee is at risk"
    assert precedence.rule(world.state, world["run"], world["new"]) == "guarantee"
    world.do(ev.DrainAsked("local", "cpu:1", "root", "fan"))
    assert list(turns.line(world.state, "local")) == ["new", "run"], "not all can be kept"
    world.do(ev.ReturnAsked("local", "cpu:1", "root"))
    assert list(turns.line(world.state, "local")) == ["run", "new"]


def test_those_that_a_turn_does_not_look_at_come_behind_and_before_those_held_back() -> None:
    world = World(1)
    world.holding("p", Tier.PREMIUM)
    names = [f"s{number:02}" for number in range(turns.LOOKED_AT + 2)]
    for sid in ("held", *names, "basic"):
        world.create(sid, Tier.BASIC if sid == "basic" else Tier.STANDARD)
        world.need(sid)
    world.do(ev.PreemptAsked("held", "root"))
    assert list(turns.line(world.state, "local")) == [*names, "basic", "held"]
    *looked_at, one, other = (world[sid] for sid in names)
    assert precedence.rule(world.state, looked_at[0], looked_at[-1]) == "first"
    assert precedence.rule(world.state, looked_at[-1], one) == "crowd"
    assert precedence.rule(world.state, one, other) == "first"
    assert precedence.rule(world.state, one, world["basic"]) == "tier"
    assert precedence.rule(world.state, one, world["held"]) == "held"
    assert turns.place(world.state, world["held"]) == len(names) + 2
    told = explain(world.state, one, world.now)["sentence"]
    assert f"place {len(names) - 1}" in told


def test_who_gives_up_devices_and_by_which_rule() -> None:
    world = World(3)
    world.holding("idle")
    world.holding("basic", Tier.BASIC)
    world.holding("premium", Tier.PREMIUM)
    world.idle("idle")
    world.create("x")
    draft = Draft(world.state, world.now)
    assert turns.gives_up(draft, world["x"], "local") == {
        "idle": "preempt.idle",
        "basic": "preempt.tier",
    }


def test_the_engine_is_asked_only_when_free_devices_are_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(2)
    world.holding("basic", Tier.BASIC)
    world.create("x", devices=2)
    draft, view = Draft(world.state, world.now), replace(world["x"], wants=True)
    one = replace(view, virtual_devices=1)
    assert placement.no_room(draft, view, "local") is None
    with monkeypatch.context() as patch:
        patch.delattr(turns, "gives_up")
        assert placement.no_room(draft, one, "local") is None
        with pytest.raises(AttributeError, match="gives_up"):
            placement.no_room(draft, view, "local")
    world.do(ev.EndAsked("basic", "alice"))
    world.answer()
    world.holding("premium", Tier.PREMIUM)
    room = placement.no_room(Draft(world.state, world.now), view, "local")
    assert room == obstacles.in_use("local")


@pytest.mark.parametrize(("grace_s", "taken"), [(0.0, True), (60.0, False)])
def test_idle_devices_of_the_same_tier_are_taken_after_their_grace(
    grace_s: float, taken: bool
) -> None:
    world = World(1, parameters=Parameters(idle_soft_s=0, min_run_s=0, idle_grace_s=grace_s))
    world.holding("a")
    world.idle("a")
    world.create("b")
    world.need("b")
    assert (word(world, "a") == "parking") == taken
    later(world, 60)
    assert word(world, "a") == "parking"


def test_a_higher_tier_takes_idle_devices_without_waiting() -> None:
    world = World(1, parameters=Parameters())
    world.holding("a")
    world.idle("a")
    world.create("b", Tier.PREMIUM)
    world.need("b")
    assert word(world, "a") == "parking"


def test_every_rule_by_which_the_engine_preempts_for_somebody_has_a_sentence() -> None:
    known = {rule for rule in do.RULES if rule.startswith("preempt.")}
    assert turns._REASONS.keys() == known - {"preempt.headroom"}  # of whole clusters alone
    assert turns._REASONS.keys() == {rule for rule in RULES if rule.startswith("preempt.")}
    assert turns._REASONS.keys() <= TAKES
