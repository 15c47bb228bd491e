"""Whole sessions through the store: suspend, resume, migrate, restore, fork, and nodes that die."""

from __future__ import annotations

from dataclasses import replace

import pytest
from singularity_proxy.capsule.images.machine import Machine
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SingularityError,
    Unavailable,
    Unsupported,
)
from singularity_scheduler.core.state import checkpoints
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport, Retention
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Abilities, AgentFacts, SessionView
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.explain.why import explain
from singularity_scheduler.requests.run_spec import KERNEL
from singularity_scheduler.text.errors import in_words
from singularity_scheduler.text.reasons import render
from support.scheduler_core import World, devices_of, facts, reads, whole

NO_CRIU = Abilities(image_trouble="criu is missing")


def two_nodes(devices: int = 2) -> World:
    world = World(devices, "n1")
    world.join("n2", devices)
    return world


def take(world: World, kind: type) -> ev.Action:
    """The one pending action of this kind, taken from the queue."""
    [action] = [a for a in world.pending if isinstance(a, kind)]
    world.pending.remove(action)
    return action


def suspended(world: World, sid: str = "a") -> SessionView:
    world.holding(sid)
    world.do(ev.SuspendAsked(sid, "alice"))
    world.answer()
    assert world[sid].word == "suspended"
    return world[sid]


# -- suspend --------------------------------------------------------------------------------


def test_suspend_takes_everything_and_frees_the_devices_only_then() -> None:
    world = World(1)
    world.holding("a")
    world.create("b")
    world.do(ev.SuspendAsked("a", "alice", "before lunch"))
    action = take(world, ev.Suspend)
    assert isinstance(action, ev.Suspend)
    assert (action.name, action.epoch) == ("before lunch", world["a"].epoch)
    assert (world["a"].word, world["a"].devices) == ("suspending", ("cpu:0",))
    world.need("b")
    assert world["b"].word == "waiting"  # what is about to come free is not taken twice
    reference = whole("k1", name="before lunch")
    world.do(ev.Suspended("a", action.epoch, action.seq, reference, 2100.0))
    assert (world["a"].word, world["a"].devices) == ("suspended", ())
    assert world["a"].last_checkpoint == replace(reference, cause="suspend")
    assert reads(world["a"]) == (
        "everything of it is in checkpoint 'before lunch' (1 GiB in 2.1 s); resume or the next "
        "request from its notebook brings it back"
    )
    world.answer()
    assert world["b"].word == "running"


@pytest.mark.parametrize("state", ["none", "parked", "waiting", "held"])
def test_suspend_in_every_device_state_and_back(state: str) -> None:
    world = World(1)
    if state == "none":
        world.create("a")
    elif state == "waiting":
        world.holding("other", Tier.PREMIUM)
        world.create("a")
        world.do(ev.Activity("a", True, world.now))
        world.need("a")
    else:
        world.holding("a")
        if state == "parked":
            world.do(ev.ParkAsked("a", "alice"))
            world.answer()
    assert world["a"].device_state.value == state
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    assert world["a"].device_state in (DeviceState.NONE, DeviceState.PARKED)
    assert world["a"].wants is (state in ("waiting", "held"))
    epoch = world["a"].epoch
    if state == "waiting":
        world.do(ev.EndAsked("other", "alice"))
        world.answer()
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert world["a"].process_state is ProcessState.LIVE
    assert world["a"].epoch > epoch
    assert world["a"].incarnation == 1, "nothing was undone"
    # Code that was blocked on a device gets it again by itself.
    assert world["a"].word == {"none": "ready", "parked": "parked"}.get(state, "running")


def test_suspend_waits_until_the_devices_stand_still() -> None:
    world = World(1)
    world.create("a")
    world.need("a")
    assert world["a"].word == "attaching"
    world.do(ev.SuspendAsked("a", "alice", "now"))
    assert not [a for a in world.pending if isinstance(a, ev.Suspend)]
    world.answer(ev.Attach)
    action = take(world, ev.Suspend)
    assert isinstance(action, ev.Suspend)
    assert action.name == "now"


def test_a_failed_suspend_leaves_the_session_as_it_was() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.SuspendAsked("a", "alice"))
    action = take(world, ev.Suspend)
    world.do(ev.SuspendFailed("a", action.epoch, action.seq, "the disk is full"))
    assert (world["a"].word, world["a"].devices) == ("running", ("cpu:0",))
    assert reads(world["a"]) == (
        "could not be suspended, so it goes on as it was (the disk is full)"
    )
    assert world["a"].checkpoints == ()


