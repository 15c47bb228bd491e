"""Nodes that are cordoned, drained, noticed, upgraded: what stays, what leaves, in what order."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable
from singularity_scheduler.client.words import duration
from singularity_scheduler.core.operations.drains import AT_ONCE, LEAVE_RETRY_S
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import (
    DUTY_TRANSITIONS,
    DutyEvent,
    NodeDuty,
    StepState,
    UpgradeState,
)
from singularity_scheduler.core.values.model import Abilities
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.explain.why import explain
from singularity_scheduler.text.meanings import DUTIES
from singularity_scheduler.text.reasons import render_words
from support.scheduler_core import World, devices_of, facts, reads

NO_CRIU = Abilities(image_trouble="criu is missing")


def nodes(*sizes: int) -> World:
    world = World(sizes[0], "n1")
    for number, size in enumerate(sizes[1:], start=2):
        world.join(f"n{number}", size)
    return world


def tell(world: World, node: str, event: DutyEvent, **more: object) -> ev.Decision:
    return world.do(adm.DutyAsked("root", node, event, "a new kernel", **more))  # type: ignore[arg-type]


def duty(world: World, node: str) -> NodeDuty:
    return world.state.node(node).duty.duty


def test_every_duty_has_a_meaning_and_a_way_back():
    assert set(DUTIES) == {duty.value for duty in NodeDuty}
    for state in NodeDuty:
        reached = {after for (before, _), after in DUTY_TRANSITIONS.items() if before is state}
        assert state is NodeDuty.OPEN or NodeDuty.OPEN in reached


def test_nothing_new_comes_to_a_cordoned_node_and_what_is_there_goes_on():
    world = nodes(2, 2)
    world.holding("a")
    assert world["a"].node == "n1"
    tell(world, "n1", DutyEvent.CORDON)
    world.create("b")
    assert world["b"].node == "n2"
    assert world["a"].word == "running"
    world.do(ev.ParkAsked("a", "alice"))
    world.need("a")
    world.answer()
    assert world["a"].word == "running", "its own devices are nothing new there"
    with pytest.raises(Conflict, match=r"node n1 is cordoned by root \(a new kernel\)"):
        world.do(ev.MigrateAsked("b", "alice", node="n1"))
    assert duty(world.reloaded(), "n1") is NodeDuty.CORDONED
    tell(world, "n2", DutyEvent.CORDON)
    with pytest.raises(Unavailable, match="no node takes new sessions now"):
        world.create("c")
    tell(world, "n1", DutyEvent.UNCORDON)
    world.create("c")
    assert world["c"].node == "n1"


def test_a_step_that_is_not_in_the_table_is_one_sentence():
    world = nodes(1)
    with pytest.raises(Conflict, match=r"node n1 is open .*: there is nothing to uncordon"):
        tell(world, "n1", DutyEvent.UNCORDON)
    with pytest.raises(NotFound, match="there is no node 'n': did you mean 'n1'"):
        tell(world, "n", DutyEvent.DRAIN)


def test_a_drained_node_is_empty_and_its_sessions_go_on_elsewhere():
    world = nodes(2, 2)
    world.holding("a")
    epoch = world["a"].epoch
    done = tell(world, "n1", DutyEvent.DRAIN)
    assert [(o.subject, o.before, o.after, o.rule) for o in done.orders] == [
        ("n1", '"open"', '"draining"', "node.drain")
    ]
    assert world["a"].word == "migrating"
    assert "node n1, which is being drained by root (a new kernel)" in reads(world["a"])
    world.answer()
    assert (world["a"].node, world["a"].word) == ("n2", "running")
    assert world["a"].epoch > epoch
    assert duty(world, "n1") is NodeDuty.DRAINED
    assert {"node.drain", "process.resumed"} <= {change.rule for change in world.history}
    tell(world, "n1", DutyEvent.UNDRAIN)
    assert duty(world, "n1") is NodeDuty.OPEN
    assert world["a"].node == "n2"


def test_what_has_no_room_elsewhere_waits_in_the_store_and_comes_back():
    world = nodes(2, 1)
    world.holding("big", devices=2)
    world.holding("small")
    assert (world["big"].node, world["small"].node) == ("n1", "n2")
    with pytest.raises(Conflict) as refused:
        tell(world, "n1", DutyEvent.DRAIN)
    assert refused.value.message == (
        "node n1 was not drained and goes on: no other node can take alice/big (node n2 has 1 "
        "usable device and it needs 2); make room first, or let them wait in the store (store)"
    )
    assert duty(world, "n1") is NodeDuty.OPEN
    assert world["big"].word == "running"
    tell(world, "n1", DutyEvent.DRAIN, store=True)
    assert reads(world["big"]).endswith("it comes back as soon as a node has room for it")
    world.answer()
    assert (world["big"].word, world["big"].called) == ("suspended", True)
    assert duty(world, "n1") is NodeDuty.DRAINED
    why = explain(world.state, world["big"], world.now)["sentence"]
    assert "node n1 is drained by root (a new kernel)" in why
    tell(world, "n1", DutyEvent.UNDRAIN)
    world.answer()
    assert (world["big"].word, world["big"].node) == ("running", "n1")


def test_a_notebook_that_rests_comes_back_with_its_next_request():
    world = nodes(1)
    world.holding("a")
    world.idle("a")
    with pytest.raises(Conflict, match=r"can take alice/a \(there is no other\); make room"):
        tell(world, "n1", DutyEvent.DRAIN)
    tell(world, "n1", DutyEvent.DRAIN, store=True)
    assert reads(world["a"]).endswith("it comes back with its next request")
    world.answer()
    assert (world["a"].word, world["a"].called) == ("suspended", False)


def test_higher_tiers_leave_first_and_only_some_at_a_time():
    world = nodes(8, 8)
    tell(world, "n2", DutyEvent.CORDON)
    tiers = [Tier.BASIC, Tier.STANDARD, Tier.PREMIUM] * 2
    for number, tier in enumerate(tiers):
        world.holding(f"s{number}", tier)
    tell(world, "n2", DutyEvent.UNCORDON)
    tell(world, "n1", DutyEvent.DRAIN, deadline=world.now + 30.0, notice=True)
    leaving = [a.session for a in world.pending if isinstance(a, ev.Suspend)]
    assert leaving == ["s2", "s5", "s1", "s4"]
    assert len(leaving) == AT_ONCE
    world.answer()
    assert {world[f"s{n}"].node for n in range(6)} == {"n2"}
    assert duty(world, "n1") is NodeDuty.DRAINED


def test_what_cannot_be_stored_is_parked_and_stays_and_says_why():
    world = World(1, "n1", NO_CRIU)
    world.join("n2", 1)
    world.holding("a")
    tell(world, "n1", DutyEvent.DRAIN)
    world.answer()
    assert (world["a"].node, world["a"].word) == ("n1", "waiting")
    assert duty(world, "n1") is NodeDuty.DRAINING
    sentence = explain(world.state, world["a"], world.now)["sentence"]
    assert (
        "node n1 is being drained by root (a new kernel), so its devices go to nobody" in sentence
    )
    parked = [reads(c) for c in world.history if c.rule == "node.drain"]
    assert parked == [
        "stays on node n1, which is being drained by root (a new kernel), because it cannot be "
        "stored (criu is missing); its devices are freed, nothing is lost: end it, or open the "
        "node again"
    ]
    world.do(ev.Tick("n1"))
    tell(world, "n1", DutyEvent.UNDRAIN)
    world.answer()
    assert world["a"].word == "running"


def test_force_ends_what_cannot_be_stored_at_the_deadline_and_says_so():
    world = World(1, "n1", NO_CRIU)
    world.holding("a")
    tell(world, "n1", DutyEvent.DRAIN, force=True, deadline=world.now + 60.0)
    world.answer()
    assert not world["a"].final
    world.now += 60.0
    world.do(ev.Tick("n1"))
    assert reads(world["a"]) == (
        "closed by root: node n1 is drained by force, and it could not be stored (criu is missing)"
        "; there is no checkpoint of its process, so this cannot be taken back"
    )
    world.answer()
    assert duty(world, "n1") is NodeDuty.DRAINED


def test_a_checkpoint_of_who_leaves_a_drained_node_says_so():
    world = nodes(1, 1)
    world.holding("a")
    tell(world, "n1", DutyEvent.DRAIN)
    world.answer()
    assert [c.cause for c in world["a"].checkpoints] == ["drain"]


def test_a_store_that_fails_is_tried_again_later():
    world = nodes(1, 1)
    world.holding("a")
    tell(world, "n1", DutyEvent.DRAIN)
    [action] = [a for a in world.pending if isinstance(a, ev.Suspend)]
    world.pending.clear()
    world.do(ev.SuspendFailed("a", action.epoch, action.seq, "the disk is full"))
    world.answer()
    assert world["a"].node == "n1"
    assert "cannot be stored (the disk is full)" in " ".join(reads(c) for c in world.history)
    world.now += LEAVE_RETRY_S
    world.do(ev.Tick("n1"))
    world.answer()
    assert world["a"].node == "n2"


def test_a_full_cluster_is_no_reason_to_refuse_a_drain():
    world = nodes(1, 1)
    world.holding("a")
    world.holding("b")
    tell(world, "n1", DutyEvent.DRAIN)
    world.answer()
    assert (world["a"].word, world["a"].called) == ("suspended", True)
    tell(world, "n1", DutyEvent.DRAIN, deadline=world.now + 5.0)
    world.do(ev.EndAsked("b", "alice"))
    world.answer()
    assert (world["a"].word, world["a"].node) == ("running", "n2")


def test_a_notice_is_never_refused_and_says_what_is_left_when_it_comes_too_late():
    world = nodes(1)
    for known in (True, False):
        world.holding(f"s{known:d}")
        if known:
            world.do(ev.CheckpointAsked("s1", "alice", "good"))
            world.answer()
            world.do(ev.ParkAsked("s1", "alice"))
            world.answer()
    world.do(adm.NoticeGiven("n1", world.now + 4.0))
    kept = reads(world["s1"]).partition("should the machine")[2]
    assert kept == " go away in 3 s before everything is there, it goes on from checkpoint " + (
        f"'good', {duration(world.now - world['s1'].checkpoints[-1].at)} old"
    )
    assert reads(world["s0"]).endswith(
        "should the machine go away in 3 s before everything is there, its variables are lost, "
        "because it has no checkpoint to go on from"
    )


def test_runs_that_wait_go_to_another_node():
    world = nodes(1, 1)
    for sid in ("r1", "r2"):
        world.computing(sid)
    world.submit("r3")
    world.submit("r4")
    assert world["r3"].pending
    where = world["r3"].node
    other = "n2" if where == "n1" else "n1"
    tell(world, where, DutyEvent.CORDON)
    assert world["r3"].node == other
    assert reads(world["r3"]).startswith(f"waits on node {other}, because node {where} is cordoned")


def test_a_session_that_was_just_starting_leaves_too():
    world = nodes(1, 1)
    world.do(ev.SessionCreated("a", "alice", _spec()))
    node = world["a"].node
    tell(world, node, DutyEvent.DRAIN)
    assert duty(world, node) is NodeDuty.DRAINING
    world.answer()
    assert world["a"].node != node
    assert world["a"].word == "ready"
    assert duty(world, node) is NodeDuty.DRAINED


def _spec():
    from singularity_scheduler.core.values.requested import Kind, SessionSpec

    return SessionSpec(Kind.INTERACTIVE, Tier.STANDARD, 1, "a")


def test_a_drain_outlasts_the_service_and_goes_on():
    world = nodes(1, 1)
    world.holding("a")
    tell(world, "n1", DutyEvent.DRAIN)
    fresh = world.reloaded()
    there = (facts(fresh["a"], devices=world["a"].devices),)
    fresh.do(ev.NodeJoined("n1", devices_of("n1", 1), there))
    fresh.do(ev.NodeJoined("n2", devices_of("n2", 1)))
    fresh.answer()
    assert (fresh["a"].node, duty(fresh, "n1")) == ("n2", NodeDuty.DRAINED)


def test_a_spot_machine_that_comes_back_as_a_new_one_is_open_again():
    world = nodes(1, 1)
    world.do(ev.NodeJoined("n1", devices_of("n1", 1), (), Abilities(instance="i1", spot=True)))
    world.do(adm.NoticeGiven("n1", world.now + 30.0))
    assert duty(world, "n1") is NodeDuty.DRAINED
    world.do(ev.NodeJoined("n1", devices_of("n1", 1), (), Abilities(instance="i1", spot=True)))
    assert duty(world, "n1") is NodeDuty.DRAINED
    world.now += 60.0
    world.do(ev.NodeJoined("n1", devices_of("n1", 1), (), Abilities(instance="i2", spot=True)))
    assert duty(world, "n1") is NodeDuty.OPEN


# -- upgrades -------------------------------------------------------------------------------


def upgrade(world: World) -> adm.Upgrade:
    found = world.state.admin.upgrade
    assert found is not None
    return found


def steps(world: World) -> dict[str, str]:
    return {step.node: step.state.value for step in upgrade(world).steps}


def rejoin(world: World, node: str, version: str) -> None:
    known = world.state.node(node)
    there = tuple(facts(world[sid]) for sid in known.sessions if world[sid].here)
    devices = devices_of(node, len(known.devices))
    world.do(ev.NodeJoined(node, devices, there, Abilities(version=version, instance=version)))


def versions(world: World) -> None:
    for node in sorted(world.state.nodes):
        rejoin(world, node, "1")


def test_an_upgrade_takes_one_node_after_the_other():
    world = nodes(1, 1, 1)
    versions(world)
    for sid in ("a", "b"):
        world.holding(sid)
    world.do(adm.UpgradeAsked("root", ("n1", "n2"), 1, "version 2"))
    world.answer()
    assert steps(world) == {"n1": "out", "n2": "waiting"}
    assert world["a"].node == "n3"
    rejoin(world, "n1", "1")
    assert steps(world)["n1"] == "out", "the same version is not the upgrade"
    rejoin(world, "n1", "2")
    world.answer()
    assert duty(world, "n1") is NodeDuty.OPEN
    assert steps(world) == {"n1": "back", "n2": "out"}
    assert world["b"].node == "n1"
    world.do(adm.UpgradedAsked("root", "n2"))
    assert upgrade(world).state is UpgradeState.DONE
    assert duty(world, "n2") is NodeDuty.OPEN
    with pytest.raises(NotFound, match="no upgrade is under way"):
        world.do(adm.UpgradeChange("root", UpgradeState.PAUSED))


def test_an_upgrade_pauses_goes_on_and_outlasts_the_service():
    world = nodes(1, 1)
    world.do(adm.UpgradeAsked("root", (), 1))
    assert steps(world) == {"n1": "out", "n2": "waiting"}
    world.do(adm.UpgradeChange("root", UpgradeState.PAUSED))
    world.do(adm.UpgradedAsked("root", "n1"))
    assert steps(world) == {"n1": "back", "n2": "waiting"}
    assert world.reloaded().state.admin.upgrade == upgrade(world)
    world.do(adm.UpgradeChange("root", UpgradeState.RUNNING))
    assert steps(world)["n2"] == "out"
    with pytest.raises(Conflict, match=r"an upgrade is running already \(1 of 2 nodes done\)"):
        world.do(adm.UpgradeAsked("root", (), 1))
    world.do(adm.UpgradeChange("root", UpgradeState.CANCELLED))
    assert upgrade(world).state is UpgradeState.CANCELLED
    assert duty(world, "n2") is NodeDuty.OPEN


def test_an_upgrade_stops_when_there_is_no_room():
    world = nodes(1, 1)
    world.holding("a")
    world.holding("b")
    world.do(adm.UpgradeAsked("root", (), 1))
    assert upgrade(world).state is UpgradeState.STOPPED
    assert render_words(upgrade(world).why) == (
        "stopped before node n1, of which nothing was touched: there is no other open node with 1 "
        "free device for alice/a; add a node or make room, or let sessions wait in the store (wait)"
    )
    assert world["a"].word == world["b"].word == "running"
    world.do(adm.UpgradeChange("root", UpgradeState.RUNNING, wait=True))
    world.answer()
    assert (world["a"].word, steps(world)["n1"]) == ("suspended", "out")
    world.do(adm.UpgradedAsked("root", "n1"))
    world.answer()
    assert world["a"].node == "n1"


def test_an_upgrade_stops_where_sessions_cannot_be_stored():
    world = World(1, "n1", NO_CRIU)
    world.join("n2", 1)
    world.create("a")
    world.do(adm.UpgradeAsked("root", ("n1",)))
    assert "its sessions cannot be stored (criu is missing)" in render_words(upgrade(world).why)


def test_a_node_that_somebody_opens_stops_the_upgrade():
    world = nodes(2, 2)
    world.holding("a")
    world.do(adm.UpgradeAsked("root", ("n1",)))
    tell(world, "n1", DutyEvent.UNDRAIN)
    assert (upgrade(world).state, steps(world)["n1"]) == (UpgradeState.STOPPED, "waiting")
    assert render_words(upgrade(world).why) == "node n1 was opened before it was empty"


@pytest.mark.parametrize(("names", "at_once"), [(("n1",), 0), (("n1",), 2), ((), 3)])
def test_a_wrong_upgrade_is_refused(names, at_once):
    world = nodes(1, 1)
    with pytest.raises(BadRequest, match="at_once must be a whole number from 1 to"):
        world.do(adm.UpgradeAsked("root", names, at_once))
    assert world.state.admin.upgrade is None
    with pytest.raises(NotFound, match="there is no node 'n7'"):
        world.do(adm.UpgradeAsked("root", ("n7",), 1))


def test_only_a_node_that_is_out_can_be_done():
    world = nodes(1, 1)
    world.do(adm.UpgradeAsked("root", ("n1", "n2"), 1))
    with pytest.raises(Conflict, match="node n2 is not out for the upgrade, it is waiting"):
        world.do(adm.UpgradedAsked("root", "n2"))
    with pytest.raises(NotFound, match="node n9 is not part of the upgrade"):
        world.do(adm.UpgradedAsked("root", "n9"))
    assert StepState.OUT.value == steps(world)["n1"]
