"""Every end keeps the newest checkpoint for a while, and can be taken back with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from singularity_proxy.errors import Conflict, Unsupported
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.stored import CheckpointRef, Retention
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyAsked, DutyEvent
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import BatchRun, Kind, Member, SessionSpec, Tier
from singularity_scheduler.core.values.states import ProcessState
from singularity_scheduler.service.schemas import documents
from support.scheduler_core import World, reads

DAY = 86400.0


def stored(world: World, sid: str = "a", name: str | None = None, level: str | None = None) -> str:
    """The id of a new checkpoint of it."""
    world.do(ev.CheckpointAsked(sid, "alice", name, level))
    world.answer()
    reference = world[sid].last_checkpoint
    assert reference is not None
    return reference.id


def kept(view: SessionView) -> list[str]:
    return [c.id for c in checkpoints.visible(view)]


def exits(world: World) -> None:
    world.do(ev.ProcessExited("a", -11, "its process was ended by signal 11"))


def closes(world: World) -> None:
    world.do(ev.EndAsked("a", "alice", "shutdown of the kernel"))


def restarts(world: World) -> None:
    world.do(ev.EndAsked("a", "alice", "restart of the kernel", 0.0))


def closes_suspended(world: World) -> None:
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.do(ev.EndAsked("a", "spawner", "the notebook server of alice was removed"))


def signals(world: World) -> None:
    world.do(ev.SignalAsked("a", "alice", 15))
    world.do(ev.ProcessExited("a", -15))


def loses_its_server(world: World) -> None:
    """On a node that cannot store processes (any more)."""
    state = world.state.node("local")
    from singularity_scheduler.core.values.model import Abilities

    state.abilities = Abilities(image_trouble="criu is missing")
    world.do(ev.Orphaned("a", "its Jupyter server is gone"))


def is_drained_by_force(world: World) -> None:
    from singularity_scheduler.core.values.model import Abilities

    world.state.node("local").abilities = Abilities(image_trouble="criu is missing")
    world.do(DutyAsked("root", "local", DutyEvent.DRAIN, "", deadline=world.now + 5, force=True))
    world.answer()
    world.now += 10
    world.do(ev.Tick("local"))


def does_not_stop_well(world: World) -> None:
    """It ends while it is on its way to the store, and that fails."""
    world.do(ev.SuspendAsked("a", "alice"))
    (action,) = world.pending
    world.pending.clear()
    world.do(ev.ProcessExited("a", -9))
    world.do(ev.SuspendFailed("a", action.epoch, action.seq, "its process has ended"))


ENDS: list[Callable[[World], None]] = [
    exits,
    closes,
    restarts,
    closes_suspended,
    signals,
    loses_its_server,
    is_drained_by_force,
    does_not_stop_well,
]


@pytest.mark.parametrize("ends", ENDS)
def test_every_end_keeps_the_newest_checkpoint_and_the_named_ones(
    ends: Callable[[World], None],
) -> None:
    world = World(1)
    world.holding("a")
    named, older, newest = stored(world, name="best"), stored(world), stored(world)
    ends(world)
    view = world.known["a"]
    assert view.final, view
    if ends is closes_suspended:
        assert view.newest_whole is not None
        newest = view.newest_whole.id
    assert kept(view) == [named, newest]
    assert older not in kept(view)
    assert "is kept for 24.0 h: reopen brings it back from there" in reads(view)
    reference = view.newest_whole
    assert reference is not None
    assert abs(reference.undo_until - (world.now + DAY)) < 30
    world.answer()
    assert "a" not in world.state.sessions
    document = documents.undo_document(world.known["a"])
    assert document is not None
    assert (document["checkpoint"], document["name"]) == (newest, "")


def test_a_lost_node_keeps_it_too_whatever_becomes_of_the_session() -> None:
    world = World(1, "n1")
    world.holding("a")
    newest = stored(world)
    world.join("n1", 1)  # its agent was started anew and knows nothing of it
    assert world["a"].process_state is not ProcessState.FAILED
    assert kept(world["a"]) == [newest]


def test_an_end_is_taken_back() -> None:
    world = World(1)
    world.holding("a", kernel_id="k")
    newest = stored(world)
    closes(world)
    with pytest.raises(Conflict, match="is just ending on its node: try again in a moment"):
        world.do(ev.ReopenAsked(world.known["a"], "alice"))
    world.answer()
    epoch, seq = world.known["a"].epoch, world.known["a"].seq
    world.do(ev.ReopenAsked(world.known["a"], "alice"))
    view = world["a"]
    assert (view.word, view.kernel_id, view.ended, view.exit_code) == (
        "suspended",
        "k",
        False,
        None,
    )
    assert reads(view).startswith("alice took its end back: it is as of checkpoint")
    assert reads(view).endswith("resume, or opening its notebook, brings it back")
    assert documents.undo_document(view) is None
    assert [c.undo_until for c in view.checkpoints if not c.dropped] == [0.0]
    world.do(ev.ResumeAsked("a", "alice"))
    (resume,) = world.pending
    assert isinstance(resume, ev.Resume)
    assert (resume.checkpoint, resume.source, resume.incarnation) == (newest, "a", 2)
    assert resume.epoch > epoch or resume.seq > seq
    world.answer()
    assert world["a"].process_state is ProcessState.LIVE
    closes(world)
    world.answer()
    world.do(ev.ReopenAsked(world.known["a"], "alice"))
    assert world["a"].word == "suspended", "and again"


def test_one_that_was_suspended_is_exactly_as_it_was() -> None:
    world = World(1)
    world.holding("a")
    closes_suspended(world)
    world.answer()
    world.do(ev.ReopenAsked(world.known["a"], "alice"))
    world.do(ev.Wanted("a"))
    (resume,) = world.pending
    assert isinstance(resume, ev.Resume)
    assert (resume.incarnation, resume.undo) == (1, False), "nothing is rolled back"


def test_an_answer_of_the_end_that_comes_late_does_not_end_it_again() -> None:
    world = World(1)
    world.holding("a")
    stored(world)
    closes(world)
    world.answer()
    world.do(ev.ReopenAsked(world.known["a"], "alice"))
    world.do(ev.Ended("a", 0, "local"))
    world.do(ev.ProcessExited("a", -15))
    assert world["a"].word == "suspended"


def test_a_kernel_that_was_restarted_has_its_id_and_the_one_before_gets_another() -> None:
    world = World(1)
    world.holding("a", kernel_id="k")
    stored(world)
    restarts(world)
    world.answer()
    world.create("b", kernel_id="k")
    world.do(ev.ReopenAsked(world.known["a"], "alice"))
    assert world["a"].kernel_id not in ("", "k")
    assert len(world["a"].kernel_id.split("-")) == 5, "Jupyter takes no other form"


def test_a_run_that_was_cancelled_goes_on_by_itself() -> None:
    world = World(1)
    world.computing("a")
    newest = stored(world)
    world.do(ev.EndAsked("a", "alice", "enough"))
    assert reads(world["a"]).startswith("cancelled by alice: enough; its newest checkpoint, ")
    world.answer()
    world.do(ev.ReopenAsked(world.known["a"], "alice"))
    (resume,) = world.pending
    assert isinstance(resume, ev.Resume)
    assert resume.checkpoint == newest


def _never_stored(world: World) -> None:
    closes(world)


def _device_state_alone(world: World) -> None:
    stored(world, level="device")
    closes(world)


@pytest.mark.parametrize("ends", [_never_stored, _device_state_alone])
def test_without_a_checkpoint_of_its_process_an_end_is_for_good_and_says_so(
    ends: Callable[[World], None],
) -> None:
    world = World(1)
    world.holding("a")
    ends(world)
    assert "there is no checkpoint of its process, so this cannot be taken back" in (
        reads(world["a"])
    )
    world.answer()
    view = world.known["a"]
    assert documents.undo_document(view) is None
    with pytest.raises(Conflict, match=r"there is no checkpoint of its process .* start it again"):
        world.do(ev.ReopenAsked(view, "alice"))
    assert len(kept(view)) == (ends is _device_state_alone), "that one stays as well"


def test_a_run_that_has_done_its_work_keeps_only_named_ones() -> None:
    world = World(1)
    world.computing("a")
    named = stored(world, name="best")
    stored(world)
    world.do(ev.ProcessExited("a", 0))
    world.answer()
    assert kept(world.known["a"]) == [named]
    assert documents.undo_document(world.known["a"]) is None
    with pytest.raises(Conflict, match="has done all of its work"):
        world.do(ev.ReopenAsked(world.known["a"], "alice"))


def test_what_cannot_be_taken_back_is_said() -> None:
    world = World(1)
    world.holding("a")
    with pytest.raises(Conflict, match="has not ended, so there is no end to take back"):
        world.do(ev.ReopenAsked(world["a"], "alice"))
    closes(world)
    world.answer()
    run = BatchRun("/home/alice/x.ipynb", "/home/alice/y.ipynb")
    spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "m", run, member=Member("g", 1, 1))
    world.do(ev.GroupCreated("g", "alice", (("m", spec),)))
    world.answer()
    world.do(ev.EndAsked("m", "alice"))
    world.answer()
    with pytest.raises(Conflict, match="was part of a group"):
        world.do(ev.ReopenAsked(world.known["m"], "alice"))


def test_nothing_is_kept_where_that_is_configured() -> None:
    world = World(1)
    world.state.retention = Retention(undo_end_s=0.0)
    world.holding("a")
    stored(world)
    closes(world)
    assert kept(world["a"]) == []
    assert reads(world["a"]).endswith("so this cannot be taken back")


def test_a_checkpoint_that_is_told_after_the_end_takes_the_place_of_the_one_before() -> None:
    world = World(1)
    world.holding("a")
    stored(world)
    closes(world)
    late = CheckpointRef("late", world.now, 5, "process")
    world.do(ev.CheckpointTaken("a", late))
    assert kept(world["a"]) == ["late"]
    assert world["a"].checkpoints[-1].undo_until > world.now


def test_a_person_deletes_at_once() -> None:
    world = World(1)
    world.holding("a")
    newest = stored(world)
    closes(world)
    world.do(ev.DropAsked("a", "alice", newest))
    world.answer()
    with pytest.raises(Conflict):
        world.do(ev.ReopenAsked(world.known["a"], "alice"))


def test_parts_of_gangs_end_for_good() -> None:
    from singularity_scheduler.requests.gang_spec import parts_of

    world = World(1, "n1")
    world.join("n2", 1)
    spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 1, "g", BatchRun(command="true"), nodes=2)
    names = iter(["g0", "g1"])
    parts = parts_of(spec, "gang", "0" * 64, lambda: next(names))
    world.do(ev.GangCreated("gang", "alice", tuple(parts)))
    world.answer()
    world.do(ev.EndAsked("g0", "alice"))
    world.answer()
    with pytest.raises(Unsupported, match=r"nothing is kept when it ends, .* submit it again"):
        world.do(ev.ReopenAsked(world.known["g0"], "alice"))
