"""Groups of runs: how many are started at once, how they stand in the queue, how they end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.steps.endings import late_groups
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import BatchRun, Kind, Priority, SessionSpec, Tier
from singularity_scheduler.explain.why import explain
from support.scheduler_core import World, reads
from support.scheduler_groups import end, started, submit_group


def test_at_most_so_many_members_run_at_once_and_the_others_say_so() -> None:
    world = World(4)
    submit_group(world, "g", 5, max_parallel=2)
    assert started(world) == ["g1", "g2"]
    assert reads(world["g5"]) == "member 5 of 5: at most 2 run at once"
    answer = explain(world.state, world["g3"], world.now)
    assert "member 3 of 5: at most 2 run at once; 2 of its group run now" in answer["sentence"]
    assert answer["facts"]["group"] == {"running": 2, "max_parallel": 2}
    single = world.submit("single")
    assert single.word == "ready", "a group that has enough lets others pass"
    end(world, "g2")
    assert started(world) == ["g1", "g2", "single", "g3"]
    end(world, "g1", 1)
    end(world, "g3")
    end(world, "g4")
    assert started(world)[3:] == ["g3", "g4", "g5"]


def test_a_member_that_ends_lets_one_start_on_another_node() -> None:
    world = World(1)
    world.join("other", 1)
    submit_group(world, "g", 2, max_parallel=1)
    world.do(ev.Tick("local"))
    waiting = world["g2"]
    moved = replace(waiting, node="other")
    world.state.apply(ev.Decision(sessions=(moved,), counter=world.state.counter))
    end(world, "g1")
    assert started(world) == ["g1", "g2"]


def test_a_group_takes_turns_with_others_of_its_tier() -> None:
    world = World(1)
    submit_group(world, "a", 4)
    world.submit("single")
    submit_group(world, "b", 3)
    answer = explain(world.state, world["b2"], world.now)
    assert answer["facts"]["before"][0] == {
        "session": "alice/a2",
        "tier": "standard",
        "rule": "group",
    }
    order = ["a1"]
    while len(order) < 8:
        end(world, order[-1])
        order.append(started(world)[-1])
    assert order == ["a1", "a2", "single", "b1", "a3", "b2", "a4", "b3"]


def test_priority_and_tier_go_before_turns() -> None:
    world = World(1)
    world.submit("running")
    submit_group(world, "basic", 2, Tier.BASIC)
    submit_group(world, "g", 2)
    run = BatchRun("/home/alice/n.ipynb", "/home/alice/o.ipynb")
    low = SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "low", run, priority=Priority.LOW)
    world.do(ev.SessionCreated("low", "alice", low))
    order = ["running"]
    for _ in range(5):
        end(world, order[-1])
        order.append(started(world)[-1])
    assert order[1:] == ["g1", "g2", "low", "basic1", "basic2"]


@settings(max_examples=25, deadline=None)
@given(
    members=st.integers(2, 100),
    devices=st.integers(1, 4),
    before=st.booleans(),
    parallel=st.one_of(st.none(), st.integers(1, 8)),
)
def test_a_single_run_waits_no_longer_for_a_large_group_than_for_one_of_two(
    members: int, devices: int, before: bool, parallel: int | None
) -> None:
    """Equal needs: counted in ends of other runs that it has to wait for."""
    assert waits(members, devices, before, parallel) <= waits(2, devices, before, None) + devices


def waits(members: int, devices: int, before: bool, parallel: int | None) -> int:
    world = World(devices)
    if before:
        world.submit("running")
    submit_group(world, "g", members, max_parallel=parallel)
    world.submit("single")
    ends = 0
    while world["single"].pending:
        running = [s for s in started(world) if s in world.state.sessions]
        end(world, running[0])
        ends += 1
    return ends


def test_service_of_the_group_puts_its_members_behind_a_single_run() -> None:
    fair = Parameters(idle_soft_s=0, idle_grace_s=0, min_run_s=0).changed(
        las_thresholds_device_s=(100.0,)
    )
    for grouped, expected in ((True, "single"), (False, "g2")):
        world = World(3, parameters=fair)
        if grouped:
            submit_group(world, "g", 2)
        else:
            for sid in ("g1", "g2"):
                world.submit(sid)
        world.submit("single")
        world.need("g1")
        world.answer()
        world.now += 200  # g1 attains more than a level of service
        world.create("top", Tier.PREMIUM, devices=2, kind=Kind.INTERACTIVE)
        world.do(ev.Activity("top", True, world.now))
        world.need("top")
        world.answer()
        world.create("other", Tier.PREMIUM)
        world.do(ev.Activity("other", True, world.now))
        world.need("other")
        world.answer()
        assert not world["g1"].devices
        for sid in ("g2", "single"):  # both have had nothing themselves; g2 asks first
            world.need(sid)
        assert world["g2"].word == world["single"].word == "waiting"
        world.do(ev.EndAsked("other", "alice"))
        world.answer(ev.End, ev.Attach)
        assert [s for s in ("g2", "single") if world[s].devices] == [expected]


def test_ending_a_group_ends_all_and_starts_none() -> None:
    world = World(2)
    submit_group(world, "g", 5)
    world.submit("single")
    world.do(ev.GroupEndAsked("g", "alice", "enough"))
    assert [a.session for a in world.pending if isinstance(a, ev.Start)] == ["single"]
    assert reads(world["g1"]) == "cancelled by alice: enough"
    world.answer()
    assert set(world.state.sessions) == {"single"}
    assert world.state.groups == {}


def test_a_member_that_is_held_back_holds_nobody_up() -> None:
    world = World(1)
    submit_group(world, "g", 4)
    world.do(ev.PreemptAsked("g2", "alice"))
    end(world, "g1")
    assert started(world) == ["g1", "g3"]
    world.do(ev.EndAsked("g4", "alice"))
    world.do(ev.ResumeAsked("g2", "alice"))
    end(world, "g3")
    assert started(world) == ["g1", "g3", "g2"]


def test_a_member_of_a_group_that_cannot_be_refuses_all() -> None:
    world = World(2)
    with pytest.raises(BadRequest, match="3 devices asked"):
        submit_group(world, "g", 3, devices=3)
    assert not world.state.sessions


def test_a_restart_knows_the_groups() -> None:
    world = World(1)
    submit_group(world, "g", 3, max_parallel=1)
    again = world.reloaded()
    assert again.state.groups == world.state.groups
    assert [v.id for v in again.state.queued("local")] == ["g2", "g3"]


def test_a_group_whose_time_is_over_ends_with_all_of_it() -> None:
    world = World(1)
    submit_group(world, "g", 3, timeout_s=600)
    submit_group(world, "other", 2)
    until = world["g1"].created_at + 600
    end(world, "g1")
    assert world.known["g1"].word == "completed"
    world.now = until - 2  # each event comes a second later
    world.do(ev.GroupLate("g"))
    assert not world["g2"].final, "not yet"
    world = world.reloaded()
    assert late_groups(world.state, world.now) == []
    assert late_groups(world.state, until) == ["g"]
    world.do(ev.GroupLate("g"))
    assert world.now == until
    assert late_groups(world.state, until) == []
    sentence = "cancelled by its group: the time limit of the group, 10 min, is over"
    for name in ("g2", "g3"):
        assert (world.known[name].word, reads(world.known[name])) == ("cancelled", sentence)
    assert not world["other1"].final


def test_the_first_that_fails_ends_the_others_where_that_is_asked_for() -> None:
    world = World(2)
    submit_group(world, "g", 4, stop_on_failure=True)
    submit_group(world, "other", 2, stop_on_failure=False)
    end(world, "g1")
    assert not world["g2"].final
    end(world, "g2", 1)
    assert "g" not in world.state.groups
    said = [change for change in world.history if change.session == "g4"][-1]
    assert reads(said) == "cancelled by its group: member 2 of 4 failed (alice/g2)"
    assert "other1" in started(world)
