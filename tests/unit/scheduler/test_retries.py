"""Runs that were killed go on by themselves: from where, how often, and never two at once."""

from __future__ import annotations

import pytest
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.core.values.states import ProcessState
from support.scheduler_core import World, facts, reads, whole

QUEUED, LIVE = ProcessState.QUEUED, ProcessState.LIVE


def running(world: World, retries: int, sid: str = "r") -> None:
    """A run that holds its device and may be tried again so often."""
    run = BatchRun("/home/alice/n.ipynb", "/home/alice/o.ipynb", max_retries=retries)
    world.do(ev.SessionCreated(sid, "alice", SessionSpec(Kind.BATCH, Tier.STANDARD, 1, sid, run)))
    world.answer()
    world.need(sid)
    world.answer()
    assert world[sid].word == "running"


def kill(world: World, code: int | None = -9, sentence: str = "", sid: str = "r") -> None:
    world.do(ev.ProcessExited(sid, code, sentence))


def test_without_a_checkpoint_it_starts_from_its_beginning_once_nothing_is_left() -> None:
    world = World()
    running(world, 2)
    kill(world)
    (fence,) = world.pending
    assert isinstance(fence, ev.Fence)
    assert world["r"].leased  # nobody gets its device before its node has confirmed
    world.answer(ev.Fence)
    (start,) = world.pending
    assert isinstance(start, ev.Start)
    view = world["r"]
    assert (view.process_state, view.attempt) == (ProcessState.STARTING, 2)
    assert start.epoch > fence.epoch
    assert start.seq > fence.seq
    world.answer()
    assert reads(world["r"]) == "its process runs (attempt 2 of 3)"
    assert any(
        reads(c)
        == "attempt 2 of 3 starts from its beginning, having no checkpoint to go on from, because "
        "its process was ended by signal 9"
        for c in world.history
    )


def test_it_goes_on_from_its_newest_checkpoint() -> None:
    world = World()
    running(world, 1)
    for number in (1, 2):
        world.do(ev.CheckpointTaken("r", whole(f"c{number}", world.now)))
    kill(world, 137, "the command ended with signal 9")
    world.answer(ev.Fence)
    (resume,) = world.pending
    assert isinstance(resume, ev.Resume)
    assert (resume.checkpoint, resume.incarnation) == ("c2", 2)
    world.answer()
    view = world["r"]
    assert (view.process_state, view.attempt, view.retrying) == (LIVE, 2, False)
    assert view.loss is not None
    assert view.loss.checkpoint == "c2"
    assert "attempt 2 of 2 goes on from checkpoint 'c2', " in "".join(
        reads(c) for c in world.history
    )


def test_after_the_last_attempt_it_fails_with_the_reason() -> None:
    world = World()
    running(world, 1)
    kill(world)
    world.answer()
    kill(world, 70, "the kernel died under cell 2 of 3")
    world.answer()
    assert "r" not in world.state.sessions
    ended = world.known["r"]
    assert ended.process_state is ProcessState.FAILED
    assert ended.exit_code == 70
    assert reads(ended) == (
        "the last of its 2 attempts was ended as well: the kernel died under cell 2 of 3"
    )


@pytest.mark.parametrize("code", [0, 1, 3, 64, 124, 128, 130, 143, 193, 255, -15])
def test_what_ended_by_itself_or_was_asked_to_is_not_tried_again(code: int) -> None:
    world = World()
    running(world, 3)
    kill(world, code)
    assert world["r"].final
    assert world["r"].attempt == 1


def test_a_command_may_end_with_the_code_of_a_dead_kernel() -> None:
    world = World()
    run = BatchRun("", command="exit 70", folder="/home/alice", max_retries=3)
    world.do(ev.SessionCreated("r", "alice", SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "r", run)))
    world.answer()
    kill(world, 70)
    assert world["r"].process_state is ProcessState.FAILED
    assert reads(world["r"]) == "its process ended with exit code 70"


def test_a_signal_that_somebody_sent_through_us_ends_it() -> None:
    world = World()
    running(world, 3)
    world.do(ev.SignalAsked("r", "alice", 9))
    kill(world)
    assert world["r"].process_state is ProcessState.CANCELLED


def test_cancelled_between_two_attempts_it_does_not_start_again() -> None:
    world = World()
    running(world, 3)
    kill(world)
    world.do(ev.EndAsked("r", "alice"))
    world.answer()
    assert world.known["r"].process_state is ProcessState.CANCELLED
    assert "r" not in world.state.sessions