def test_the_end_of_the_processes_in_a_dump_is_no_end_of_the_session() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.SuspendAsked("a", "alice"))
    world.do(ev.ProcessExited("a", -9))
    world.answer()
    assert world["a"].word == "suspended"
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    world.do(ev.SuspendAsked("a", "alice"))
    action = take(world, ev.Suspend)
    world.do(ev.ProcessExited("a", 0))  # and this one came before the freeze
    world.do(ev.SuspendFailed("a", action.epoch, action.seq, "its process has ended"))
    assert world["a"].word == "completed"


def test_nodes_that_cannot_say_so_and_nothing_changes() -> None:
    world = World(1, abilities=NO_CRIU)
    world.holding("a")
    before = world["a"]
    for event in (
        ev.SuspendAsked("a", "alice"),
        ev.CheckpointAsked("a", "alice", level="process"),
    ):
        with pytest.raises(Unsupported, match=r"node local cannot store .*\(criu is missing\)"):
            world.do(event)
    assert world["a"] == before
    world.do(ev.Orphaned("a", "its Jupyter server is gone"))  # as before there were images
    assert world["a"].word == "completed"


def test_a_session_without_a_server_waits_in_the_store() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.Orphaned("a", "its Jupyter server (process 7) is gone since 15 s"))
    world.answer()
    assert world["a"].word == "suspended"
    [line] = [c for c in world.history if c.word == "suspending"]
    assert reads(line) == (
        "its Jupyter server (process 7) is gone since 15 s: it is suspended until its next server "
        "or request; nothing is lost"
    )


# -- resume ---------------------------------------------------------------------------------


def test_only_what_would_be_lost_may_use_the_room_that_is_kept_back() -> None:
    world = two_nodes()
    for sid in "abc":
        world.holding(sid)
    world.do(ev.SuspendAsked("a", "alice"))
    world.do(ev.SuspendAsked("b", "alice", why="its server was stopped", urgent=True))
    world.do(ev.Orphaned("c"))
    commands = {a.session: a.urgent for a in world.pending if isinstance(a, ev.Suspend)}
    assert commands == {"a": False, "b": True, "c": True}


def test_a_store_of_the_same_name_may_be_another_one() -> None:
    world = World(1, "n1", Abilities(store="/srv/store", store_id="1" * 32))
    world.join("n2", 1, Abilities(store="/srv/store", store_id="2" * 32))
    suspended(world)
    with pytest.raises(Conflict, match="node n2 uses another store than node n1"):
        world.do(ev.ResumeAsked("a", "alice", node="n2"))
    world.join("n2", 1, Abilities(store="/srv/store", store_id="1" * 32))  # mounted now
    world.do(ev.ResumeAsked("a", "alice", node="n2"))
    world.answer()
    assert (world["a"].node, world["a"].process_state) == ("n2", ProcessState.LIVE)


def test_it_comes_back_where_it_was_else_where_there_is_room() -> None:
    world = two_nodes(1)
    suspended(world)
    assert world["a"].node == "n1"
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    assert (world["a"].node, world["a"].word) == ("n1", "running")
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.holding("b", Tier.PREMIUM)
    assert world["b"].node == "n2"
    world.holding("c", Tier.PREMIUM)
    assert world["c"].node == "n1"
    world.do(ev.ResumeAsked("a", "alice"))
    assert world["a"].word == "suspended"
    assert world["a"].called
    assert reads(world["a"]) == (
        "called back by alice; the devices of node n1 are in use by sessions that go before it; "
        "the devices of node n2 are in use by sessions that go before it; it comes back by itself "
        "as soon as there is room"
    )
    assert explain(world.state, world["a"], world.now)["facts"]["place"] == 1
    world.do(ev.EndAsked("b", "alice"))
    world.answer()
    assert (world["a"].node, world["a"].word, world["a"].devices) == ("n2", "running", ("cpu:0",))
    assert world["a"].origin == "n1", "its kernel connection stays where it is"


def test_one_free_device_brings_one_of_two_back() -> None:
    world = two_nodes(1)
    for sid in ("a", "b"):
        world.holding(sid)
    assert [world[sid].node for sid in ("a", "b")] == ["n1", "n2"]
    for sid in ("a", "b"):
        world.do(ev.SuspendAsked(sid, "alice"))
        world.answer()
    world.holding("c")
    taken = world["c"].node
    [free] = {"n1", "n2"} - {taken}
    for sid in ("a", "b"):
        world.do(ev.ResumeAsked(sid, "alice"))
    assert (world["a"].word, world["a"].node) == ("resuming", free)
    assert world["b"].word == "suspended"
    assert "in use by sessions that go before it" in reads(world["b"])
    world.answer()
    world.do(ev.EndAsked("c", "alice"))
    world.answer()
    assert [world[sid].word for sid in ("a", "b")] == ["running", "running"]
    assert world["b"].node == taken


