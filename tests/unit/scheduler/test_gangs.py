"""Gangs: runs whose parts start, have devices, are paused, begin again and end together."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest, Conflict, Unavailable, Unsupported
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent
from singularity_scheduler.core.values.requested import Priority, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.explain.why import explain
from support.scheduler_core import AT_ONCE, World, facts, outcome, reads
from support.scheduler_gangs import computing_gang, gang, has, submit_gang, words


def two_nodes(first: int = 1, second: int = 1) -> World:
    world = World(first, "a")
    world.join("b", second)
    return world


# -- where and when they start --------------------------------------------------------------


def test_parts_start_together_on_different_nodes() -> None:
    world = two_nodes(2, 2)
    submit_gang(world, "g", devices=2)
    assert [(world[s].node, world[s].word) for s in ("g0", "g1")] == [
        ("a", "ready"),
        ("b", "ready"),
    ]
    assert world["g1"].part is not None
    assert (world["g1"].part.number, world["g1"].part.parts) == (1, 2)


def test_a_gang_starts_only_when_all_its_nodes_have_room() -> None:
    world = two_nodes()
    world.submit("busy")
    submit_gang(world, "g")
    busy = world["busy"].node
    assert words(world, "g0", "g1") == ["queued", "queued"]
    sentence = explain(world.state, world["g0"], world.now)["sentence"]
    assert "part 0 of a gang on 2 nodes: it starts together with the others" in sentence
    assert "part 1 of its gang on node b is queued" in sentence
    late = world.submit("late")
    assert late.word == "queued", "nobody overtakes on the node that has room"
    assert late.node != busy
    world.do(ev.ProcessExited("busy", 0))
    world.answer(ev.End, ev.Start)
    assert words(world, "g0", "g1", "late") == ["ready", "ready", "queued"]


def test_a_gang_that_cannot_start_lets_others_pass() -> None:
    world = two_nodes()
    world.submit("busy")
    submit_gang(world, "g")
    other = {"a": "b", "b": "a"}[world["busy"].node]
    world.do(adm.DutyAsked("root", world["busy"].node, DutyEvent.CORDON))
    assert world.submit("single").word == "ready"
    assert world["single"].node == other
    assert words(world, "g0", "g1") == ["queued", "queued"]


def test_a_gang_waits_where_all_its_parts_can_start() -> None:
    world = two_nodes()
    world.submit("busy1")
    world.submit("busy2")
    submit_gang(world, "g")
    world.join("c", 1)
    world.do(ev.Tick("a"))
    assert words(world, "g0", "g1") == ["queued", "queued"], "one node more is not enough"
    world.join("d", 1)
    world.do(ev.Tick("b"))
    world.answer(ev.Start)
    assert [(world[s].node, world[s].word) for s in ("g0", "g1")] == [
        ("c", "ready"),
        ("d", "ready"),
    ]


@pytest.mark.parametrize(
    ("event", "error", "sentence"),
    [
        (
            gang("g", 3),
            BadRequest,
            "3 nodes with 1 device each asked, but this cluster has 2 such: ask for fewer nodes, "
            "or for fewer devices",
        ),
        (
            gang("g", 2, devices=2),
            BadRequest,
            "2 nodes with 2 devices each asked, but this cluster has 1 such: ask for fewer nodes, "
            "or for fewer devices",
        ),
        (
            gang("g", 2, virtual_cluster="small"),
            BadRequest,
            "2 devices asked, but virtual cluster 'small' has 1 and may not borrow",
        ),
    ],
)
def test_what_can_never_be_is_refused(
    event: ev.GangCreated, error: type[Exception], sentence: str
) -> None:
    world = two_nodes(2, 1)
    world.do(adm.QuotaAsked("root", adm.VirtualCluster("small", 1, may_borrow=False)))
    with pytest.raises(error) as refused:
        world.do(event)
    assert str(refused.value) == sentence
    assert not world.state.sessions


def test_nodes_that_are_closed_for_now_are_waited_for_by_who_asks() -> None:
    world = two_nodes()
    world.do(adm.DutyAsked("root", "b", DutyEvent.CORDON))
    with pytest.raises(Unavailable, match="2 nodes with 1 device each asked, and too few such"):
        world.do(gang("g"))


# -- devices --------------------------------------------------------------------------------


def test_when_one_part_wants_devices_all_get_them_in_one_decision() -> None:
    world = two_nodes()
    submit_gang(world, "g")
    decision = world.do(ev.DeviceNeeded("g1"))
    assert sorted(a.session for a in decision.actions if isinstance(a, ev.Attach)) == ["g0", "g1"]
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_nobody_has_devices_before_all_are_started() -> None:
    world = two_nodes()
    world.do(gang("g"))
    first = next(a for a in world.pending if a.session == "g0")
    world.pending.remove(first)
    world.do(outcome(first))
    world.need("g0")
    assert has(world, "g0") == [False]
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_devices_are_kept_for_the_first_gang_and_for_no_other_one() -> None:
    world = two_nodes()
    computing_gang(world, "g", tier=Tier.BASIC)
    world.holding("nb", Tier.STANDARD)
    assert words(world, "g0", "g1") == ["parked", "parked"]
    world.need("g0")
    world.need("g1")
    assert words(world, "g0", "g1") == ["waiting", "waiting"]
    free = {"a": "b", "b": "a"}[world["nb"].node]
    world.do(ev.Tick(free))
    assert words(world, "g0", "g1") == ["waiting", "waiting"], "a higher tier holds the other one"
    world.do(ev.EndAsked("nb", "alice"))
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_a_device_that_is_free_is_kept_for_the_first_gang() -> None:
    world = two_nodes()
    submit_gang(world, "g")
    for sid in ("n1", "n2"):
        world.create(sid, Tier.BASIC)
        world.do(ev.Activity(sid, True, world.now))
    on = {world[s].node: s for s in ("n1", "n2")}
    world.need(on["b"])
    world.answer()
    world.do(ev.ParkAsked(on["b"], "alice"))
    assert world[on["b"]].word == "parking"
    world.need("g0")
    world.need(on["a"])
    assert words(world, "g0", "g1", on["a"]) == ["waiting"] * 3
    world.answer()
    assert words(world, "g0", "g1", on["a"]) == ["running", "running", "waiting"]


def test_who_left_for_a_gang_does_not_come_back_before_it_has_all() -> None:
    """Notebooks go before runs of their tier, but not on devices that are kept for a gang."""
    fair = AT_ONCE.changed(las_thresholds_device_s=(100.0,))
    world = World(1, "a", parameters=fair)
    world.join("b", 1)
    for sid in ("n1", "n2"):
        world.holding(sid)
    submit_gang(world, "g")
    world.need("g0")
    world.do(ev.Tick("a"))
    assert words(world, "n1", "n2", "g0", "g1") == ["running"] * 2 + ["waiting"] * 2
    world.now += 400.0
    world.do(ev.Tick("a"))
    assert words(world, "n1", "n2") == ["parking", "parking"], "they were served more"
    parks = {a.session: a for a in world.pending if isinstance(a, ev.Park)}
    world.pending.clear()
    world.do(outcome(parks["n1"]))
    world.need("n1")
    assert words(world, "n1", "g0", "g1") == ["waiting"] * 3
    world.do(outcome(parks["n2"]))
    world.need("n2")
    world.answer()
    assert words(world, "n1", "n2", "g0", "g1") == ["waiting"] * 2 + ["running"] * 2


def test_a_premium_session_gets_what_is_kept_for_a_gang() -> None:
    world = two_nodes()
    world.create("nb", Tier.PREMIUM)
    submit_gang(world, "g")
    other = {"a": "b", "b": "a"}[world["nb"].node]
    world.holding("idle", Tier.STANDARD)
    assert world["idle"].node == other
    world.idle("idle")
    world.need("g0")
    assert world["idle"].word == "parking"
    world.need("nb")
    world.answer()
    assert words(world, "nb", "g0", "g1") == ["running", "waiting", "waiting"]
    world.need("idle")
    world.do(ev.Activity("idle", True, world.now))
    world.answer()
    assert world["idle"].word == "running", "nothing is kept while a higher tier has the rest"


def test_a_gang_gathers_of_what_those_before_it_leave() -> None:
    world = World(1, "a")
    for node, devices in (("b", 2), ("c", 1)):
        world.join(node, devices)
    submit_gang(world, "g")
    submit_gang(world, "h")
    assert [world[s].node for s in ("g0", "g1", "h0", "h1")] == ["a", "b", "b", "c"]
    for sid in ("n1", "n2", "n3", "n4"):
        world.holding(sid, Tier.BASIC)
    world.need("g0")
    parked = {a.session for a in world.pending if isinstance(a, ev.Park)}
    assert sorted(world[sid].node for sid in parked) == ["a", "b"], "what g needs, and no more"
    world.need("h1")
    parked = {a.session for a in world.pending if isinstance(a, ev.Park)}
    assert len(parked) == 4
    world.answer()
    assert has(world, "g0", "g1", "h0", "h1") == [True] * 4


def test_two_gangs_do_not_block_one_another() -> None:
    world = World(1, "a")
    for node in "bc":
        world.join(node, 1)
    submit_gang(world, "g")
    submit_gang(world, "h")
    # g on a and b; h on c and one of them: it is queued until g has ended.
    assert words(world, "g0", "g1") == ["ready", "ready"]
    world.need("g0")
    world.answer()
    assert has(world, "g0", "g1") == [True, True]
    for sid in ("g0", "g1"):
        world.do(ev.ProcessExited(sid, 0))
    world.answer()
    world.need("h1")
    world.answer()
    assert words(world, "g0", "g1", "h0", "h1") == ["completed"] * 2 + ["running"] * 2


# -- what happens to one happens to all ------------------------------------------------------


def test_parts_are_paused_in_one_decision_and_come_back_together() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.create("nb", Tier.PREMIUM)
    decision = world.do(ev.DeviceNeeded("nb"))
    assert sorted(a.session for a in decision.actions if isinstance(a, ev.Park)) == ["g0", "g1"]
    victim = 0 if world["nb"].node == "a" else 1
    assert reads(world[f"g{1 - victim}"]).startswith(
        f"part {victim} of its gang was paused: paused for alice/nb: premium goes before standard"
    )
    world.answer()
    assert words(world, "nb", "g0", "g1") == ["running", "parked", "parked"]
    world.need(f"g{1 - victim}")
    world.answer()
    assert words(world, "g0", "g1") == ["waiting", "waiting"]
    world.do(ev.EndAsked("nb", "alice"))
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_park_preempt_and_resume_of_one_part_are_of_all() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.ParkAsked("g1", "ada"))
    world.answer()
    assert words(world, "g0", "g1") == ["parked", "parked"]
    assert reads(world["g0"]).startswith("part 1 of its gang was paused: parked by ada")
    world.do(ev.ResumeAsked("g0", "ada"))
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]
    world.do(ev.PreemptAsked("g0", "ada"))
    world.answer()
    world.need("g1")
    assert [world[s].held_by for s in ("g0", "g1")] == ["ada", "ada"]
    world.do(ev.Tick("a"))
    assert has(world, "g0", "g1") == [False, False]
    world.do(ev.ResumeAsked("g1", "ada"))
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_tier_priority_and_end_of_one_part_are_of_all() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.TierAsked("g1", "alice", Tier.PREMIUM, Priority.HIGH))
    assert {(world[s].tier, world[s].priority) for s in ("g0", "g1")} == {
        (Tier.PREMIUM, Priority.HIGH)
    }
    world.do(ev.EndAsked("g0", "alice", "enough"))
    world.answer()
    assert words(world, "g0", "g1") == ["cancelled", "cancelled"]
    assert {reads(world.known[s]) for s in ("g0", "g1")} == {"cancelled by alice: enough"}


def test_a_part_whose_devices_could_not_be_attached_takes_the_others_along() -> None:
    world = two_nodes()
    submit_gang(world, "g")
    world.need("g0")
    attach = {a.session: a for a in world.pending if isinstance(a, ev.Attach)}
    world.pending.clear()
    world.do(ev.AttachFailed("g1", attach["g1"].epoch, "broken"))
    world.do(ev.Attached("g0", attach["g0"].epoch))
    assert world["g0"].device_state is DeviceState.PARKING
    assert "part 1 of its gang was paused: no device could be attached (broken)" in (
        reads(world["g0"])
    )
    world.answer()
    world.need("g0")
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_a_part_that_could_not_be_parked_gets_the_others_back_or_is_parked_later() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.ParkAsked("g0", "ada"))
    parks = {a.session: a for a in world.pending if isinstance(a, ev.Park)}
    world.pending.clear()
    world.do(ev.ParkFailed("g0", parks["g0"].epoch, "disk full"))
    world.do(ev.Parked("g1", parks["g1"].epoch))
    assert words(world, "g0", "g1") == ["running", "parked"]
    world.now += 20
    world.do(ev.Tick("a"))
    world.answer()
    assert words(world, "g0", "g1") == ["parked", "parked"]


@pytest.mark.parametrize(
    "event",
    [
        ev.MigrateAsked("g0", "ada"),
        ev.MigrateAsked("g0", "ada", cluster="local"),
        ev.MigrateAsked("g0", "ada", ("cpu:1",)),
        ev.RestoreAsked("g0", "ada", "x"),
        ev.ResumeAsked("g0", "ada", checkpoint="x"),
        ev.ResumeAsked("g0", "ada", node="c"),
    ],
)
def test_what_would_store_or_move_a_part_is_refused(event: ev.Event) -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.join("c", 1)
    with pytest.raises(Unsupported) as refused:
        world.do(event)
    assert str(refused.value) == (
        "alice/g0 stays as it is: it is part 0 of a gang on 2 nodes, which is stored only as a "
        "whole, by suspend or checkpoint: suspend it, park it, or let it end"
    )
    assert words(world, "g0", "g1") == ["running", "running"]


def test_a_fork_of_a_part_is_refused() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    with pytest.raises(Unsupported, match="it is part 1 of a gang on 2 nodes"):
        world.do(ev.ForkAsked("f", world["g1"], None, "ada"))


def test_a_drain_pauses_a_gang_until_the_node_is_open_again() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.join("c", 1)
    world.do(adm.DutyAsked("root", "a", DutyEvent.DRAIN, "repair"))
    assert "it is part 0 of a gang on 2 nodes, which is stored only as" in reads(world["g0"])
    world.answer()
    assert has(world, "g0", "g1") == [False, False]
    world.need("g0")
    world.need("g1")
    world.do(ev.Tick("b"))
    assert has(world, "g0", "g1") == [False, False]
    world.do(adm.DutyAsked("root", "a", DutyEvent.UNDRAIN))
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


# -- how they end ---------------------------------------------------------------------------


def test_a_gang_has_succeeded_when_all_its_parts_have() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.ProcessExited("g0", 0))
    world.answer()
    assert words(world, "g0", "g1") == ["completed", "running"]
    world.do(ev.ParkAsked("g1", "ada"))
    world.answer()
    world.need("g1")
    world.answer()
    assert world["g1"].word == "running", "it does not wait for one that has ended"
    world.do(ev.ProcessExited("g1", 0))
    world.answer()
    assert words(world, "g0", "g1") == ["completed", "completed"]


def test_a_part_that_fails_ends_the_others() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.ProcessExited("g1", 3))
    world.answer()
    assert words(world, "g0", "g1") == ["failed", "failed"]
    assert reads(world.known["g0"]) == "part 1 of its gang ended with exit code 3"


def test_a_part_that_cannot_be_started_ends_the_others() -> None:
    world = two_nodes()
    world.do(gang("g"))
    world.do(ev.StartFailed("g0", "no such folder"))
    world.answer()
    assert words(world, "g0", "g1") == ["failed", "failed"]
    assert reads(world.known["g1"]) == (
        "part 0 of its gang ended: could not be started: no such folder"
    )


def test_all_begin_again_when_one_was_killed() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    world.do(ev.ProcessExited("g1", -9))
    assert {type(a) for a in world.pending} == {ev.Fence}
    fences = {a.session: a for a in world.pending}
    world.pending.clear()
    world.do(outcome(fences["g0"]))
    assert words(world, "g0", "g1") == ["queued", "suspending"]
    world.do(ev.ProcessExited("g1", 1))  # its other processes, as they are removed
    world.do(outcome(fences["g1"]))
    world.answer()
    assert [(world[s].word, world[s].attempt) for s in ("g0", "g1")] == [("ready", 2)] * 2
    world.need("g1")
    world.answer()
    world.do(ev.ProcessExited("g0", -9))
    world.answer()
    assert words(world, "g0", "g1") == ["failed", "failed"]
    assert reads(world.known["g0"]) == (
        "the last of its 2 attempts was ended as well: its process was ended by signal 9"
    )


def test_a_part_that_is_just_getting_devices_begins_again_as_well() -> None:
    world = two_nodes()
    submit_gang(world, "g", max_retries=1)
    world.need("g0")
    world.do(ev.ProcessExited("g1", -9))
    world.do(ev.ProcessExited("g0", 1))
    assert [world[s].attempt for s in ("g0", "g1")] == [2, 2]
    world.answer()
    assert words(world, "g0", "g1") == ["ready", "ready"]


def test_a_gang_of_which_a_part_has_ended_is_not_tried_again() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    world.do(ev.ProcessExited("g0", 0))
    world.answer()
    world.do(ev.ProcessExited("g1", -9))
    world.answer()
    assert words(world, "g0", "g1") == ["completed", "failed"]
    assert "not tried again, because another part of its gang has ended" in (
        reads(world.known["g1"])
    )


def test_a_lost_node_lets_all_begin_again_on_others() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    lost = world["g0"]
    world.join("c", 1)
    world.do(ev.NodeAway("a"))
    world.do(ev.LeaseReaped("g0", lost.epoch, "node a has not answered for 35 s"))
    world.answer()
    assert words(world, "g0", "g1") == ["parked", "parked"]
    assert reads(world["g1"]).startswith("part 0 of its gang was paused: node a has not answered")
    world.do(ev.NodeLost("a", 100.0))
    world.answer()
    assert [(world[s].node, world[s].word, world[s].attempt) for s in ("g0", "g1")] == [
        ("c", "ready", 2),
        ("b", "ready", 2),
    ]


def test_a_gang_without_another_node_waits_for_the_lost_one() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    away = facts(world["g0"], devices=(), saved=True)
    world.do(ev.NodeAway("a"))
    world.do(ev.LeaseReaped("g0", world["g0"].epoch, "node a has not answered for 35 s"))
    world.answer()
    world.do(ev.NodeLost("a", 100.0, hopeless=False))
    assert words(world, "g0", "g1") == ["parked", "parked"]
    world.need("g1")
    assert words(world, "g0", "g1") == ["waiting", "waiting"]
    world.join("a", 1, None, away)
    world.answer()
    assert words(world, "g0", "g1") == ["running", "running"]


def test_ended_parts_end_once() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.EndAsked("g0", "alice"))
    with pytest.raises(Conflict):
        world.do(ev.ParkAsked("g1", "alice"))
    world.do(ev.EndAsked("g0", "alice"))
    world.answer()
    assert all(world.known[s].process_state is ProcessState.CANCELLED for s in ("g0", "g1"))


@pytest.mark.parametrize("retries", [0, 1])
def test_a_node_that_is_lost_while_a_part_starts_there_keeps_nobody_waiting(retries: int) -> None:
    world = two_nodes()
    world.join("c", 1)
    world.do(gang("g", max_retries=retries))
    first = world["g0"].node
    for action in [a for a in world.pending if a.session == "g1"]:
        world.pending.remove(action)
        world.do(outcome(action))
    world.pending.clear()
    assert words(world, "g0", "g1") == ["starting", "ready"]
    world.do(ev.NodeLost(first, 100.0, hopeless=False))
    assert world["g0"].word == "starting", "its node may come back with it"
    world.do(ev.NodeLost(first, 1000.0, hopeless=True))
    world.answer()
    if retries:
        assert [world[sid].attempt for sid in ("g0", "g1")] == [2, 2]
        assert words(world, "g0", "g1") == ["ready", "ready"]
        assert world["g0"].node != first
    else:
        assert words(world, "g0", "g1") == ["failed", "failed"]