def test_killed_while_its_device_is_being_parked() -> None:
    world = World()
    running(world, 1)
    world.do(ev.ParkAsked("r", "alice"))
    (park,) = world.pending
    world.pending.clear()
    kill(world)
    assert world.pending == []  # its devices stand still first
    world.do(ev.ParkFailed("r", park.epoch, "there is no session r on this node"))
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)


def test_a_restart_of_the_service_in_the_middle_goes_on_with_it() -> None:
    world = World()
    running(world, 1)
    kill(world)
    world = world.reloaded()
    world.join("local", 2)  # the node has nothing of it
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)
    kill(world)
    assert world["r"].process_state is ProcessState.FAILED


def test_it_ended_with_its_node_while_it_was_given_a_device() -> None:
    """The platform was stopped and started: nobody answers the attach of before any more, so it is
    asked again, and its refusal lets the session leave."""
    world = World()
    run = BatchRun("/home/alice/n.ipynb", "/home/alice/o.ipynb", max_retries=1)
    world.do(ev.SessionCreated("r", "alice", SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "r", run)))
    world.answer()
    world.need("r")
    assert [type(action) for action in world.pending] == [ev.Attach]
    world = world.reloaded()
    over = facts(world["r"], alive=False, exit_code=None)
    for _ in range(2):  # twice: it costs one attempt
        world.pending.clear()
        world.join("local", 2, None, over)
        assert world["r"].attempt == 2
        (attach,) = world.pending
        assert isinstance(attach, ev.Attach)
    world.do(ev.AttachFailed("r", attach.epoch, "there is no session r on this node"))
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)


def test_it_ended_while_its_node_was_away() -> None:
    world = World()
    running(world, 1)
    world.pending.clear()
    world.join("local", 2, None, facts(world["r"], alive=False, exit_code=-9))
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)


@pytest.mark.parametrize(
    ("code", "reason"), [(0, "ended normally"), (1, "its process ended with exit code 1")]
)
def test_the_last_attempt_ended_by_itself_while_its_node_was_away(code: int, reason: str) -> None:
    world = World()
    running(world, 1)
    kill(world)
    world.answer()
    world.join("local", 2, None, facts(world["r"], alive=False, exit_code=code))
    assert reads(world["r"]) == reason


def test_it_was_sent_a_signal_and_ended_while_its_node_was_away() -> None:
    world = World()
    running(world, 1)
    world.do(ev.SignalAsked("r", "alice", 9))
    world.pending.clear()
    world.join("local", 2, None, facts(world["r"], alive=False, exit_code=-9))
    assert world["r"].process_state is ProcessState.CANCELLED


def test_it_was_killed_before_anybody_knew_that_it_ran() -> None:
    world = World()
    run = BatchRun("/home/alice/n.ipynb", "/home/alice/o.ipynb", max_retries=1)
    world.do(ev.SessionCreated("r", "alice", SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "r", run)))
    world.pending.clear()  # the answer to its start is lost
    world.join("local", 2, None, facts(world["r"], alive=False, exit_code=-9))
    world.answer()
    view = world["r"]
    assert (view.process_state, view.attempt) == (LIVE, 2)
    assert view.started_at is not None
    assert view.started_at < world.now - 1  # its time counts from the first attempt


def test_one_that_is_found_running_has_a_time_limit_from_then_on() -> None:
    world = World()
    run = BatchRun("/home/alice/n.ipynb", "/home/alice/o.ipynb", max_retries=1)
    world.do(ev.SessionCreated("r", "alice", SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "r", run)))
    world.pending.clear()
    world.join("local", 2, None, facts(world["r"]))
    assert (world["r"].process_state, world["r"].started_at) == (LIVE, world.now)


def test_a_node_that_forgot_it_starts_it_again() -> None:
    world = World()
    running(world, 1)
    world.pending.clear()
    world.join("local", 2)
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)


def test_of_a_damaged_checkpoint_the_next_older_one_and_then_the_beginning() -> None:
    world = World()
    running(world, 1)
    for number in (1, 2):
        world.do(ev.CheckpointTaken("r", whole(f"c{number}", world.now)))
    kill(world)
    world.answer(ev.Fence)
    for name in ("c2", "c1"):
        (resume,) = world.pending
        assert isinstance(resume, ev.Resume)
        assert resume.checkpoint == name
        world.pending.clear()
        failed = ev.ResumeFailed("r", resume.epoch, resume.seq, "a chunk is damaged", True)
        world.do(failed)
    assert [type(a) for a in world.pending] == [ev.Start]
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)