def test_on_a_node_that_is_named_and_on_no_other() -> None:
    world = two_nodes(1)
    suspended(world)
    with pytest.raises(NotFound, match="there is no node 'n3': did you mean 'n2'"):
        world.do(ev.ResumeAsked("a", "alice", node="n3"))
    world.do(ev.ResumeAsked("a", "alice", node="n2"))
    action = take(world, ev.Resume)
    assert isinstance(action, ev.Resume)
    assert (action.node, action.incarnation) == ("n2", 1)
    assert action.epoch == 2, "an answer or command of the epoch before counts no more"
    world.do(ev.Suspended("a", 1, 99, whole("late")))
    assert [c.id for c in world["a"].checkpoints] == [action.checkpoint]


def test_a_request_brings_it_back_but_not_one_that_is_held_back() -> None:
    world = World(1)
    suspended(world)
    world.do(ev.PreemptAsked("a", "root"))
    world.do(ev.Wanted("a"))
    assert world["a"].word == "suspended"
    world.do(ev.ResumeAsked("a", "alice"))
    world.answer()
    world.do(ev.SuspendAsked("a", "alice"))
    world.do(ev.Wanted("a"))  # while it is still leaving
    world.answer()
    assert world["a"].word == "running"


def test_one_that_is_called_back_while_it_leaves_comes_back_when_it_is_stored() -> None:
    """A page that opens a notebook whose server has just stopped waits for it."""
    for held_back in (False, True):
        world = World(1)
        world.holding("a")
        world.do(ev.SuspendAsked("a", "spawner"))
        if held_back:
            world.do(ev.PreemptAsked("a", "root"))
        world.do(ev.ResumeAsked("a", "alice"))
        assert reads(world["a"]).startswith("called back by alice while it was being suspended")
        world.do(ev.ResumeAsked("a", "alice"))  # a second page
        world.answer()
        assert world["a"].word == "running"
    world.do(ev.SuspendAsked("a", "spawner"))
    with pytest.raises(Conflict, match="is being suspended already"):
        world.do(ev.ResumeAsked("a", "alice", node="n1"))


def test_one_that_is_held_back_when_it_leaves_says_what_brings_it_back() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.answer()
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    assert world["a"].word == "suspended"
    assert reads(world["a"]).endswith("only resume brings it back, as root preempted it")


def test_a_damaged_checkpoint_is_named_and_the_next_older_one_offered() -> None:
    world = World(1)
    world.holding("a")
    for name in ("one", "two"):
        world.do(ev.CheckpointAsked("a", "alice", name))
        world.answer()
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.do(ev.ResumeAsked("a", "alice"))
    action = take(world, ev.Resume)
    world.do(ev.ResumeFailed("a", action.epoch, action.seq, "chunk ab12 is wrong", damaged=True))
    assert world["a"].word == "suspended"
    assert not world["a"].called
    assert "(chunk ab12 is wrong); the next one that can be used is 'two'" in reads(world["a"])
    with pytest.raises(Conflict, match=r"is damaged \(chunk ab12 is wrong\).*'two'"):
        world.do(ev.ResumeAsked("a", "alice", world["a"].checkpoints[-1].id))
    world.do(ev.ResumeAsked("a", "alice", "two"))
    world.answer()
    assert world["a"].word == "running"


def test_what_came_after_the_checkpoint_that_is_left_is_undone() -> None:
    """Its last state is damaged: a plain resume goes back to an older one, and must not be taken
    for one that goes on where the session was."""
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "one"))
    world.answer()
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.do(ev.ResumeAsked("a", "alice"))
    action = take(world, ev.Resume)
    world.do(ev.ResumeFailed("a", action.epoch, action.seq, "chunk ab12 is wrong", damaged=True))
    world.do(ev.ResumeAsked("a", "alice"))
    action = take(world, ev.Resume)
    assert action.checkpoint == next(c.id for c in world["a"].checkpoints if c.name == "one")
    assert action.incarnation == 2
    assert not action.undo, "what was asked since is carried out again"


# -- migrate --------------------------------------------------------------------------------


def test_migrate_to_a_node_is_one_move() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.MigrateAsked("a", "alice", node="n2"))
    assert world["a"].word == "migrating"
    world.answer(ev.Suspend)
    assert world["a"].word == "migrating"
    world.answer()
    assert (world["a"].node, world["a"].word, world["a"].incarnation) == ("n2", "running", 1)
    assert {c.word for c in world.history if "moving" in reads(c)} == {"migrating"}
    with pytest.raises(Conflict, match="is on node n2 already"):
        world.do(ev.MigrateAsked("a", "alice", node="n2"))


