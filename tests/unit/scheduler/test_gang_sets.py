"""What all parts of a gang store at one place is a set; all go back to the newest one together."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import Conflict, NotFound, Unsupported
from singularity_scheduler.core.gangs import sets as gang_sets
from singularity_scheduler.core.state.checkpoints import visible
from singularity_scheduler.core.state.stored import Retention
from singularity_scheduler.core.values import events as ev
from support.scheduler_core import World, outcome, reads, whole
from support.scheduler_gangs import computing_gang, has, submit_gang, words

BOTH = ("g0", "g1")


def two_nodes(**more: int) -> World:
    """A gang that computes on two nodes."""
    world = World(1, "a")
    world.join("b", 1)
    computing_gang(world, "g", **more)
    return world


def store(world: World, name: str | None = None, failed: str = "") -> dict[str, str]:
    """All parts are stored (but `failed`); session -> checkpoint."""
    world.do(ev.CheckpointAsked("g1", "ada", name))
    action = next(a for a in world.pending if isinstance(a, ev.TakeCheckpoint))
    done = world.set_stored(action, failed)
    world.do(done)
    return {sid: reference.id for sid, reference in done.checkpoints}


def later(world: World) -> None:
    """More than a minute: a run that was just brought back is not sick any more."""
    world.now += 100


def seen(world: World) -> list[list[str]]:
    return [[c.id for c in visible(world[sid])] for sid in BOTH]


def resumes(world: World) -> dict[str, str]:
    """From where each is coming back."""
    return {a.session: a.checkpoint for a in world.pending if isinstance(a, ev.Resume)}


def fail_to_return(world: World, failing: tuple[str, ...], damaged: bool = False) -> None:
    """All who are coming back do so, but these."""
    for action in [a for a in world.pending if isinstance(a, ev.Resume)]:
        world.pending.remove(action)
        head = (action.session, action.epoch, action.seq)
        failed = ev.ResumeFailed(*head, "a hash differs" if damaged else "no such port", damaged)
        world.do(failed if action.session in failing else outcome(action))


def back_alone(world: World, session: str) -> None:
    """Of all who are coming back this one is there, and goes on for a while."""
    action = next(a for a in world.pending if isinstance(a, ev.Resume) and a.session == session)
    world.pending.remove(action)
    world.do(outcome(action))
    later(world)


# -- stored ---------------------------------------------------------------------------------


def test_all_parts_are_stored_at_one_place_while_they_go_on() -> None:
    world = two_nodes()
    decision = world.do(ev.CheckpointAsked("g1", "ada", "best"))
    actions = [a for a in decision.actions if isinstance(a, ev.TakeCheckpoint)]
    assert [(a.session, a.name, a.level, a.cut) for a in actions] == [
        ("g0", "best", "process", BOTH),
        ("g1", "best", "process", BOTH),
    ]
    assert len({a.set_id for a in actions}) == 1
    assert words(world, *BOTH) == ["running", "running"]
    world.answer()
    assert seen(world) == [["g0-3"], ["g1-3"]]
    assert {c.set_id for sid in BOTH for c in world[sid].checkpoints} == {actions[0].set_id}


def test_the_end_of_a_gang_says_that_nothing_is_kept_of_it() -> None:
    world = two_nodes()
    store(world, "best")
    world.do(ev.EndAsked("g0", "ada"))
    for sid in BOTH:
        assert reads(world[sid]).endswith(
            "; its checkpoints go with it: the end of a run on several nodes is for good"
        )
        assert not visible(world[sid])


def test_a_part_that_ends_with_another_one_says_once_that_nothing_is_kept() -> None:
    world = two_nodes()
    store(world)
    world.do(ev.ProcessExited("g0", -9))
    gone = "; its checkpoints go with it: the end of a run on several nodes is for good"
    killed = "its process was ended by signal 9"
    assert [reads(world.known[sid]) for sid in BOTH] == [
        f"{killed}{gone}",
        f"part 0 of its gang ended: {killed}{gone}",
    ]


def test_a_set_of_which_a_part_is_missing_is_dropped() -> None:
    world = two_nodes(max_retries=1)
    assert list(store(world, failed="g0")) == ["g1"]
    assert seen(world) == [[], []]
    assert [c.dropped for c in world["g1"].checkpoints] == [True]
    assert has(world, *BOTH) == [True, True]
    later(world)
    world.do(ev.ProcessExited("g1", -9))
    assert "starts from its beginning" in reads(world["g1"])


def test_a_gang_of_which_a_part_was_killed_meanwhile_does_not_take_the_set() -> None:
    world = two_nodes(max_retries=1)
    world.do(ev.CheckpointAsked("g1", "ada"))
    action = next(a for a in world.pending if isinstance(a, ev.TakeCheckpoint))
    world.do(ev.ProcessExited("g0", -9))
    world.do(world.set_stored(action))
    assert seen(world) == [[], []]
    world.answer()
    assert [world[sid].attempt for sid in BOTH] == [2, 2]
    assert not any(isinstance(a, ev.Resume) for a in world.all_actions)


def test_what_cannot_be_stored() -> None:
    world = World(1, "a")
    world.join("b", 1)
    submit_gang(world, "g")
    with pytest.raises(Conflict) as refused:
        world.do(ev.CheckpointAsked("g1", "ada"))
    assert str(refused.value) == (
        "alice/g1 was not stored, and nothing was changed: its gang is stored only while all of "
        "its parts have their devices, and part 0 on node a is ready"
    )
    world = two_nodes()
    with pytest.raises(Unsupported, match="the parts of a gang are stored with their processes"):
        world.do(ev.CheckpointAsked("g1", "ada", level="device"))


def test_one_part_stands_for_all_when_they_are_stored_by_themselves() -> None:
    world = two_nodes()
    assert [gang_sets.is_due_with(world.state, world[sid]) for sid in BOTH] == [True, False]
    world.do(ev.ParkAsked("g1", "ada"))
    assert [gang_sets.is_due_with(world.state, world[sid]) for sid in BOTH] == [False, False]


# -- back -----------------------------------------------------------------------------------


def test_a_killed_part_takes_all_back_to_the_newest_set() -> None:
    world = two_nodes(max_retries=1)
    store(world)
    stored = store(world)
    store(world, failed="g0")
    world.do(ev.ProcessExited("g1", -9))
    assert reads(world["g1"]).startswith("attempt 2 of 2 goes on from checkpoint 'g1-4', ")
    assert reads(world["g1"]).endswith(" old, because its process was ended by signal 9")
    assert reads(world["g0"]).endswith(" old, because part 1 of its gang goes back there too")
    world.do(ev.ProcessExited("g0", 1))  # it had waited for the other one
    world.answer(ev.Fence)
    assert resumes(world) == stored
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    assert [(world[sid].attempt, world[sid].incarnation) for sid in BOTH] == [(2, 2), (2, 2)]


def test_who_may_not_be_tried_again_ends_with_the_others() -> None:
    world = two_nodes()
    store(world)
    world.do(ev.ProcessExited("g1", -9))
    assert words(world, *BOTH) == ["failed", "failed"]


def test_a_lost_node_is_no_retry() -> None:
    world = two_nodes()
    stored = store(world)
    world.join("c", 1)
    world.do(ev.NodeLost("b", 35.0))
    assert reads(world["g1"]).startswith(
        "node b has been gone for 35 s: it goes on from checkpoint 'g1-3', "
    )
    assert "part 1 of its gang was lost (node b has been gone for 35 s)" in reads(world["g0"])
    world.answer(ev.Fence)
    assert resumes(world) == stored
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    assert {world[sid].node for sid in BOTH} == {"a", "c"}
    assert [world[sid].attempt for sid in BOTH] == [1, 1]


def test_a_lost_node_is_waited_for_where_there_is_no_other_one() -> None:
    world = two_nodes()
    stored = store(world)
    world.do(ev.NodeLost("b", 35.0, hopeless=False))
    assert words(world, *BOTH) == ["running", "running"]
    world.do(ev.NodeLost("b", 400.0))
    world.answer(ev.Fence)
    assert words(world, *BOTH) == ["suspended", "suspended"]
    assert "not all parts of its gang have room on different nodes" in reads(world["g0"])
    world.join("c", 1)
    world.do(ev.Tick("c"))
    assert resumes(world) == stored


def test_an_agent_that_knows_nothing_of_its_part_takes_all_back() -> None:
    world = two_nodes()
    stored = store(world)
    world.join("b", 1)
    assert "the agent of node b no longer knows this session" in reads(world["g1"])
    world.answer(ev.Fence)
    assert resumes(world) == stored


def test_a_part_that_was_just_back_takes_all_to_the_next_older_set() -> None:
    world = two_nodes(max_retries=2)
    older, newer = store(world), store(world)
    world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    assert resumes(world) == newer
    world.answer()
    world.do(ev.ProcessExited("g0", -9))
    world.answer(ev.Fence)
    assert resumes(world) == older


@pytest.mark.parametrize("lost", [True, False])
def test_a_damaged_set_costs_no_attempt(lost: bool) -> None:
    world = two_nodes(max_retries=2)
    older, newer = store(world), store(world)
    if lost:
        world.join("b", 1)
    else:
        world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    assert resumes(world) == newer
    action = next(a for a in world.pending if isinstance(a, ev.Resume) and a.session == "g0")
    world.pending.remove(action)
    world.do(ev.ResumeFailed("g0", action.epoch, action.seq, "a hash differs", True))
    other = next(a for a in world.pending if isinstance(a, ev.Resume))
    world.pending.remove(other)
    world.do(outcome(other))  # it comes back from the damaged set, and follows
    world.answer(ev.Fence)
    assert resumes(world) == older
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    assert [world[sid].attempt for sid in BOTH] == ([1, 1] if lost else [2, 2])
    assert [world[sid].incarnation for sid in BOTH] == [3, 3]


def test_without_a_whole_set_all_begin_again() -> None:
    world = two_nodes(max_retries=1)
    store(world)
    world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    for action in [a for a in world.pending if isinstance(a, ev.Resume)]:
        world.pending.remove(action)
        failed = action.session == "g1"
        head = (action.session, action.epoch, action.seq)
        world.do(ev.ResumeFailed(*head, "a hash differs", True) if failed else outcome(action))
    assert "starts from its beginning" in reads(world["g0"])
    world.answer()
    assert words(world, *BOTH) == ["ready", "ready"]
    assert [world[sid].attempt for sid in BOTH] == [2, 2]


def test_a_gang_that_was_suspended_once_goes_back_to_that() -> None:
    world = two_nodes(max_retries=1)
    store(world)
    world.do(ev.SuspendAsked("g0", "ada"))
    world.answer(ev.Suspend)
    images = {sid: visible(world[sid])[-1].id for sid in BOTH}
    assert seen(world) == [[images["g0"]], [images["g1"]]]  # in the place of older ones
    world.do(ev.ResumeAsked("g0", "ada"))
    world.answer()
    later(world)
    world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    assert resumes(world) == images


def test_a_suspend_that_did_not_store_all_keeps_the_set_before() -> None:
    world = two_nodes(max_retries=1)
    stored = store(world)
    world.do(ev.SuspendAsked("g0", "ada"))
    for action in [a for a in world.pending if isinstance(a, ev.Suspend)]:
        world.pending.remove(action)
        failed = action.session == "g1"
        head = (action.session, action.epoch, action.seq)
        world.do(ev.SuspendFailed(*head, "disk full") if failed else outcome(action))
    world.answer()
    world.need("g1")
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    assert seen(world) == [[stored["g0"]], [stored["g1"]]]


def test_resume_takes_an_older_set_where_one_cannot_come_back() -> None:
    world = two_nodes()
    older, newer = store(world), store(world)
    world.join("b", 1)
    world.answer(ev.Fence)
    assert resumes(world) == newer
    for action in [a for a in world.pending if isinstance(a, ev.Resume)]:
        world.pending.remove(action)
        failed = action.session == "g1"
        head = (action.session, action.epoch, action.seq)
        world.do(ev.ResumeFailed(*head, "a hash differs", True) if failed else outcome(action))
    assert words(world, *BOTH) == ["waiting", "suspended"]
    world.do(ev.ResumeAsked("g0", "ada"))
    world.answer(ev.Fence)
    assert resumes(world) == older


@pytest.mark.parametrize("failing", [("g1",), BOTH])
def test_a_part_with_a_newer_checkpoint_of_its_own_comes_back_to_where_the_others_are(
    failing: tuple[str, ...],
) -> None:
    world = two_nodes()
    older, newer = store(world), store(world)
    world.join("b", 1)
    world.answer(ev.Fence)
    assert resumes(world) == newer
    fail_to_return(world, ("g0",), damaged=True)
    world.do(ev.ResumeAsked("g0", "ada"))
    world.answer(ev.Fence)
    assert resumes(world) == older
    fail_to_return(world, failing)
    newest = world["g1"].newest_whole
    assert newest is not None
    assert newest.id == newer["g1"]
    world.do(ev.ResumeAsked("g0", "ada"))
    assert resumes(world) == {sid: older[sid] for sid in failing}
    world.answer()
    world.need("g0")
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    assert [world[sid].incarnation for sid in BOTH] == [3, 3]


@pytest.mark.parametrize("retried", [True, False])
def test_a_part_that_finds_the_set_damaged_that_the_others_go_back_to_takes_all_to_an_older_one(
    retried: bool,
) -> None:
    world = two_nodes(max_retries=2 if retried else 0)
    world.join("c", 1)
    older, newer = store(world), store(world)
    world.join("b", 1)
    world.answer(ev.Fence)
    assert resumes(world) == newer
    back_alone(world, "g0")
    if retried:
        world.do(ev.ProcessExited("g0", -9))
    else:
        world.do(ev.NodeLost("a", 1e6))
    fail_to_return(world, ("g1",), damaged=True)
    world.answer(ev.Fence)
    assert resumes(world) == older
    assert "it could not come back from its checkpoint (a hash differs)" in reads(world["g1"])
    world.answer()
    world.need("g0")
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    attempt = 2 if retried else 1
    assert [(world[sid].attempt, world[sid].incarnation) for sid in BOTH] == [(attempt, 3)] * 2


def test_parts_on_their_way_back_follow_who_goes_back_further_and_not_one_another() -> None:
    world = World(1, "a")
    for node in ("b", "c"):
        world.join(node, 1)
    computing_gang(world, "g", 3, max_retries=2)
    older, newer = store(world), store(world)
    world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    assert resumes(world) == newer
    back = {a.session: a for a in world.pending if isinstance(a, ev.Resume)}
    for sid in ("g1", "g2", "g0"):
        world.pending.remove(back[sid])
        world.do(outcome(back[sid]))
        if sid == "g1":  # so soon that all take the next older set
            world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    assert resumes(world) == older
    world.answer()
    assert [(world[sid].attempt, world[sid].incarnation) for sid in older] == [(3, 3)] * 3


def on_its_way_back_alone(max_retries: int) -> World:
    """A gang that was stored once: part 0 is back, its node is lost, and part 1 is on its way."""
    world = two_nodes(max_retries=max_retries)
    world.do(ev.SuspendAsked("g1", "ada"))
    world.answer(ev.Suspend)
    world.do(ev.ResumeAsked("g0", "ada"))
    back_alone(world, "g0")
    world.join("c", 1)
    world.do(ev.NodeLost("a", 1e6))
    return world


def test_a_part_that_finds_the_only_set_damaged_has_all_begin_again() -> None:
    world = on_its_way_back_alone(max_retries=1)
    fail_to_return(world, ("g1",), damaged=True)
    assert "starts from its beginning" in reads(world["g0"])
    world.do(ev.NodeLost("a", 1e6))  # it is still gone, and a queued run waits elsewhere
    world.answer()
    assert words(world, *BOTH) == ["ready", "ready"]
    assert [(world[sid].attempt, world[sid].incarnation) for sid in BOTH] == [(2, 1)] * 2


def test_a_part_that_finds_the_only_set_damaged_ends_all_that_may_not_be_tried_again() -> None:
    world = on_its_way_back_alone(max_retries=0)
    fail_to_return(world, ("g1",), damaged=True)
    assert words(world, *BOTH) == ["failed", "failed"]
    why = "it could not come back from its checkpoint (a hash differs)"
    assert [why in reads(world.known[sid]) for sid in BOTH] == [True, True]


def test_a_part_comes_back_from_no_place_where_the_others_were_not() -> None:
    world = two_nodes()
    older, newer = store(world), store(world)
    world.join("b", 1)
    for stored, failing in ((newer, "g1"), (older, "g0")):
        world.answer(ev.Fence)
        assert resumes(world) == stored
        for action in [a for a in world.pending if isinstance(a, ev.Resume)]:
            world.pending.remove(action)
            failed = action.session == failing
            head = (action.session, action.epoch, action.seq)
            world.do(ev.ResumeFailed(*head, "a hash differs", True) if failed else outcome(action))
        if failing == "g1":
            world.do(ev.ResumeAsked("g1", "ada"))
    assert [any(c.whole for c in world[sid].checkpoints) for sid in BOTH] == [True, True]
    with pytest.raises(Conflict, match="that fits those of the other parts of its gang"):
        world.do(ev.ResumeAsked("g0", "ada"))


# -- kept -----------------------------------------------------------------------------------


def test_older_sets_go_as_a_whole() -> None:
    world = two_nodes()
    world.state.retention = Retention(newest=2)
    named = store(world, "keep")
    kept = [store(world) for _ in range(4)][-2:]
    assert seen(world) == [[named[sid], *(one[sid] for one in kept)] for sid in BOTH]


def test_the_newest_set_stays_however_old_it_is() -> None:
    world = two_nodes(max_retries=1)
    world.state.retention = Retention(days=1)
    old, stored = store(world), store(world)
    world.now += 3 * 86400
    world.do(ev.ProcessExited("g1", -9))
    world.answer(ev.Fence)
    assert resumes(world) == stored
    assert seen(world) == [[old[sid], stored[sid]] for sid in BOTH]
    world.answer()
    assert seen(world) == [[stored[sid]] for sid in BOTH]


def test_a_checkpoint_is_deleted_with_its_set() -> None:
    world = two_nodes()
    first, second = store(world), store(world, "best")
    world.do(ev.DropAsked("g1", "ada", "best"))
    assert seen(world) == [[first["g0"]], [first["g1"]]]
    with pytest.raises(NotFound):
        world.do(ev.DropAsked("g0", "ada", second["g0"]))
    world.join("b", 1)  # all go back to the first
    with pytest.raises(Conflict, match="and the other parts of its gang would come back from"):
        world.do(ev.DropAsked("g0", "ada", first["g0"]))


def test_what_was_found_of_one_part_alone_is_of_no_use() -> None:
    world = two_nodes(max_retries=1)
    world.do(ev.CheckpointsFound("g0", (whole("stray", 5000.0),)))
    world.do(ev.ProcessExited("g0", -9))
    assert "starts from its beginning" in reads(world["g0"])
    world.answer()
    world.need("g0")
    world.answer()
    stored = store(world)
    assert seen(world) == [[stored["g0"]], [stored["g1"]]]


def test_nothing_of_a_gang_that_has_ended_is_kept() -> None:
    world = two_nodes()
    store(world, "best")
    world.do(ev.EndAsked("g0", "ada"))
    assert all(c.dropped for sid in BOTH for c in world.known[sid].checkpoints)
