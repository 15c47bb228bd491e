"""Gangs go into the store together and come back together."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import Conflict, Unsupported
from singularity_scheduler.core.state.checkpoints import visible
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent
from singularity_scheduler.core.values.states import DeviceState
from support.scheduler_core import World, outcome, reads
from support.scheduler_gangs import computing_gang, has, submit_gang, words

BOTH = ("g0", "g1")


def two_nodes() -> World:
    world = World(1, "a")
    world.join("b", 1)
    return world


def answer(world: World, session: str, fails: str = "", damaged: bool = False) -> None:
    """The agent of this part answers what it was told last."""
    action = [a for a in world.pending if a.session == session][-1]
    world.pending.remove(action)
    head = (action.session, action.epoch, action.seq)
    if not fails:
        world.do(outcome(action))
    elif isinstance(action, ev.Suspend):
        world.do(ev.SuspendFailed(*head, fails))
    else:
        assert isinstance(action, ev.Resume)
        world.do(ev.ResumeFailed(*head, fails, damaged))


def stored_gang(world: World) -> None:
    computing_gang(world, "g")
    world.do(ev.SuspendAsked("g1", "ada"))
    world.answer(ev.Suspend)
    assert words(world, *BOTH) == ["suspended", "suspended"]


def resumes(decision: ev.Decision) -> list[tuple[str, str]]:
    return sorted((a.session, a.node) for a in decision.actions if isinstance(a, ev.Resume))


# -- into the store -------------------------------------------------------------------------


def test_all_parts_are_stored_at_one_place() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    decision = world.do(ev.SuspendAsked("g1", "ada", "lunch", "lunch"))
    actions = [a for a in decision.actions if isinstance(a, ev.Suspend)]
    assert [(a.session, a.name, a.cut) for a in actions] == [
        ("g0", "lunch", BOTH),
        ("g1", "lunch", BOTH),
    ]
    assert words(world, *BOTH) == ["suspending", "suspending"]
    world.answer(ev.Suspend)
    assert words(world, *BOTH) == ["suspended", "suspended"]
    assert all(not node.leases for node in world.state.nodes.values())
    with pytest.raises(Conflict, match="is suspended already: resume brings it back"):
        world.do(ev.SuspendAsked("g0", "ada"))


def test_a_gang_without_devices_is_not_stored() -> None:
    world = two_nodes()
    submit_gang(world, "g")
    with pytest.raises(Conflict) as refused:
        world.do(ev.SuspendAsked("g1", "ada"))
    assert str(refused.value) == (
        "alice/g1 was not suspended, and nothing was changed: its gang is stored only while all of "
        "its parts have their devices, and part 0 on node a is ready"
    )


def test_a_gang_of_which_a_part_has_ended_is_not_stored() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.ProcessExited("g0", 0))
    with pytest.raises(Conflict, match="and another part of it has ended"):
        world.do(ev.SuspendAsked("g1", "ada"))


def test_when_no_part_can_be_stored_all_go_on() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.SuspendAsked("g0", "ada"))
    for sid in BOTH:
        answer(world, sid, "the ranks did not come to a common place")
    assert words(world, *BOTH) == ["running", "running"]
    assert has(world, *BOTH) == [True, True]


@pytest.mark.parametrize("order", [("g0", "g1"), ("g1", "g0")])
def test_when_one_cannot_be_stored_the_others_come_back_to_it(order: tuple[str, ...]) -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.SuspendAsked("g0", "ada"))
    for sid in order:
        answer(world, sid, "disk full" if sid == "g1" else "")
    assert world["g0"].word == "resuming"
    reasons = [reads(c) for c in world.history if c.session == "g0"]
    assert any(
        "comes back, because part 1 of its gang could not be suspended" in r for r in reasons
    )
    world.answer()
    world.need("g1")
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]


def test_commands_that_are_repeated_stop_nobody_again() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.SuspendAsked("g0", "ada"))
    world.pending.clear()
    world.join("a", 1)
    [again] = [a for a in world.pending if isinstance(a, ev.Suspend)]
    assert (again.session, again.cut) == ("g0", ())


def test_an_answer_that_is_repeated_changes_nothing_for_parts_in_the_store() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.CheckpointAsked("g0", "ada"))
    world.answer()
    kept = {sid: visible(world[sid])[-1].id for sid in BOTH}
    world.do(ev.SuspendAsked("g0", "ada"))
    [stored] = [a for a in world.pending if a.session == "g0"]
    answer(world, "g0")
    world.join("b", 1)
    world.do(ev.NodeLost("b", 1e6))  # before g1 was stored: all go back to their set
    world.do(outcome(stored))
    assert {sid: world[sid].restore_from for sid in BOTH} == kept


def test_an_old_answer_calls_no_part_back_that_could_not_come_back() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.do(ev.SuspendAsked("g0", "ada"))
    stored = [a for a in world.pending if isinstance(a, ev.Suspend)]
    world.answer(ev.Suspend)
    world.do(ev.ResumeAsked("g0", "ada"))
    answer(world, "g0", "no such port")
    answer(world, "g1")
    for action in stored:
        head = (action.session, action.epoch, action.seq)
        for event in (outcome(action), ev.SuspendFailed(*head, "disk full")):
            world.do(event)
            assert words(world, *BOTH) == ["suspended", "waiting"]


# -- to another node ------------------------------------------------------------------------


def test_a_part_goes_to_another_node_and_the_others_come_back_where_they_were() -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.join("c", 1)
    decision = world.do(ev.MigrateAsked("g1", "ada", node="c"))
    actions = [a for a in decision.actions if isinstance(a, ev.Suspend)]
    assert [(a.session, a.cut) for a in actions] == [("g0", BOTH), ("g1", BOTH)]
    assert reads(world["g1"]).startswith("moving to node c for ada")
    assert reads(world["g0"]).startswith("part 1 of its gang is moving to node c for ada")
    world.answer()
    assert sorted((sid, world[sid].node) for sid in BOTH) == [("g0", "a"), ("g1", "c")]
    assert words(world, *BOTH) == ["running", "running"]
    assert [world[sid].attempt for sid in BOTH] == [1, 1]
    assert all(not world[sid].target for sid in BOTH)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("b", "it is there already"),
        ("a", "part 0 of its gang is there, and parts have different nodes"),
        ("c", "the runs of node c leave it no room"),
    ],
)
def test_where_a_part_cannot_go(node: str, why: str) -> None:
    world = two_nodes()
    computing_gang(world, "g")
    world.join("c", 1)
    world.submit("other")
    with pytest.raises(Conflict) as refused:
        world.do(ev.MigrateAsked("g1", "ada", node=node))
    assert str(refused.value) == f"alice/g1 was not moved, and nothing was changed: {why}"
    assert words(world, *BOTH) == ["running", "running"]


def test_a_part_without_devices_goes_nowhere() -> None:
    world = two_nodes()
    submit_gang(world, "g")
    world.join("c", 1)
    with pytest.raises(Conflict, match=r"was not moved.*while all of its parts have their devices"):
        world.do(ev.MigrateAsked("g1", "ada", node="c"))


# -- out of it ------------------------------------------------------------------------------


def test_all_come_back_in_one_decision_or_none_does() -> None:
    world = two_nodes()
    stored_gang(world)
    world.do(adm.DutyAsked("root", "b", DutyEvent.DRAIN))
    assert resumes(world.do(ev.ResumeAsked("g0", "ada"))) == []
    assert words(world, *BOTH) == ["suspended", "suspended"]
    assert "not all parts of its gang have room on different nodes" in reads(world["g0"])
    world.join("c", 1)
    world.do(ev.Tick("c"))
    assert sorted((sid, world[sid].node) for sid in BOTH) == [("g0", "a"), ("g1", "c")]
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]
    assert [world[sid].attempt for sid in BOTH] == [1, 1]


def test_parts_come_back_where_they_can_although_the_first_would_like_that_node() -> None:
    world = two_nodes()
    stored_gang(world)
    world.submit("busy")
    world.need("busy")
    world.answer()
    busy = world["busy"].node
    world.do(ev.ResumeAsked("g0", "ada"))
    assert words(world, *BOTH) == ["suspended", "suspended"]
    world.join("c", 1)
    world.do(ev.Tick("c"))
    nodes = {world[sid].node for sid in BOTH}
    assert nodes == {"a", "b", "c"} - {busy}


def test_who_is_to_come_back_can_be_left_in_the_store() -> None:
    world = two_nodes()
    stored_gang(world)
    world.do(adm.DutyAsked("root", "b", DutyEvent.DRAIN))
    world.do(ev.ResumeAsked("g0", "ada"))
    world.do(ev.SuspendAsked("g1", "ada"))
    assert [world[sid].called for sid in BOTH] == [False, False]


def test_a_part_that_could_not_come_back_is_waited_for_and_called_again() -> None:
    world = two_nodes()
    stored_gang(world)
    world.do(ev.ResumeAsked("g0", "ada"))
    answer(world, "g0", "no such port")
    answer(world, "g1")
    assert words(world, *BOTH) == ["suspended", "waiting"]
    with pytest.raises(Conflict, match="and part 0 on node a is suspended"):
        world.do(ev.SuspendAsked("g1", "ada"))
    world.do(ev.ResumeAsked("g1", "ada"))
    world.answer()
    assert words(world, *BOTH) == ["running", "running"]


@pytest.mark.parametrize(
    "event",
    [
        ev.ResumeAsked("g0", "ada", node="a"),
        ev.ResumeAsked("g0", "ada", checkpoint="x"),
        ev.ResumeAsked("g0", "ada", cluster="east"),
    ],
)
def test_where_and_from_which_checkpoint_is_not_chosen(event: ev.ResumeAsked) -> None:
    world = two_nodes()
    stored_gang(world)
    with pytest.raises(Unsupported, match="it is part 0 of a gang on 2 nodes, which comes back"):
        world.do(event)


def test_only_the_newest_place_is_kept() -> None:
    world = two_nodes()
    stored_gang(world)
    world.do(ev.ResumeAsked("g0", "ada"))
    world.answer()
    world.do(ev.SuspendAsked("g0", "ada", "named"))
    world.answer(ev.Suspend)
    assert [len([c for c in world[sid].checkpoints if c.whole]) for sid in BOTH] == [1, 1]
    world.do(ev.ResumeAsked("g0", "ada"))
    answer(world, "g0", "a hash differs", damaged=True)
    answer(world, "g1")
    with pytest.raises(Conflict, match="has no checkpoint with its process in it"):
        world.do(ev.ResumeAsked("g1", "ada"))


# -- what goes wrong meanwhile --------------------------------------------------------------


def test_a_gang_that_ends_as_soon_as_it_is_back_begins_again_from_its_beginning() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    world.do(ev.SuspendAsked("g1", "ada"))
    world.answer(ev.Suspend)
    world.do(ev.ResumeAsked("g0", "ada"))
    world.answer()
    resumed = [a for a in world.all_actions if isinstance(a, ev.Resume)]
    assert len(resumed) == 2
    world.do(ev.ProcessExited("g1", -9))
    assert "starts from its beginning" in reads(world["g0"])
    world.answer()
    assert [world[sid].attempt for sid in BOTH] == [2, 2]
    assert [a for a in world.all_actions if isinstance(a, ev.Resume)] == resumed


def test_a_node_that_is_lost_while_a_gang_comes_back_lets_all_come_back_once_more() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    world.do(ev.SuspendAsked("g1", "ada"))
    world.answer(ev.Suspend)
    world.do(ev.ResumeAsked("g0", "ada"))
    answer(world, "g0")
    world.join("c", 1)
    before = {sid: visible(world[sid])[-1].id for sid in BOTH}
    world.do(ev.NodeLost("b", 1e6))  # while g1 is on its way back
    world.answer(ev.Fence)
    again = {a.session: a.checkpoint for a in world.pending if isinstance(a, ev.Resume)}
    assert again == before
    world.answer()
    assert [world[sid].attempt for sid in BOTH] == [1, 1]
    assert sorted(world[sid].node for sid in BOTH) == ["a", "c"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_part_on_its_way_back_begins_again_with_the_others(comes_back: bool) -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    world.do(ev.SuspendAsked("g1", "ada"))
    world.answer(ev.Suspend)
    world.do(ev.ResumeAsked("g0", "ada"))
    answer(world, "g0")
    world.do(ev.ProcessExited("g0", -9))
    answer(world, "g1", "" if comes_back else "no such port")
    world.answer()
    assert [(world[sid].attempt, world[sid].word) for sid in BOTH] == [(2, "ready"), (2, "ready")]


def test_a_part_on_its_way_into_the_store_begins_again_with_the_others() -> None:
    world = two_nodes()
    computing_gang(world, "g", max_retries=1)
    world.do(ev.SuspendAsked("g1", "ada"))
    world.do(ev.ProcessExited("g0", -9))
    answer(world, "g0", "its process has ended")
    assert [type(a) for a in world.pending if a.session == "g1"][-1] is ev.Fence
    world.answer(ev.Fence, ev.Start)
    assert [(world[sid].attempt, world[sid].word) for sid in BOTH] == [(2, "ready"), (2, "ready")]
    assert all(world[sid].device_state is DeviceState.NONE for sid in BOTH)


def test_a_stored_gang_ends_together() -> None:
    world = two_nodes()
    stored_gang(world)
    world.do(ev.EndAsked("g0", "ada"))
    assert words(world, *BOTH) == ["cancelled", "cancelled"]