def test_migrate_refuses_before_anything_is_frozen() -> None:
    world = two_nodes(1)
    world.holding("a")
    world.holding("b", Tier.PREMIUM)
    with pytest.raises(Conflict, match="was not moved and goes on where it is: the devices of"):
        world.do(ev.MigrateAsked("a", "alice", node="n2"))
    world.join("n2", 1, NO_CRIU, facts(world["b"]))
    with pytest.raises(Unsupported, match=r"cannot go to node n2, .*\(criu is missing\)"):
        world.do(ev.MigrateAsked("a", "alice", node="n2"))
    with pytest.raises(BadRequest, match="not two of them"):
        world.do(ev.MigrateAsked("a", "alice", ("cpu:0",), "n2"))
    assert world["a"].word == "running"


def test_a_move_that_fails_there_comes_back_here() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.MigrateAsked("a", "alice", node="n2"))
    world.answer(ev.Suspend)
    action = take(world, ev.Resume)
    world.do(ev.ResumeFailed("a", action.epoch, action.seq, "no space"))
    assert world["a"].node == "n1"
    world.answer()
    assert (world["a"].node, world["a"].word, world["a"].incarnation) == ("n1", "running", 1)
    [line] = [c for c in world.history if c.rule == "process.resume_failed"]
    assert reads(line) == "it could not go on at node n2 (no space), so it comes back as it was"


# -- restore and fork -----------------------------------------------------------------------


def test_restore_stores_the_present_first_and_starts_a_new_incarnation() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    good = world["a"].last_checkpoint
    assert good is not None
    world.do(ev.RestoreAsked("a", "alice", "good"))
    world.answer(ev.Suspend)
    action = take(world, ev.Resume)
    assert isinstance(action, ev.Resume)
    assert (action.checkpoint, action.incarnation) == (good.id, 2)
    loss = LossReport("process", ("its process",), ("1 open socket",), True, 31, good.id)
    world.do(ev.Resumed("a", action.epoch, action.seq, loss))
    world.answer()
    assert world["a"].incarnation == 2
    assert world["a"].loss is not None
    assert world["a"].loss.lost == ("1 open socket",)
    [line] = [c for c in world.history if c.rule == "process.resumed"]
    assert reads(line) == (
        "came back on node local from checkpoint 'good', contents checked; what it did after that "
        "checkpoint is undone; not brought back: 1 open socket"
    )
    # And the undo can be undone.
    newest = world["a"].last_checkpoint
    assert newest is not None
    assert newest.id != good.id
    world.do(ev.RestoreAsked("a", "alice", newest.id))
    world.answer()
    assert (world["a"].word, world["a"].incarnation) == ("running", 3)


def test_a_restore_that_fails_goes_on_with_the_present() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    world.do(ev.RestoreAsked("a", "alice", "good"))
    world.answer(ev.Suspend)
    present = world["a"].last_checkpoint
    action = take(world, ev.Resume)
    world.do(ev.ResumeFailed("a", action.epoch, action.seq, "chunk 0 is wrong", damaged=True))
    again = take(world, ev.Resume)
    assert present is not None
    assert isinstance(again, ev.Resume)
    assert again.checkpoint == present.id
    assert again.incarnation == action.incarnation, "never a lower one than was given out"


def test_restore_may_discard_the_present() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    world.do(ev.RestoreAsked("a", "alice", "good", discard=True))
    assert not [a for a in world.pending if isinstance(a, ev.Suspend)]
    world.do(ev.ProcessExited("a", -9))
    world.answer()
    assert (world["a"].word, world["a"].incarnation) == ("running", 2)
    assert len(world["a"].checkpoints) == 1


def with_weights() -> World:
    """A session that holds its device, and has a checkpoint of device state alone."""
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "weights", "device"))
    world.answer()
    return world


def test_device_state_is_put_back_into_a_session_that_goes_on() -> None:
    world = with_weights()
    world.do(ev.RestoreAsked("a", "alice", "weights"))
    action = take(world, ev.PutBack)
    assert isinstance(action, ev.PutBack)
    assert (action.checkpoint, action.discard) == (world["a"].checkpoints[0].id, False)
    assert world["a"].word == "running"
    loss = LossReport("device", ("2 tensors",), ("Python variables",), False, 3, action.checkpoint)
    world.do(ev.ContentsBack("a", loss))
    assert (world["a"].word, world["a"].incarnation) == ("running", 1)
    assert reads(world["a"]) == (
        "the device state of checkpoint 'weights' is back: 2 tensors; not brought back: Python "
        "variables"
    )
    world.do(ev.RestoreAsked("a", "alice", "weights", discard=True))
    assert take(world, ev.PutBack).discard  # type: ignore[attr-defined]
    world.do(ev.ContentsBack("a", None, "no room"))
    assert reads(world["a"]) == (
        "the device state was not put back, so it goes on as it was (no room)"
    )
    assert world["a"].loss is not None


