"""Batch runs of notebooks: when they start, what holds them back, what a restart leaves of them."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest, Conflict
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.core.values.states import ProcessState
from singularity_scheduler.explain.why import explain
from support.scheduler_core import World, devices_of, facts, reads

PREMIUM, STANDARD, BASIC = Tier.PREMIUM, Tier.STANDARD, Tier.BASIC


def started(world: World) -> list[str]:
    return [a.session for a in world.all_actions if isinstance(a, ev.Start)]


def end(world: World, sid: str) -> None:
    world.do(ev.ProcessExited(sid, 0))
    world.answer(ev.End, ev.Start)


def test_as_many_start_as_there_are_devices_and_the_rest_waits_in_order() -> None:
    world = World(2)
    for sid in ("a", "b", "c", "d"):
        world.submit(sid)
    assert started(world) == ["a", "b"]
    assert [world[s].word for s in "abcd"] == ["ready", "ready", "queued", "queued"]
    end(world, "b")
    assert started(world) == ["a", "b", "c"]
    end(world, "a")
    assert started(world) == ["a", "b", "c", "d"]


def test_a_higher_tier_starts_beside_lower_runs_and_takes_their_device() -> None:
    world = World(1)
    world.computing("low", BASIC)
    world.submit("high", PREMIUM)
    assert world["high"].word == "ready"
    world.need("high")
    assert world["low"].word == "parking"
    assert reads(world["low"]).startswith("paused for alice/high: premium goes before basic")
    world.answer()
    assert world["high"].devices == ("cpu:0",)


def test_a_lower_tier_does_not_start_beside_higher_runs() -> None:
    world = World(1)
    world.submit("high", PREMIUM)
    world.submit("low", BASIC)
    assert started(world) == ["high"]
    end(world, "high")
    assert started(world) == ["high", "low"]


def test_the_queue_goes_by_tier_then_first_come() -> None:
    world = World(1)
    world.submit("running", PREMIUM)
    for sid, tier in (("b1", BASIC), ("s1", STANDARD), ("b2", BASIC), ("p1", PREMIUM)):
        world.submit(sid, tier)
    order = []
    current = "running"
    for _ in range(4):
        end(world, current)
        current = started(world)[-1]
        order.append(current)
    assert order == ["p1", "s1", "b1", "b2"]


def test_nobody_overtakes_a_run_that_needs_more_devices() -> None:
    world = World(2)
    world.submit("a")
    world.submit("wide", devices=2)
    world.submit("narrow")
    assert started(world) == ["a"]
    end(world, "a")
    assert started(world) == ["a", "wide"]


def test_a_run_too_wide_for_a_node_that_lost_devices_blocks_nobody() -> None:
    world = World(2)
    world.submit("a")
    world.submit("wide", devices=2)
    world.do(ev.NodeJoined("local", devices_of("local", 1), (facts(world["a"]),)))
    world.submit("b")
    end(world, "a")
    assert started(world) == ["a", "b"]
    assert world["wide"].word == "queued"
    assert "node local has only 1 device now" in explain(world.state, world["wide"], 0)["sentence"]


def test_a_run_wider_than_every_node_is_refused() -> None:
    world = World(2)
    with pytest.raises(BadRequest, match="3 devices asked, but this cluster has at most 2"):
        world.submit("wide", devices=3)


def test_notebooks_do_not_keep_runs_from_starting() -> None:
    world = World(1)
    world.holding("notebook", PREMIUM)
    assert world.submit("run", BASIC).word == "ready"


def test_why_a_run_is_queued() -> None:
    world = World(1)
    world.submit("a")
    world.submit("b")
    answer = explain(world.state, world["b"], world.now)
    assert answer["sentence"] == (
        "alice/b is queued: accepted: it starts when the runs before it leave it room; it needs 1 "
        "device and is at place 1 of the queue; it starts when there is room after: alice/a "
        "(standard); it cannot be said when: no waits of standard runs for a start with 1 device "
        "were measured yet."
    )
    assert answer["facts"]["ahead"] == 0
    for sid in ("c", "d", "e", "f"):
        world.submit(sid)
    assert (
        "it needs 1 device and is at place 5 of the queue; before it: alice/b (standard, came "
        "first), alice/c (standard, came first), alice/d (standard, came first) and 1 more; it "
        "starts when there is room after: alice/a (standard); "
    ) in explain(world.state, world["f"], world.now)["sentence"]


def test_a_queued_run_is_cancelled_without_a_word_to_its_node() -> None:
    world = World(1)
    world.submit("a")
    world.submit("b")
    world.do(ev.EndAsked("b", "alice", "not needed"))
    assert "b" not in world.state.sessions
    assert not [a for a in world.all_actions if isinstance(a, ev.End)]
    last = [c for c in world.history if c.session == "b"][-1]
    assert (last.process_state, reads(last)) == (
        ProcessState.CANCELLED,
        "cancelled by alice: not needed",
    )


@pytest.mark.parametrize(
    "event",
    [
        ev.ParkAsked("b", "alice"),
        ev.ResumeAsked("b", "alice"),
        ev.MigrateAsked("b", "alice"),
        ev.CheckpointAsked("b", "alice"),
        ev.SignalAsked("b", "alice", 2),
    ],
)
def test_what_a_queued_run_refuses(event: ev.Event) -> None:
    world = World(1)
    world.submit("a")
    world.submit("b")
    with pytest.raises(Conflict):
        world.do(event)


# -- preempt and resume ---------------------------------------------------------------------


def test_a_preempted_run_waits_for_its_resume_even_when_its_device_is_free() -> None:
    world = World(1)
    world.computing("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.need("a")  # its code calls the device at once
    world.answer()
    assert (world["a"].word, world["a"].held_back) == ("waiting", True)
    assert reads(world["a"]) == (
        "preempted by root: nothing is lost; running code just waits until the session is resumed"
    )
    world.do(ev.Tick("local"))
    assert world["a"].word == "waiting"
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert (world["a"].word, world["a"].held_back) == ("running", False)


def test_one_preempted_while_it_gets_its_device_gives_it_back_at_once() -> None:
    world = World(1)
    world.submit("a")
    world.need("a")
    assert world["a"].word == "attaching"
    world.do(ev.PreemptAsked("a", "root"))
    world.answer(ev.Attach)
    assert world["a"].word == "parking"
    world.answer()
    assert (world["a"].word, world["a"].held_back) == ("parked", True)
    assert reads(world["a"]).startswith("preempted by root: nothing is lost")
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert world["a"].word == "running"


def test_those_who_wait_get_the_device_of_a_preempted_one() -> None:
    world = World(1)
    world.computing("a", PREMIUM)
    world.create("b", BASIC)
    world.need("b")
    world.do(ev.PreemptAsked("a", "root"))
    world.need("a")
    world.answer()
    assert world["b"].word == "running"
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert [world[s].word for s in "ab"] == ["running", "parked"]


def test_one_held_back_makes_room_for_the_next_run() -> None:
    world = World(1)
    world.computing("a")
    world.submit("b")
    assert world["b"].word == "queued"
    world.do(ev.PreemptAsked("a", "alice"))
    world.answer()
    assert world["b"].word == "ready"


def test_a_queued_run_that_is_held_back_starts_after_its_resume() -> None:
    world = World(1)
    world.submit("a")
    world.submit("b")
    world.do(ev.PreemptAsked("b", "alice"))
    end(world, "a")
    assert (world["b"].word, reads(world["b"])) == (
        "queued",
        "held back by alice: it starts after it is resumed",
    )
    world.submit("c")
    assert world["c"].word == "ready"
    end(world, "c")
    world.do(ev.ResumeAsked("b", "alice"))
    assert world["b"].word == "starting"


def test_preempting_twice_is_refused_and_moving_one_resumes_it() -> None:
    world = World(2)
    world.computing("a")
    world.do(ev.PreemptAsked("a", "alice"))
    world.answer()
    with pytest.raises(Conflict, match="preempted already: resume brings it back"):
        world.do(ev.PreemptAsked("a", "alice"))
    world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))
    world.answer()
    assert (world["a"].devices, world["a"].held_back) == (("cpu:1",), False)


def test_a_notebook_without_devices_can_be_held_back_too() -> None:
    world = World(1)
    world.create("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.need("a")
    assert world["a"].word == "waiting"
    assert "preempted by root" in explain(world.state, world["a"], world.now)["sentence"]
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert world["a"].word == "running"


def test_a_preempt_whose_park_fails_changes_nothing() -> None:
    world = World(1)
    world.computing("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.pending.clear()
    world.do(ev.ParkFailed("a", world["a"].epoch, "the disk is full"))
    assert (world["a"].word, world["a"].held_back) == ("running", False)
    world.do(ev.PreemptAsked("a", "root"))  # it can be tried again
    world.answer()
    assert world["a"].held_back


def test_the_reason_of_one_held_back_stays_true_whatever_happens_to_it() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.answer()
    world.need("a")
    world.do(ev.DeviceWithdrawn("a"))  # its cell was interrupted
    world.need("a")  # and another one was run
    sentence = explain(world.state, world["a"], world.now)["sentence"]
    assert "preempted by root" in reads(world["a"])
    assert "running code just waits until the session is resumed; rule user.preempt" in sentence


def test_one_preempted_and_resumed_while_it_starts_gets_no_device_before_its_code_asks() -> None:
    world = World(1)
    run = SessionSpec(Kind.BATCH, STANDARD, 1, "a", BatchRun("/n/a.ipynb", "/n/o.ipynb"))
    world.do(ev.SessionCreated("a", "alice", run))
    with pytest.raises(Conflict, match="is just being started"):
        world.do(ev.ResumeAsked("a", "alice"))
    with pytest.raises(Conflict, match="is just being started"):
        world.do(ev.MigrateAsked("a", "alice"))
    world.do(ev.PreemptAsked("a", "alice"))
    world.do(ev.ResumeAsked("a", "alice"))
    assert [type(a) for a in world.pending] == [ev.Start]
    world.answer()
    assert (world["a"].word, world["a"].held_back) == ("ready", False)


def test_an_ended_session_is_not_held_back() -> None:
    world = World(1)
    world.computing("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.answer()
    decision = world.do(ev.EndAsked("a", "alice"))
    assert not decision.sessions[0].held_back


# -- restarts -------------------------------------------------------------------------------


def test_queued_runs_start_in_order_after_a_restart() -> None:
    world = World(1)
    for sid in ("z", "m", "a"):
        world.submit(sid)
    world = world.reloaded()
    world.do(ev.NodeJoined("local", devices_of("local", 1), (facts(world["z"]),)))
    assert [world[s].word for s in "zma"] == ["ready", "queued", "queued"]
    end(world, "z")
    assert started(world) == ["m"]


def test_a_run_whose_start_was_decided_but_not_sent_is_started_after_a_restart() -> None:
    world = World(1)
    run = world.submit("first").run
    assert run is not None
    end(world, "first")
    world.do(ev.NodeAway("local"))
    world.do(ev.NodeJoined("local", devices_of("local", 1), ()))
    world.do(ev.SessionCreated("b", "alice", SessionSpec(Kind.BATCH, STANDARD, 1, "b", run)))
    assert world["b"].word == "starting"  # and now the service dies
    world = world.reloaded()
    decision = world.do(ev.NodeJoined("local", devices_of("local", 1), ()))
    assert [(a.session, a.rule) for a in decision.actions] == [("b", "recover")]
    world.answer()
    assert world["b"].word == "ready"


def test_a_run_that_was_lost_with_its_node_says_what_there_is_of_it() -> None:
    world = World(1)
    world.computing("a")
    world = world.reloaded()
    world.do(ev.NodeJoined("local", devices_of("local", 1), ()))
    last = world.history[-1]
    assert last.process_state is ProcessState.FAILED
    assert reads(last).endswith(
        "its process is gone; the outputs up to then are in /home/alice/a-out.ipynb: submit it "
        "again"
    )


def test_no_run_starts_on_a_node_that_is_away() -> None:
    world = World(1)
    world.submit("a")
    world.submit("b")
    world.do(ev.NodeAway("local"))
    world.do(ev.EndAsked("a", "alice"))
    assert world["b"].word == "queued"
    world.do(ev.NodeJoined("local", devices_of("local", 1), ()))
    assert world["b"].word == "starting"
