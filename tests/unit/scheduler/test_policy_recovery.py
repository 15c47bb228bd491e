"""A node's agent comes back, or the service does: both views are put right, nothing is lost."""

from __future__ import annotations

from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import AgentFacts
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.core.values.states import DeviceState
from support.scheduler_core import World, devices_of, facts, reads


def rejoin(world: World, *sessions: AgentFacts) -> ev.Decision:
    world.pending.clear()
    return world.do(ev.NodeJoined("local", devices_of("local", 2), sessions))


def test_everything_as_it_was_changes_nothing() -> None:
    world = World()
    world.holding("a")
    world.create("b")
    world = world.reloaded()
    assert rejoin(world, facts(world["a"]), facts(world["b"])).sessions == ()
    assert world["a"].devices == ("cpu:0",)
    world.holding("c")
    assert world["c"].devices == ("cpu:1",)


def test_queue_order_survives_a_restart() -> None:
    world = World(1)
    world.holding("a", Tier.PREMIUM)
    for sid in ("z", "b"):
        world.create(sid)
        world.need(sid)
    world = world.reloaded()
    world.do(
        ev.NodeJoined(
            "local", devices_of("local", 1), tuple(map(facts, map(world.__getitem__, "azb")))
        )
    )
    world.create("c")
    world.need("c")
    assert [v.id for v in world.state.waiting("local")] == ["z", "b", "c"]


def test_session_unknown_to_a_new_agent_is_failed_with_the_reason() -> None:
    world = World()
    world.holding("a")
    world.create("b")
    world.need("b")
    world.do(ev.EndAsked("b", "alice"))
    decision = rejoin(world)
    lost = {v.id: v for v in decision.sessions}
    assert lost["a"].word == "failed"
    assert reads(lost["a"]) == (
        "the agent of node local was started anew and no longer knows this session: its process "
        "is gone and its variables are lost; start it again; there is no checkpoint of its "
        "process, so this cannot be taken back"
    )
    assert lost["b"].word == "completed"
    assert world.state.sessions == {}


def test_a_process_that_ended_meanwhile() -> None:
    world = World()
    world.holding("a")
    rejoin(world, facts(world["a"], alive=False, exit_code=0))
    assert world["a"].word == "completed"
    world.answer()
    assert world.state.sessions == {}


def test_commands_under_way_are_repeated_with_the_same_numbers() -> None:
    world = World()
    world.holding("p")
    world.create("a")
    world.need("a")
    attach = world.pending[0]
    world.do(ev.ParkAsked("p", "alice"))
    park = world.pending[1]
    again = rejoin(world, facts(world["a"]), facts(world["p"])).actions
    assert [(type(a), a.session, a.epoch, a.seq) for a in again] == [
        (ev.Attach, "a", attach.epoch, attach.seq),
        (ev.Park, "p", park.epoch, park.seq),
    ]
    world.answer()
    assert (world["a"].word, world["p"].word) == ("running", "parked")


def test_a_session_the_agent_parked_by_itself() -> None:
    world = World()
    world.holding("a")
    rejoin(world, facts(world["a"], devices=(), waiting=True))
    world.answer()
    assert (world["a"].word, world["a"].epoch) == ("running", 2)
    assert any("its node agent parked it" in reads(c) for c in world.history)


def test_devices_that_the_ledger_had_given_up_are_taken_back_before_anyone_gets_them() -> None:
    world = World()
    world.holding("a")
    world.do(ev.NodeAway("local"))
    world.do(ev.LeaseReaped("a", 1, "node local did not answer for 35 s"))
    rejoin(world, facts(world["a"], devices=("cpu:0",)))
    assert (world["a"].word, world["a"].devices) == ("parking", ("cpu:0",))
    world.answer()
    assert world["a"].word == "parked"


def test_a_starting_session_is_live_when_the_agent_has_it() -> None:
    world = World()
    world.holding("x")
    world.pending.clear()
    from singularity_scheduler.core.values.requested import Kind, SessionSpec

    world.do(ev.SessionCreated("a", "alice", SessionSpec(Kind.BATCH, Tier.BASIC, 1)))
    rejoin(world, facts(world["a"]), facts(world["x"]))
    assert world["a"].word == "ready"


def test_a_live_session_without_a_record_is_adopted_not_killed() -> None:
    other = World()
    other.holding("a", Tier.PREMIUM)
    world = World()
    rejoin(world, facts(other["a"]))
    world.answer()
    view = world["a"]
    assert (view.word, view.tier, view.user, view.device_state) == (
        "parked",
        Tier.PREMIUM,
        "alice",
        DeviceState.PARKED,
    )
    world.need("a")
    world.answer()
    assert (world["a"].word, world["a"].epoch) == ("running", 2)


def test_what_cannot_be_adopted_is_ended() -> None:
    world = World()
    decision = rejoin(
        world, AgentFacts("x", True, 0, (), False, False, None, user="alice", kind="?")
    )
    assert [type(a) for a in decision.actions] == [ev.End]
    assert decision.sessions == ()


def test_activity_and_waiting_are_taken_from_the_agent() -> None:
    world = World(1)
    world.create("a")
    rejoin(world, facts(world["a"], busy=False))
    assert world["a"].idle_since is not None
    rejoin(world, facts(world["a"], busy=True, waiting=True))
    assert world["a"].word == "attaching"


def test_a_wait_that_ended_meanwhile() -> None:
    world = World(1)
    world.holding("p", Tier.PREMIUM)
    world.create("a")
    world.need("a")
    world.pending.clear()
    world.do(
        ev.NodeJoined(
            "local",
            devices_of("local", 1),
            (facts(world["p"]), facts(world["a"], waiting=False)),
        )
    )
    assert world["a"].word == "ready"


def test_reaping_an_ended_session_frees_its_device() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.NodeAway("local"))
    world.do(ev.ProcessExited("a", 0))
    world.do(ev.LeaseReaped("a", 1, "no answer"))
    assert world["a"].device_state is DeviceState.NONE
    assert world.state.nodes["local"].leases == {}
    decision = rejoin(world, facts(world["a"], alive=False))
    assert [type(a) for a in decision.actions] == [ev.End]
    world.answer()
    assert world.state.sessions == {}