def test_device_state_of_another_history_is_not_put_back() -> None:
    world = with_weights()
    world.do(ev.CheckpointAsked("a", "alice", "whole"))
    world.answer()
    world.do(ev.RestoreAsked("a", "alice", "whole"))
    world.answer()
    assert world["a"].incarnation == 2
    with pytest.raises(Conflict, match=r"gone back to an older state .* its tensors may be others"):
        world.do(ev.RestoreAsked("a", "alice", "weights"))
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    with pytest.raises(Conflict, match="holds device state alone, not the process"):
        world.do(ev.RestoreAsked("a", "alice", "weights"))


def test_fork_is_a_second_session_with_an_id_of_its_own() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    world.do(ev.ForkAsked("f", world["a"], "good", "alice", "variant"))
    action = take(world, ev.Resume)
    assert isinstance(action, ev.Resume)
    assert (action.session, action.source, action.incarnation) == ("f", "a", 2)
    assert world["a"].word == "running", "the first one does not notice"
    assert world["f"].kernel_id == "", "the first one is none of Jupyter's"
    with pytest.raises(Conflict, match="exists already"):
        world.do(ev.ForkAsked("f", world["a"], "good", "alice"))
    world.do(ev.ResumeFailed("f", action.epoch, action.seq, "chunk 0 is wrong", damaged=True))
    assert world["f"].word == "failed"
    assert world["a"].checkpoints[-1].damaged == "chunk 0 is wrong"


def test_the_fork_of_a_kernel_is_a_kernel_of_its_own() -> None:
    world = two_nodes()
    world.holding("a", kernel_id="0c1d")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    for name in ("f", "g"):
        world.do(ev.ForkAsked(name, world["a"], "good", "alice"))
    ids = {world[name].kernel_id for name in ("a", "f", "g")}
    assert len(ids) == 3
    assert all(map(KERNEL.fullmatch, ids)), "as a request may name them"


# -- which checkpoint -----------------------------------------------------------------------


def view_with(*references: CheckpointRef) -> SessionView:
    world = World(1)
    view = world.create("a")
    from dataclasses import replace

    return replace(view, checkpoints=references)


def test_words_for_checkpoints() -> None:
    view = view_with(
        whole("20260101T10-aa", 1.0, "before fine tuning"),
        whole("20260101T11-bb", 2.0, "best"),
        whole("20260101T12-cc", 3.0, "best"),
        CheckpointRef("20260102T00-dd", 4.0, 10, "device", "only tensors"),
    )
    assert checkpoints.find(view, "best").id == "20260101T12-cc"
    assert checkpoints.find(view, "before fine tuning").id == "20260101T10-aa"
    assert checkpoints.find(view, "20260102").name == "only tensors"
    with pytest.raises(NotFound, match="did you mean 'before fine tuning'"), in_words():
        checkpoints.find(view, "before finetuning")
    with pytest.raises(NotFound, match="its newest is 'only tensors'"), in_words():
        checkpoints.find(view, "zzzzzz")
    with pytest.raises(BadRequest, match="may be 3 checkpoints"), in_words():
        checkpoints.find(view, "20260101")
    with pytest.raises(NotFound, match="it has none yet"), in_words():
        checkpoints.find(view_with(), "x")
    with (
        pytest.raises(Conflict, match=r"holds device state alone.*'best' \(97 s old\)"),
        in_words(),
    ):
        checkpoints.usable(view, "only tensors", 100.0)
    with (
        pytest.raises(Conflict, match="its device state of checkpoint 'only tensors' is kept"),
        in_words(),
    ):
        checkpoints.usable(view_with(view.checkpoints[-1]), None, 100.0)


def test_retention_keeps_names_the_newest_and_what_is_needed() -> None:
    world = World(1)
    world.state.retention = Retention(newest=2)
    world.holding("a")
    for name in ("keep", None, None, None, None):
        world.do(ev.CheckpointAsked("a", "alice", name))
        world.answer()
    visible = checkpoints.visible(world["a"])
    assert [bool(c.name) for c in visible] == [True, False, False]
    dropped = [c.id for c in world["a"].checkpoints if c.dropped]
    assert len(dropped) == 2
    for checkpoint in dropped:
        world.do(ev.CheckpointGone("a", checkpoint))
    assert len(world["a"].checkpoints) == 3
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.state.retention = Retention(newest=2, days=1.0)
    world.now += 10 * 86400
    with pytest.raises(Conflict, match="is what alice/a would come back from"):
        world.do(ev.DropAsked("a", "alice", world["a"].checkpoints[-1].id))
    world.do(ev.DropAsked("a", "alice", "keep"))
    world.do(ev.EndAsked("a", "alice"))
    world.answer()
    assert world.state.sessions == {}