def test_what_cannot_be_brought_back_uses_attempts_up_and_then_fails() -> None:
    world = World()
    running(world, 2)
    world.do(ev.CheckpointTaken("r", whole("c1", world.now)))
    kill(world)
    world.answer(ev.Fence)
    for _ in range(2):
        (resume,) = world.pending
        world.pending.clear()
        assert isinstance(resume, ev.Resume)
        world.do(ev.ResumeFailed("r", resume.epoch, resume.seq, "a file is missing"))
    assert world["r"].process_state is ProcessState.FAILED
    assert reads(world["r"]) == (
        "the last of its 3 attempts was ended as well: it could not come back from its checkpoint "
        "(a file is missing); its newest checkpoint, 5 s old, is kept for 24.0 h: reopen brings it "
        "back from there"
    )


def test_a_store_that_was_away_for_a_moment_costs_no_attempt() -> None:
    world = World()
    running(world, 1)
    world.do(ev.CheckpointTaken("r", whole("c1", world.now)))
    kill(world)
    world.answer(ev.Fence)
    for _ in range(3):
        (resume,) = world.pending
        world.pending.clear()
        assert isinstance(resume, ev.Resume)
        assert resume.checkpoint == "c1"
        away = ev.ResumeFailed(
            "r", resume.epoch, resume.seq, "the store does not answer", passing=True
        )
        world.do(away)
        assert world["r"].attempt == 2
    assert any(
        reads(c).startswith("attempt 2 of 2 goes on from checkpoint")
        and "could not come back from its checkpoint (the store does not answer)" in reads(c)
        for c in world.history
    )
    world.answer()
    assert (world["r"].process_state, world["r"].attempt) == (LIVE, 2)


def test_a_checkpoint_after_which_it_ends_at_once_is_not_tried_again() -> None:
    """It was made while the run was dying."""
    world = World()
    running(world, 5)
    for number in (1, 2):
        world.do(ev.CheckpointTaken("r", whole(f"c{number}", world.now)))
    tried = []
    for _ in range(3):
        kill(world)
        world.answer(ev.Fence)
        (action,) = world.pending
        tried.append(getattr(action, "checkpoint", "beginning"))
        world.answer()
    assert tried == ["c2", "c1", "beginning"]


def test_after_it_worked_for_a_while_the_same_checkpoint_is_taken_again() -> None:
    world = World()
    running(world, 5)
    world.do(ev.CheckpointTaken("r", whole("c1", world.now)))
    for _ in range(2):
        world.now += 60
        kill(world)
        world.answer(ev.Fence)
        (action,) = world.pending
        assert isinstance(action, ev.Resume)
        world.answer()


def lost(world: World, silent_s: float, hopeless: bool = False) -> None:
    world.do(ev.NodeAway("local"))
    world.now += silent_s
    world.do(ev.NodeLost("local", silent_s, hopeless))


def test_a_lost_node_without_a_checkpoint_begins_it_elsewhere_and_fences_the_old_one() -> None:
    world = World()
    running(world, 1)
    world.join("other", 2)
    before = facts(world["r"])
    world.now += 600
    lost(world, 40)
    assert world["r"].node == "local"  # waiting costs less than beginning again
    lost(world, 40, hopeless=True)
    world.answer()
    view = world["r"]
    assert (view.node, view.process_state, view.attempt) == ("other", LIVE, 2)
    assert view.epoch > before.epoch
    world.join("local", 2, None, before)
    (fence,) = world.pending
    assert isinstance(fence, ev.Fence)
    assert fence.node == "local"


def test_a_lost_node_ends_a_run_that_may_not_be_tried_again() -> None:
    world = World()
    running(world, 0)
    world.join("other", 2)
    lost(world, 400, hopeless=True)
    assert world["r"].process_state is ProcessState.FAILED


def test_a_lost_node_with_a_checkpoint_is_no_retry() -> None:
    world = World()
    running(world, 1)
    world.join("other", 2)
    world.do(ev.CheckpointTaken("r", whole("c1", world.now)))
    lost(world, 40)
    world.answer()
    assert (world["r"].node, world["r"].attempt) == ("other", 1)
    assert world["r"].process_state is LIVE


def test_it_keeps_its_place_before_those_who_came_later() -> None:
    world = World(1)
    running(world, 1)
    world.submit("later")
    kill(world)
    world.answer()
    assert (world["r"].process_state, world["later"].process_state) == (LIVE, QUEUED)
