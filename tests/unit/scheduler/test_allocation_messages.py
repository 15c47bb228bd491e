"""Answers of agents that fail, come late, come twice or belong to an earlier epoch; and what the
allocation is told that cannot be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict, NotFound, SingularityError
from singularity_scheduler.core.allocation import engine
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from singularity_scheduler.core.values.states import InvalidTransition
from singularity_scheduler.text.errors import in_words
from support.allocations import BASIC, PREMIUM, Stage, World

ANSWERS = (ev.Left, ev.LeaveFailed, ev.Changed, ev.ChangeFailed)
Answer = type[ev.Left | ev.LeaveFailed | ev.Changed | ev.ChangeFailed]


def facts(world: World) -> Any:
    """All of the state that decisions show."""
    state = world.state
    return copy.deepcopy(
        (
            {id: (c.stage, c.epoch, c.given, c.old, c.count) for id, c in state.claims.items()},
            {name: (p.total, [n.free for n in p.nodes]) for name, p in state.pools.items()},
            [claim.id for claim in state.queue.waiting],
            {name: (q.devices, q.own) for name, q in state.quotas.items()},
            state.held,
            len(state.due),
        )
    )


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("stage", ["held", "leaving", "changing", "waiting", "away", "gone"])
def test_an_answer_of_another_epoch_decides_nothing(answer: Answer, stage: str) -> None:
    world = World(2)
    claim = world.submit("a", 2, minimum=1, tier=BASIC)
    if stage == "leaving":
        world.submit("p", 2, tier=PREMIUM)
    elif stage == "changing":
        world.submit("p", 1, tier=PREMIUM)
    elif stage == "waiting":
        world.submit("p", 2, tier=PREMIUM)
        world.left(claim)
    elif stage == "away":
        world.tell(ev.Release("a"))
    elif stage == "gone":
        world.finish("a")
    before = facts(world)
    for epoch in (claim.epoch - 1, claim.epoch + 1):
        assert world.tell(answer("a", epoch)) == []
        assert facts(world) == before


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("stage", [Stage.HELD, Stage.LEAVING, Stage.RESIZING])
def test_an_answer_to_another_question_decides_nothing(answer: Answer, stage: Stage) -> None:
    world = World(2)
    claim = world.submit("a", 2, minimum=1, tier=BASIC)
    if stage is not Stage.HELD:
        world.submit("p", 2 if stage is Stage.LEAVING else 1, tier=PREMIUM)
    assert claim.stage is stage
    asked = {Stage.LEAVING: ("Left", "LeaveFailed"), Stage.RESIZING: ("Changed", "ChangeFailed")}
    before = facts(world)
    world.tell(answer("a", claim.epoch))
    assert (facts(world) == before) is (answer.__name__ not in asked.get(stage, ()))


def test_a_park_that_failed_is_not_answered_for_the_next_one() -> None:
    world = World(1)
    claim = world.submit("low", 1, tier=BASIC)
    waits = world.submit("high", 1, tier=PREMIUM)
    failed = ev.LeaveFailed("low", claim.epoch)
    world.tell(failed)
    assert claim.stage is Stage.LEAVING  # it was asked again
    world.tell(failed)
    world.tell(ev.Left("low", failed.epoch))
    assert (claim.stage, waits.stage) == (Stage.LEAVING, Stage.GATHERING)
    world.left(claim)
    assert (claim.stage, waits.stage) == (Stage.WAITING, Stage.HELD)


def test_another_one_is_asked_when_a_park_failed() -> None:
    world = World(2)
    one = world.submit("one", 1, tier=BASIC, costs=(1.0, 1.0, 1.0))
    two = world.submit("two", 1, 1, tier=BASIC, costs=(1.0, 1.0, 1.0))
    waits = world.submit("high", 1, 50, tier=PREMIUM)
    assert (one.stage, two.stage) == (Stage.LEAVING, Stage.HELD)
    world.tell(ev.LeaveFailed("one", one.epoch), 60)
    assert (one.stage, two.stage, waits.stage) == (Stage.HELD, Stage.LEAVING, Stage.GATHERING)
    assert not one.preempted


def test_an_answer_that_comes_twice_counts_once() -> None:
    world = World(1)
    claim = world.submit("low", 1, tier=BASIC)
    world.submit("high", 1, tier=PREMIUM)
    left = ev.Left("low", claim.epoch)
    world.tell(left)
    before = facts(world)
    world.tell(left)
    assert facts(world) == before


def test_who_finishes_while_others_wait_for_it_is_waited_for_no_more() -> None:
    world = World(1)
    world.submit("low", 1, tier=BASIC)
    waits = world.submit("high", 1, tier=PREMIUM)
    world.finish("low")
    assert waits.stage is Stage.HELD


@pytest.mark.parametrize("how", [ev.Finish, ev.Release, ev.Idle])
def test_what_was_cleared_for_one_who_gave_up_goes_to_others(
    how: type[ev.Finish | ev.Release | ev.Idle],
) -> None:
    world = World(2)
    claim = world.submit("low", 1, tier=BASIC)
    world.submit("high", 2, tier=PREMIUM)
    world.tell(how("high"))
    assert claim.stage is Stage.LEAVING  # it was told to
    assert world.state.pools[""].total[0] == 1
    world.left(claim)
    assert claim.stage is Stage.HELD


def test_who_is_busy_again_while_it_leaves_comes_back() -> None:
    world = World(1, 1)
    claim = world.submit("idle", 1)
    world.submit("other", 1)
    world.tell(ev.Idle("idle"))
    world.submit("waits", 1)
    assert not claim.wants
    world.tell(ev.Busy("idle"))
    world.left(claim)
    assert claim.stage is Stage.WAITING


NODE = ev.NodeUp
BAD: dict[str, tuple[ev.Event, type[SingularityError]]] = {
    "no devices": (NODE("x", 0), BadRequest),
    "a node twice": (NODE("n0", 2), Conflict),
    "an island outside": (NODE("x", 2, islands=(0b100,)), BadRequest),
    "an empty island": (NODE("x", 2, islands=(0,)), BadRequest),
    "islands that overlap": (NODE("x", 2, islands=(0b11, 0b10)), BadRequest),
    "an unknown node": (ev.NodeLost("x"), NotFound),
    "an unknown node to close": (ev.Cordon("x"), NotFound),
    "an unknown node to open": (ev.Uncordon("x"), NotFound),
    "an unknown node to empty": (ev.Drain("x"), NotFound),
    "a session twice": (ev.Submit(Claim("a", 1)), Conflict),
    "no device asked for": (ev.Submit(Claim("b", 0)), BadRequest),
    "fewer than none": (ev.Submit(Claim("b", 2, minimum=-1)), BadRequest),
    "a least above the most": (ev.Submit(Claim("b", 2, minimum=3)), BadRequest),
    "numbers that fall": (ev.Submit(Claim("b", 4, minimum=1, counts=(2, 1))), BadRequest),
    "numbers above the most": (ev.Submit(Claim("b", 4, minimum=1, counts=(1, 8))), BadRequest),
    "numbers without the least": (ev.Submit(Claim("b", 8, minimum=3, counts=(4, 8))), BadRequest),
    "a tier that is none": (ev.Submit(Claim("b", 1, tier=3)), BadRequest),
    "a priority that is none": (ev.Submit(Claim("b", 1, priority=-1)), BadRequest),
    "negative costs": (ev.Submit(Claim("b", 1, costs=(1.0, -1.0, 0.0))), BadRequest),
    "costs that are no numbers": (ev.Submit(Claim("b", 1, costs=(float("nan"),) * 3)), BadRequest),
    "a negative interval": (ev.Submit(Claim("b", 2, minimum=1, interval_s=-1.0)), BadRequest),
    "an unknown session": (ev.Want("x"), NotFound),
    "an unknown idle one": (ev.Idle("x"), NotFound),
    "an unknown busy one": (ev.Busy("x"), NotFound),
    "an unknown one to release": (ev.Release("x"), NotFound),
    "an unknown one to end": (ev.Finish("x"), NotFound),
    "a negative quota": (ev.Quota("team", -1), BadRequest),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_and_changes_nothing(name: str) -> None:
    world = World(4)
    world.tell(ev.Quota("team", 2))
    world.submit("a", 2, virtual_cluster="team")
    world.submit("w", 4)
    before = facts(world)
    event, error = BAD[name]
    with pytest.raises(error) as raised:
        engine.decide(world.state, event, 5.0)
    assert 15 < len(str(raised.value)) < 300
    assert facts(world) == before
    world.tell(ev.Tick())


def test_a_session_of_another_cluster_is_refused() -> None:
    there, here = World(1), World(1)
    claim = there.submit("a", 1)
    with pytest.raises(Conflict, match="another cluster"):
        here.tell(ev.Submit(claim))
    assert here.state.claims == {}


@pytest.mark.parametrize("step", ["hold", "preempt", "vacate", "change", "gather"])
def test_a_step_that_cannot_be_is_told_with_the_story(step: str) -> None:
    world = World(2)
    claim = world.submit("low", 1, tier=BASIC)
    world.submit("high", 2, tier=PREMIUM)
    world.left(claim)
    world.finish("low")
    state, pool = world.state, world.state.pools[""]
    before = facts(world)
    call = {
        "hold": lambda: state.hold(pool, claim, 9.0, "place.free", None),
        "preempt": lambda: state.preempt(pool, claim, 9.0, "preempt.tier", None),
        "vacate": lambda: state.vacate(pool, claim, 9.0),
        "change": lambda: state.change(pool, claim, {}, {}, 9.0),
        "gather": lambda: state.gather(claim, {0: 1}, 9.0, False),
    }[step]
    with pytest.raises(InvalidTransition) as raised, in_words():
        call()
    assert raised.value.fields["start"] == "ended"
    assert raised.value.fields["event"] == step
    assert "preempt.tier for high" in str(raised.value)
    assert facts(world) == before


def test_a_session_that_waits_cannot_be_preempted() -> None:
    world = World(1)
    world.submit("a", 1)
    waits = world.submit("b", 1)
    with pytest.raises(InvalidTransition, match="while it is 'waiting'"), in_words():
        world.state.preempt(world.state.pools[""], waits, 1.0, "preempt.tier", None)