def test_a_checkpoint_says_what_it_was_made_for() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.do(ev.ResumeAsked("a", "alice", node="n1"))
    world.answer()
    world.do(ev.MigrateAsked("a", "alice", node="n2"))
    world.answer()
    world.do(ev.RestoreAsked("a", "alice", world["a"].checkpoints[0].id))
    world.answer()
    world.do(ev.SuspendAsked("a", "alice", "mine"))
    world.answer()
    causes = [(c.name, c.cause) for c in world["a"].checkpoints]
    assert causes == [("", "suspend"), ("", "move"), ("", "restore"), ("mine", "suspend")]
    world.holding("b")
    world.do(ev.CheckpointAsked("b", "alice"))
    world.do(
        ev.CheckpointAsked("b", "the scheduler", due=checkpoints.due(world["b"], 1e9, 1, 0, 0))
    )
    actions = [a for a in world.pending if isinstance(a, ev.TakeCheckpoint)]
    assert [a.cause for a in actions] == ["", "periodic"]


def test_when_a_checkpoint_is_due_by_itself() -> None:
    world = World(1)
    world.holding("a")
    view = world["a"]
    start = view.created_at
    assert checkpoints.due(view, start + 59, 60, 0, 0) is None
    timed = checkpoints.due(view, start + 60, 60, 0, 0)
    assert timed is not None
    assert render(timed) == "checkpoint by itself: 60 s since the last one"
    counted = checkpoints.due(view, start + 1, 0, 100, 100)
    assert counted is not None
    assert render(counted) == "checkpoint by itself: 100 steps since the last one"
    assert checkpoints.due(view, start + 9999, 0, 0, 9999) is None
    world.do(ev.CheckpointAsked("a", "alice"))
    world.answer()
    world.idle("a")
    from dataclasses import replace

    idle = replace(world["a"], idle_since=1000.0)
    assert checkpoints.due(idle, start + 9999, 60, 0, 0) is None, "nothing happened since"
    own = replace(view, every_s=0.0, every_steps=5)
    assert checkpoints.due(own, start + 9999, 60, 0, 4) is None
    assert checkpoints.due(own, start + 9999, 60, 0, 5) is not None


# -- nodes that die -------------------------------------------------------------------------


def lost(world: World, node: str = "n1", hopeless: bool = False) -> None:
    world.do(ev.NodeLost(node, 40.0, hopeless))


def test_what_has_a_checkpoint_goes_on_elsewhere_by_itself() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    stored = world["a"].last_checkpoint
    epoch = world["a"].epoch
    world.do(ev.NodeAway("n1"))
    assert world["a"].word == "running", "a broken connection alone is no loss"
    lost(world)
    action = take(world, ev.Resume)
    assert isinstance(action, ev.Resume)
    assert stored is not None
    assert (action.node, action.checkpoint, action.incarnation) == ("n2", stored.id, 2)
    assert action.epoch == epoch + 1
    assert "node n1 has been gone for 40 s: it goes on from checkpoint 'good'" in (
        reads(world["a"])
    )
    world.do(
        ev.Resumed("a", action.epoch, action.seq, LossReport("process", (), (), True, 3, stored.id))
    )
    world.answer()
    assert (world["a"].node, world["a"].word) == ("n2", "running")
    # The node comes back with what it had: it is told to end that, and nothing else changes.
    old = AgentFacts("a", True, epoch, ("cpu:0",), True, False, True)
    world.join("n1", 2, None, old)
    fence = take(world, ev.Fence)
    assert (fence.node, fence.session) == ("n1", "a")
    assert (world["a"].node, world["a"].word) == ("n2", "running")


