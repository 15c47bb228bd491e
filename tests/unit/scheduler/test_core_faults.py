"""The scheduler core while agents fail at every command: 1,000 seeds in a full run."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyAsked, DutyEvent
from singularity_scheduler.core.values.requested import Kind
from singularity_scheduler.core.values.states import ProcessState
from support import scheduler_faults
from support.matrix import some_of
from support.scheduler_core import World
from support.scheduler_truth import NODES, Broken

SEEDS = range(1000)


@pytest.mark.parametrize("seed", some_of(SEEDS, 30))
def test_whatever_fails_at_whichever_step_nothing_is_lost_or_runs_twice(seed: int) -> None:
    scheduler_faults.run(seed)


def test_runs_have_faults_at_every_kind_of_command() -> None:
    kinds = ("Start", "Attach", "Park", "Suspend", "Resume", "TakeCheckpoint", "End")
    wanted = {f"{kind} {fate}" for kind in kinds for fate in ("no answer", "twice")}
    seen: set[str] = set()
    for seed in range(100):
        one = scheduler_faults.Faulty(seed)
        assert one.run() > 5, f"seed {seed} does no harm"
        for line in one.story:
            fate, _, rest = line.partition(": ")
            if fate in scheduler_faults.FATES:
                seen.add(f"{rest.split()[0]} {fate}")
        if wanted <= seen:
            return
    raise AssertionError(f"never in 100 runs: {sorted(wanted - seen)}")


@pytest.mark.parametrize("promise", ["second runner", "lost checkpoint"])
def test_what_it_is_for_is_seen(promise: str) -> None:
    """A run in which a promise is broken by hand is `Broken`."""
    one = scheduler_faults.Faulty(3)
    one.do(ev.SessionCreated("s900", "alice", one.spec(Kind.INTERACTIVE, 1)))
    one.obey()
    node = one.world["s900"].node
    if promise == "second runner":
        [other] = set(NODES) - {node}
        one.agents[other].processes["s900"] = one.agents[node].processes["s900"]
    else:
        one.do(ev.CheckpointAsked("s900", "alice"))
        one.obey()
        one.store.clear()
    with pytest.raises(Broken):
        one.settle()


# -- what it found --------------------------------------------------------------------------


def stored_fork() -> World:
    """The fork "f" of a session on a node that has no room for it: it waits in the store."""
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice"))
    world.answer()
    world.do(DutyAsked("root", "local", DutyEvent.CORDON, "", None, False, False, False))
    world.do(ev.NodeAway("local"))
    world.do(ev.ForkAsked("f", world["a"], None, "alice"))
    return world


def test_a_fork_that_waits_and_is_suspended_comes_back_from_its_sources_checkpoint() -> None:
    world = stored_fork()
    source = world["f"].restore_from
    world.do(ev.SuspendAsked("f", "alice"))
    assert not world["f"].called
    world.do(ev.ResumeAsked("f", "alice"))
    assert (world["f"].called, world["f"].restore_from) == (True, source)


def test_a_session_in_the_store_waits_there_when_its_node_is_gone_and_no_other_takes_any() -> None:
    world = World(1)
    world.join("other", 1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice"))
    world.answer()
    other = next(n for n in ("local", "other") if n != world["a"].node)
    world.do(DutyAsked("root", other, DutyEvent.DRAIN, "", None, False, False, True))
    world.do(ev.NodeAway(world["a"].node))
    world.do(ev.NodeLost(world["a"].node, 900.0, hopeless=True))
    assert (world["a"].process_state, world["a"].called) == (ProcessState.SUSPENDED, True)
    world.do(DutyAsked("root", other, DutyEvent.UNDRAIN, "", None, False, False, True))
    world.answer()
    assert (world["a"].process_state, world["a"].node) == (ProcessState.LIVE, other)


def test_a_session_that_is_preempted_while_its_start_is_not_confirmed_gives_its_device() -> None:
    world = World(1)
    world.do(ev.SessionCreated("a", "alice", scheduler_faults.Faulty(0).spec(Kind.INTERACTIVE, 1)))
    world.do(ev.DeviceNeeded("a"))
    world.answer(ev.Attach)
    assert world["a"].process_state is ProcessState.STARTING
    world.do(ev.PreemptAsked("a", "alice"))
    world.answer(ev.Park)
    assert (world["a"].leased, world["a"].held_back) == (False, True)
