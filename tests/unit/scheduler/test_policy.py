"""Policy v1: lazy devices, tiers, first come first served, who is paused for whom and why."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable
from singularity_scheduler.core.policy import decide
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Abilities
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.explain.why import explain
from singularity_scheduler.text.errors import in_words
from support.scheduler_core import AT_ONCE, World, devices_of, reads

PREMIUM, STANDARD, BASIC = Tier.PREMIUM, Tier.STANDARD, Tier.BASIC

FOR_GOOD = "; there is no checkpoint of its process, so this cannot be taken back"
"""What every end of a notebook says that was never stored."""


def parks(world: World) -> list[str]:
    return [a.session for a in world.all_actions if isinstance(a, ev.Park)]


def test_a_fresh_notebook_is_ready_and_holds_nothing() -> None:
    world = World()
    assert world.create("a").word == "ready"
    assert not [a for a in world.all_actions if isinstance(a, ev.Attach)]


def test_first_device_call_takes_the_lowest_free_device() -> None:
    world = World()
    world.create("a")
    world.need("a")
    assert world["a"].word == "attaching"
    world.answer()
    assert (world["a"].word, world["a"].devices, world["a"].epoch) == ("running", ("cpu:0",), 1)
    assert reads(world["a"]) == "holds cpu:0"
    world.holding("b")
    assert world["b"].devices == ("cpu:1",)


def test_a_session_that_stays_on_its_device_gets_it_again_when_it_is_free() -> None:
    world = World(3)
    for sid in "abc":
        world.holding(sid)
    for sid in "ab":
        world.do(ev.ParkAsked(sid, "alice"))
        [park] = [a for a in world.pending if isinstance(a, ev.Park)]
        assert not park.moving
        world.pending.remove(park)
        world.do(ev.Parked(sid, park.epoch, stays=sid == "b"))
    world.need("b")
    world.answer()
    assert world["b"].devices == ("cpu:1",)  # not the lowest one
    world.do(ev.ParkAsked("b", "alice"))
    [park] = [a for a in world.pending if isinstance(a, ev.Park)]
    world.pending.remove(park)
    world.do(ev.Parked("b", park.epoch, stays=True))
    world.holding("d")
    world.holding("e")  # its device is somebody else's now
    world.do(ev.ParkAsked("d", "alice"))
    world.answer()
    world.need("b")
    world.answer()
    assert world["b"].devices == ("cpu:0",)


def test_who_leaves_for_another_device_is_known_to() -> None:
    world = World()
    world.holding("a")
    world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))
    world.answer()
    world.do(ev.DrainAsked("local", "cpu:1", "root", "new fan"))
    world.answer()
    world.do(ev.ParkAsked("a", "alice"))
    moves = [a.moving for a in world.all_actions if isinstance(a, ev.Park)]
    assert moves == [True, True, False]


def test_device_ten_comes_after_device_two() -> None:
    world = World(12)
    for i in range(11):
        world.holding(f"s{i}")
    assert world["s10"].devices == ("cpu:10",)


def test_all_devices_at_once_or_none() -> None:
    world = World(2)
    world.holding("a")
    world.create("b", devices=2)
    world.need("b")
    assert world["b"].word == "waiting"
    assert world["b"].devices == ()
    assert parks(world) == []
    world.do(ev.EndAsked("a", "alice"))
    world.answer()
    assert world["b"].devices == ("cpu:0", "cpu:1")


def test_nobody_overtakes_a_larger_request_of_the_same_tier_where_that_is_set() -> None:
    world = World(2, parameters=AT_ONCE.changed(backfill_depth=0))
    world.holding("a")
    world.create("big", devices=2)
    world.create("small")
    world.need("big")
    world.need("small")
    assert world["small"].word == "waiting"
    assert "before it: alice/big" in explain(world.state, world["small"], world.now)["sentence"]


def test_idle_notebook_is_paused_even_for_a_lower_tier() -> None:
    world = World(1)
    world.holding("p", PREMIUM)
    world.create("b", BASIC, user="bob")
    world.need("b")
    assert world["b"].word == "waiting"
    world.idle("p")
    assert world["p"].word == "parking"
    world.answer()
    assert world["b"].word == "running"
    assert world["p"].word == "parked"
    assert reads(world["p"]) == (
        "paused for bob/b: basic needs 1 device and this notebook was idle; nothing is lost; it "
        "comes back with the next device call"
    )


def test_idle_ones_are_paused_by_tier_then_the_longest_idle() -> None:
    world = World(3)
    world.holding("a", PREMIUM)
    world.holding("b", STANDARD)
    world.holding("c", BASIC)
    at = world.now
    for sid in "abc":
        world.do(ev.Activity(sid, False, at))
    world.create("d", BASIC)
    world.need("d")
    assert parks(world) == ["c"]
    world.answer()
    world.do(ev.Activity("b", True, at))
    world.do(ev.Activity("b", False, at + 100))
    world.now += 200
    world.create("e", BASIC)
    world.need("e")
    assert parks(world) == ["c", "b"]


def test_of_idle_ones_of_one_tier_the_longest_idle_is_paused() -> None:
    world = World(2)
    world.holding("a")
    world.holding("b")
    at = world.now
    world.do(ev.Activity("b", False, at))
    world.do(ev.Activity("a", False, at + 100))
    world.now += 300
    world.create("c", BASIC)
    world.need("c")
    assert parks(world) == ["b"]


def test_busy_lower_tier_is_paused_lowest_tier_first_then_who_ran_longest() -> None:
    world = World(4)
    world.holding("s", STANDARD)
    world.holding("b1", BASIC)
    world.holding("b2", BASIC)
    world.holding("p", PREMIUM)
    world.create("x", PREMIUM, user="eve")
    world.create("y", PREMIUM)
    world.create("z", PREMIUM)
    world.create("w", PREMIUM)
    for sid in "xyzw":
        world.need(sid)
    assert parks(world) == ["b1", "b2", "s"]
    world.answer()
    assert world["w"].word == "waiting"
    assert reads(world["b1"]) == (
        "paused for eve/x: premium goes before basic and needs 1 device; nothing is lost; it "
        "comes back with the next device call and running code just waits"
    )


def test_equal_tier_and_batch_are_never_paused_when_busy() -> None:
    world = World(1)
    world.holding("a", STANDARD, kind=Kind.BATCH)
    world.idle("a")
    world.create("b", STANDARD)
    world.need("b")
    assert parks(world) == []


def test_a_kernel_that_never_reported_counts_as_busy() -> None:
    world = World(1)
    world.create("a", BASIC)
    world.need("a")
    world.answer()
    world.create("b", BASIC)
    world.need("b")
    assert parks(world) == []


def test_no_victim_is_parked_in_vain() -> None:
    world = World(3)
    world.holding("one", BASIC)
    world.holding("p", PREMIUM, devices=2)
    world.create("x", STANDARD, devices=2)
    world.need("x")
    assert parks(world) == []


def test_no_superfluous_victim() -> None:
    world = World(3)
    world.holding("two", BASIC, devices=2)
    world.holding("one", BASIC)
    world.create("x", STANDARD, devices=2)
    world.need("x")
    assert parks(world) == ["two"]


def test_preempted_session_comes_back_and_goes_on() -> None:
    world = World(1)
    world.holding("b", BASIC)
    world.create("p", PREMIUM)
    world.need("p")
    world.need("b")  # its worker finds the ring detached while it is still being parked
    world.answer()
    assert world["p"].word == "running"
    assert world["b"].word == "waiting"
    world.idle("p")
    world.answer()
    assert (world["b"].word, world["b"].epoch) == ("running", 2)
    assert reads(world["b"]) == "came back on cpu:0: everything as before"


def test_a_waiter_that_turns_idle_or_stops_waiting_leaves_the_queue() -> None:
    world = World(1)
    world.holding("p", PREMIUM)
    world.create("a")
    world.need("a")
    world.do(ev.Activity("a", True, world.now))
    assert world["a"].word == "waiting"
    world.idle("a")
    assert world["a"].word == "ready"
    world.need("a")
    world.do(ev.DeviceWithdrawn("a"))
    assert world["a"].word == "ready"


def test_parked_waiter_goes_back_to_parked() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    world.holding("b", PREMIUM)
    world.need("a")
    world.do(ev.DeviceWithdrawn("a"))
    assert world["a"].device_state is DeviceState.PARKED


def test_park_and_resume_by_a_person() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    assert reads(world["a"]).startswith("parked by alice: nothing is lost")
    with pytest.raises(Conflict, match="alice/a is parked already"):
        world.do(ev.ParkAsked("a", "alice"))
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert world["a"].word == "running"
    with pytest.raises(Conflict, match="already holds cpu:0"):
        world.do(ev.ResumeAsked("a", "alice"))


def test_resume_asked_by_a_person_survives_an_idle_kernel() -> None:
    world = World(1)
    world.holding("p", PREMIUM)
    world.create("a")
    world.do(ev.Activity("a", True, world.now))
    world.do(ev.ResumeAsked("a", "alice"))
    world.idle("a")
    world.do(ev.DeviceWithdrawn("a"))
    assert world["a"].word == "waiting"


def test_migrate_to_a_free_device() -> None:
    world = World(2)
    world.holding("a")
    world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))
    assert world["a"].word == "migrating"
    world.answer()
    assert (world["a"].word, world["a"].devices) == ("running", ("cpu:1",))
    with pytest.raises(Conflict, match="is on cpu:1 already"):
        world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))


def test_migrate_waits_for_its_target_even_if_another_device_is_free_sooner() -> None:
    world = World(2)
    world.holding("a")
    world.holding("idle")
    world.idle("idle")
    world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))
    mine = next(a for a in world.pending if a.session == "a")
    world.pending.remove(mine)
    world.do(ev.Parked("a", mine.epoch))
    assert (world["a"].device_state, world["a"].word) == (DeviceState.WAITING, "migrating")
    world.answer()
    assert world["a"].devices == ("cpu:1",)
    assert world["idle"].word == "parked"


def test_migrate_refusals() -> None:
    world = World(2)
    world.holding("a")
    world.holding("b")
    with pytest.raises(Conflict, match="cpu:1 is used by alice/b"):
        world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))
    with pytest.raises(Conflict, match="fewer than 1 other device"):
        world.do(ev.MigrateAsked("a", "alice"))
    with pytest.raises(BadRequest, match="has no device cpu:7: pick from cpu:0, cpu:1"):
        world.do(ev.MigrateAsked("a", "alice", ("cpu:7",)))
    with pytest.raises(BadRequest, match="name 1 different device"):
        world.do(ev.MigrateAsked("a", "alice", ("cpu:1", "cpu:0")))
    assert world["a"].word == "running"


def test_migrate_a_parked_session_and_anywhere_else() -> None:
    world = World(2)
    world.holding("a")
    world.do(ev.MigrateAsked("a", "alice"))
    world.answer()
    assert world["a"].devices == ("cpu:1",)
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    world.do(ev.MigrateAsked("a", "alice", ("cpu:0",)))
    world.answer()
    assert world["a"].devices == ("cpu:0",)


def test_ended_session_keeps_its_lease_until_the_agent_confirms() -> None:
    world = World(1)
    world.holding("a")
    world.create("b")
    world.need("b")
    world.do(ev.ProcessExited("a", 1))
    assert (world["a"].word, world["a"].devices) == ("failed", ("cpu:0",))
    assert reads(world["a"]) == f"its process ended with exit code 1{FOR_GOOD}"
    assert world["b"].word == "waiting"
    world.answer()
    assert "a" not in world.state.sessions
    assert world["b"].word == "running"


@pytest.mark.parametrize(
    ("kind", "code", "word"),
    [
        (Kind.BATCH, 0, "completed"),
        (Kind.BATCH, -9, "failed"),
        (Kind.INTERACTIVE, None, "failed"),
    ],
)
def test_how_a_process_ended(kind: Kind, code: int | None, word: str) -> None:
    world = World()
    world.create("a", kind=kind)
    decision = world.do(ev.ProcessExited("a", code, "out of memory" if code is None else ""))
    assert decision.sessions[0].word == word


@pytest.mark.parametrize(
    ("kind", "signum", "code", "word", "reason"),
    [
        (Kind.INTERACTIVE, 15, -15, "completed", f"closed by alice{FOR_GOOD}"),
        (Kind.BATCH, 9, -9, "cancelled", "cancelled by alice"),
        (Kind.BATCH, 15, 143, "cancelled", "cancelled by alice"),
        (Kind.BATCH, 15, 1, "failed", "its process ended with exit code 1"),
        (Kind.BATCH, 2, -2, "failed", "its process was ended by signal 2"),
    ],
)
def test_ended_by_a_signal_somebody_sent(
    kind: Kind, signum: int, code: int, word: str, reason: str
) -> None:
    world = World()
    world.create("a", kind=kind)
    world.do(ev.SignalAsked("a", "alice", signum))
    (view,) = world.do(ev.ProcessExited("a", code)).sessions
    assert (view.word, reads(view), view.exit_code) == (word, reason, code)
    with pytest.raises(Conflict, match="has ended"):
        world.do(ev.SignalAsked("a", "alice", signum))


def test_ending_twice_is_no_error_and_what_it_is_called() -> None:
    world = World()
    world.create("note")
    world.create("run", kind=Kind.BATCH)
    world.do(ev.EndAsked("note", "alice"))
    world.do(ev.EndAsked("note", "alice"))
    world.do(ev.EndAsked("run", "bob", "too slow"))
    assert world["note"].word == "completed"
    assert reads(world["note"]) == f"closed by alice{FOR_GOOD}"
    assert (world["run"].word, reads(world["run"])) == (
        "cancelled",
        "cancelled by bob: too slow",
    )
    with pytest.raises(Conflict, match="has ended"):
        world.do(ev.ResumeAsked("note", "alice"))
    with pytest.raises(NotFound):
        world.do(ev.EndAsked("nobody", "alice"))


def test_failed_attach_keeps_the_state_and_tries_again_with_the_next_call() -> None:
    world = World(1)
    world.create("a")
    world.need("a")
    attach = world.pending.pop()
    world.do(ev.AttachFailed("a", attach.epoch, "no space left"))
    assert world["a"].word == "ready"
    assert "tries again" in reads(world["a"])
    world.do(ev.Tick("local"))
    assert (world["a"].word, world["a"].epoch) == ("attaching", 2)
    world.do(ev.Attached("a", 1))  # an answer of the old epoch means nothing
    assert world["a"].word == "attaching"


def test_failed_park_leaves_everything_as_it_was() -> None:
    world = World(1)
    world.holding("b", BASIC)
    world.create("p", PREMIUM)
    world.need("p")
    park = world.pending.pop()
    world.do(ev.ParkFailed("b", park.epoch, "No space left on device"))
    assert world["p"].word == "waiting"
    assert (world["b"].word, world["b"].devices) == ("running", ("cpu:0",))
    assert reads(world["b"]) == (
        "could not be parked, so it keeps its devices (No space left on device)"
    )
    world.do(ev.Tick("local"))
    assert not world.pending, "it is left alone for a while"
    world.now += 10
    world.do(ev.Tick("local"))
    world.answer()
    assert (world["b"].word, world["p"].word) == ("parked", "running")


def test_reaped_lease_frees_the_device_and_says_why() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.LeaseReaped("a", 7, "wrong epoch"))
    assert world["a"].word == "running"
    world.do(ev.LeaseReaped("a", 1, "node local did not answer for 35 s"))
    assert (world["a"].word, world["a"].devices) == ("parked", ())
    assert reads(world["a"]) == "node local did not answer for 35 s"
    world.holding("b")


def test_lapsed_lease_of_a_connected_agent_is_parked_for_sure() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.LeaseLapsed("a"))
    assert world["a"].word == "parking"
    world.answer()
    assert world["a"].word == "parked"


def test_a_session_without_a_device_proxy_is_set_down_and_says_so() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.LeaseLapsed("a", "a device proxy did not get ready (it said nothing)"))
    world.answer()
    assert (world["a"].word, world["a"].devices) == ("parked", ())
    assert "no other one got ready (a device proxy did not get ready" in reads(world["a"])
    assert "its device state is on file, nothing is lost" in reads(world["a"])


def test_proxy_events_are_told() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.ProxyRecovered("a", 3, 12.0))
    assert reads(world["a"]).startswith("its device proxy was replaced after a crash: nothing")
    world.do(ev.ProxyRecovered("a", 1, 2.0, "was stopped"))
    assert reads(world["a"]).startswith("its device proxy was replaced because it was stopped")
    world.do(ev.ProxyGaveUp("a", "aten::mm", 3))
    assert reads(world["a"]).startswith("aten::mm ended its device proxy 3 times, so that call")
    world.do(ev.ProxyFailed("a", "one of two rings is broken", 1))
    assert (world["a"].word, reads(world["a"])) == ("running", "one of two rings is broken")
    world.do(ev.ProxyFailed("a", "the proxy died twice at the same operation"))
    world.answer()
    assert (world["a"].word, world["a"].devices) == ("parked", ())


def test_a_silent_proxy_and_a_long_operation_are_told_until_they_are_over() -> None:
    world = World(1)
    world.holding("a")
    for limit, sentence in ((10.0, "when that lasts for 10 s"), (0.0, "the session waits")):
        world.do(ev.ProxySilent("a", limit))
        assert sentence in reads(world["a"])
        world.do(ev.ProxyAnswers("a"))
        assert reads(world["a"]) == "holds cpu:0"
    world.do(ev.DeviceWorking("a", "aten::linalg_svd", 600.0))
    assert "one operation (aten::linalg_svd) for 10 min" in reads(world["a"])
    world.do(ev.DeviceWorking("a", "", 0.0))
    assert reads(world["a"]) == "holds cpu:0"
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    reason = reads(world["a"])
    for late in (ev.ProxySilent("a", 10.0), ev.ProxyAnswers("a"), ev.DeviceWorking("a", "x", 9.0)):
        world.do(late)
        assert reads(world["a"]) == reason


def test_ranks_that_stop_sharing_are_told_and_stay_as_they_are() -> None:
    world = World(1)
    world.holding("a")
    line = world.do(ev.SquashingOff("a", "storages 1 and 2 differ")).history[-1]
    assert line.rule == "squashing.off"
    assert reads(line) == "its ranks share nothing on a device any more: storages 1 and 2 differ"
    assert (world["a"].word, reads(world["a"])) == ("running", "holds cpu:0")


def test_checkpoint_needs_device_state_and_is_remembered() -> None:
    world = World(1, abilities=Abilities(image_trouble="criu is missing"))
    world.create("a")
    with pytest.raises(Conflict, match="has no device state yet"):
        world.do(ev.CheckpointAsked("a", "alice"))
    world.need("a")
    with pytest.raises(Conflict, match="changing devices right now"):
        world.do(ev.CheckpointAsked("a", "alice"))
    world.answer()
    world.do(ev.CheckpointAsked("a", "alice", "best"))
    action = world.pending.pop()
    assert isinstance(action, ev.TakeCheckpoint)
    assert action.name == "best"
    ref = CheckpointRef("c1", 1.0, 10, "device")
    world.do(ev.CheckpointTaken("a", ref))
    assert world["a"].last_checkpoint == ref


def test_creation_refusals() -> None:
    spec = SessionSpec(Kind.BATCH, BASIC, 3)
    with pytest.raises(Unavailable, match="no node agent is connected"), in_words():
        decide(ClusterState(), ev.SessionCreated("a", "alice", spec), 0.0)
    world = World(2)
    with (
        pytest.raises(BadRequest, match="3 devices asked, but this cluster has at most 2"),
        in_words(),
    ):
        world.do(ev.SessionCreated("a", "alice", spec))
    world.create("b")
    with pytest.raises(Conflict, match="exists already"), in_words():
        world.do(ev.SessionCreated("b", "alice", SessionSpec(Kind.BATCH, BASIC, 1)))


def test_sessions_spread_over_nodes_and_use_only_their_own_nodes_devices() -> None:
    world = World(1, "n1")
    world.do(ev.NodeJoined("n2", devices_of("n2", 1)))
    assert (world.create("a").node, world.create("b").node) == ("n1", "n2")
    world.need("a")
    world.need("b")
    world.answer()
    assert world["a"].devices == world["b"].devices == ("cpu:0",)


def test_a_node_whose_devices_are_drained_is_the_last_choice() -> None:
    world = World(1, "n1")
    world.do(ev.NodeJoined("n2", devices_of("n2", 1)))
    world.do(ev.DrainAsked("n1", "cpu:0", "root"))
    assert [world.create(sid).node for sid in ("a", "b", "c")] == ["n2", "n2", "n2"]
    world.do(ev.DrainAsked("n2", "cpu:0", "root"))
    assert world.create("d").node == "n1"


def test_nothing_is_granted_on_a_node_that_is_away() -> None:
    world = World(1)
    world.create("a")
    world.do(ev.NodeAway("local"))
    world.need("a")
    assert world["a"].word == "waiting"
    assert "does not answer" in explain(world.state, world["a"], world.now)["sentence"]


def test_why_of_a_waiter_names_place_holders_and_waiting_time() -> None:
    world = World(1)
    world.holding("h", PREMIUM, user="bob")
    world.create("a")
    world.need("a")
    why = explain(world.state, world["a"], world.now + 59)
    assert why["sentence"] == (
        "alice/a is waiting: its code called a device: it waits for 1 device; place 1 of the queue "
        "for standard, waiting for 59 s; in use: cpu:0 by bob/h (premium, busy); it cannot be said "
        "when: no waits of standard sessions for 1 device were measured yet."
    )
    assert why["facts"]["place"] == 1


def test_why_of_an_idle_holder_says_that_it_will_give() -> None:
    world = World(1)
    world.holding("a")
    world.idle("a")
    assert explain(world.state, world["a"], world.now)["sentence"].endswith(
        "It is idle, so it gives its devices to the next session that needs them."
    )