def test_a_session_whose_connection_was_lost_has_another_one_where_it_is() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    old = AgentFacts("a", False, 0, (), False, False, None, suspended=True)
    lost(world)
    action = take(world, ev.Resume)
    assert isinstance(action, ev.Resume)
    assert world["a"].origin == "n1"
    world.join("n1", 2, None, old)
    assert [a for a in world.pending if isinstance(a, ev.Fence)] == [], "it may still be used"
    loss = LossReport("process", (), (), True, 3, action.checkpoint)
    world.do(ev.Resumed("a", action.epoch, action.seq, loss, relay=True))
    assert (world["a"].node, world["a"].origin) == ("n2", "n2")
    # The first node is there again with the connection that nobody uses any more.
    world.join("n1", 2, None, old)
    fence = take(world, ev.Fence)
    assert (fence.node, fence.session) == ("n1", "a")
    # One of a session that nobody knows has no use either; its checkpoints are left alone.
    stranger = AgentFacts("s", False, 0, (), False, False, None, suspended=True)
    world.join("n1", 2, None, stranger)
    assert (take(world, ev.Fence).session, world.state.sessions.get("s")) == ("s", None)


def test_a_store_with_trouble_ends_nobody() -> None:
    world = World(1, "n1", Abilities(store_trouble="the disk is full"))
    world.holding("a")
    with pytest.raises(Unavailable, match="stays as it is: the store of node n1 cannot be used"):
        world.do(ev.SuspendAsked("a", "alice"))
    world.do(ev.Orphaned("a", "its server is gone"))
    assert world["a"].word == "suspending", "its agent tries, and says what it finds"
    other = World(1, "n1", NO_CRIU)
    other.holding("b")
    other.do(ev.Orphaned("b", "its server is gone"))
    assert other["b"].process_state in (ProcessState.CANCELLED, ProcessState.COMPLETED)


def test_it_waits_for_its_node_as_long_as_it_would_lose() -> None:
    world = two_nodes()
    world.holding("a")
    world.do(ev.CheckpointTaken("a", whole("old", world.now - 3600)))
    world.now += 100.0
    lost(world)
    assert world["a"].word == "running", "an hour would be lost, and 40 s were waited"
    world.now += 3700.0
    world.do(ev.NodeLost("n1", 3740.0, False))
    assert world["a"].word == "resuming"
    assert world["a"].incarnation == 2


def test_a_run_without_one_waits_a_while_and_then_fails_with_what_was_kept() -> None:
    world = two_nodes()
    world.computing("a")
    world.holding("b")
    world.do(ev.CheckpointTaken("a", CheckpointRef("d1", 900.0, 5, "device", "weights")))
    assert [world[s].node for s in "ab"] == ["n1", "n2"]
    lost(world)
    assert [world[s].word for s in "ab"] == ["running"] * 2
    lost(world, hopeless=True)
    assert reads(world["a"]) == (
        "node n1 has been gone for 40 s with its process and variables: start it again"
    )
    assert [c.id for c in checkpoints.visible(world["a"])] == ["d1"]
    assert world["b"].word == "running"


def test_a_notebook_without_one_waits_for_its_node_until_somebody_ends_it() -> None:
    """Silence is no end: its node may have it all the time, and says so when it is back."""
    world = two_nodes()
    world.holding("a")
    world.holding("b")
    world.holding("c")
    assert [world[s].node for s in "abc"] == ["n1", "n2", "n1"]
    world.do(ev.CheckpointTaken("c", CheckpointRef("d1", 900.0, 5, "device", "weights")))
    lost(world)
    lost(world, hopeless=True)
    said = (
        "node n1 does not answer, and its process and variables are nowhere else: it goes on as it "
        "was when the node is back; if the node will not come back, end it"
    )
    assert [(world[s].process_state.value, reads(world[s])) for s in "ac"] == [("live", said)] * 2
    lines = len(world.history)
    lost(world, hopeless=True)
    assert len(world.history) == lines, "it is said once"
    world.do(ev.EndAsked("c", "alice", "given up"))
    assert reads(world["c"]) == (
        "closed by alice: given up; there is no checkpoint of its process, so this cannot be taken "
        "back; its device state of checkpoint 'weights' is kept"
    )
    before = world["a"]
    world.join("n1", 2, None, facts(before), facts(world["c"]))
    assert world["a"].process_state is ProcessState.LIVE
    assert "node.found" in [line.rule for line in world.history if line.session == "a"]
    assert not world["a"].lost
    world.answer()
    assert "c" not in world.state.sessions, "that one was given up, and is ended there"


def test_alone_nobody_is_lost() -> None:
    world = World(2, "n1")
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice"))
    world.answer()
    before = world["a"]
    lost(world, hopeless=True)
    assert world["a"] == before
    world.join("n1", 2, None, facts(before))
    assert world["a"].word == "running"


def test_a_node_that_is_back_in_time_brings_its_sessions_back_unharmed() -> None:
    world = two_nodes(1)
    world.holding("a")
    world.holding("b", Tier.PREMIUM)
    world.do(ev.CheckpointAsked("a", "alice"))
    world.answer()
    known = facts(world["a"])
    lost(world)
    assert (world["a"].word, world["a"].called) == ("suspended", True)  # n2 has no room
    world.join("n1", 1, None, known)
    assert [reads(c) for c in world.history if c.rule == "node.found"] == [
        "node n1 is back and had it all along: nothing is lost"
    ]
    assert (world["a"].process_state, world["a"].incarnation) == (ProcessState.LIVE, 1)


def test_a_loss_on_the_way_back_starts_from_the_same_checkpoint() -> None:
    world = two_nodes()
    suspended(world)
    world.do(ev.ResumeAsked("a", "alice"))
    first = take(world, ev.Resume)
    lost(world)
    again = take(world, ev.Resume)
    assert isinstance(first, ev.Resume)
    assert isinstance(again, ev.Resume)
    assert (again.node, again.checkpoint) == ("n2", first.checkpoint)
    assert again.incarnation == 2, "it may have run for a moment before its node died"
    world.do(
        ev.Resumed("a", first.epoch, first.seq, LossReport("process", (), (), False, 1, "late"))
    )
    assert world["a"].word == "resuming", "an answer from the node before counts no more"


def test_a_run_that_waits_on_a_lost_node_waits_elsewhere() -> None:
    world = World(1, "n1")
    world.computing("r1")
    world.submit("r2")
    assert world["r2"].word == "queued"
    world.join("n2", 1)
    lost(world)
    world.answer()
    assert (world["r2"].node, world["r2"].word) == ("n2", "ready")


def test_an_agent_that_forgot_a_session_costs_what_was_since_the_checkpoint() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.CheckpointAsked("a", "alice", "good"))
    world.answer()
    world.do(ev.NodeJoined("local", devices_of("local", 1)))
    world.answer()
    assert (world["a"].word, world["a"].incarnation) == ("running", 2)


def test_a_restarted_service_goes_on_with_every_move() -> None:
    world = two_nodes()
    world.holding("a")
    suspended(world, "b")
    suspended(world, "c")
    world.do(ev.MigrateAsked("a", "alice", node="n2"))
    world.do(ev.ResumeAsked("b", "alice"))
    commands = {(type(a), a.session, a.epoch, a.seq) for a in world.pending}
    again = world.reloaded()
    for node in ("n1", "n2"):
        again.join(node)
    assert {(type(a), a.session, a.epoch, a.seq) for a in again.pending} == commands
    again.answer()
    assert (again["a"].node, again["a"].word) == ("n2", "running")
    assert again["b"].word == "running"
    assert again["c"].word == "suspended"


def test_a_node_whose_processor_lacks_something_is_not_gone_to() -> None:
    large = Machine("x86_64", frozenset({"sse2", "avx2"}), "6.1", "4.2")
    small = replace(large, cpu=frozenset({"sse2"}))
    world = World(1, "n1", Abilities(machine=large))
    world.join("n2", 1, Abilities(machine=small))
    world.holding("a")
    why = "node n2 has a processor without avx2, which the session may use"
    with pytest.raises(SingularityError, match=why):
        world.do(ev.MigrateAsked("a", "alice", (), "n2"))
    assert not [a for a in world.pending if isinstance(a, ev.Suspend)]
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    world.do(ev.NodeAway("n1"))
    world.do(ev.ResumeAsked("a", "alice"))
    assert world["a"].word == "suspended"
    assert why in reads(world["a"])
    world.join("n3", 1, Abilities(machine=large))
    world.do(ev.Tick("n3"))
    assert world["a"].node == "n3"


def test_a_silent_node_that_may_still_run_its_sessions_keeps_them() -> None:
    world = two_nodes()
    world.holding("a")
    node = world["a"].node
    world.do(ev.CheckpointTaken("a", whole("c1", at=world.now)))
    world.do(ev.NodeLost(node, 40.0, False, False))
    assert world["a"].node == node
    assert world["a"].process_state is ProcessState.LIVE
    world.do(ev.NodeLost(node, 340.0, True, True))
    assert world["a"].node != node


def test_one_that_is_preempted_on_its_way_into_the_store_is_held_back() -> None:
    for fails in (False, True):
        world = two_nodes()
        world.holding("s")
        world.do(ev.SuspendAsked("s", "ada"))
        action = take(world, ev.Suspend)
        world.do(ev.PreemptAsked("s", "ada"))
        if fails:
            world.do(ev.SuspendFailed("s", action.epoch, action.seq, "disk full"))
            assert world["s"].word == "parking"
        else:
            world.pending.append(action)
        world.answer()
        assert world["s"].held_by == "ada"
        assert world["s"].word == ("parked" if fails else "suspended")
