"""Sessions that ask for a part of a device, as the service decides on them."""

from __future__ import annotations

from typing import Any

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.steps.turns import line
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.requested import BatchRun, Kind, SessionSpec, Tier
from singularity_scheduler.explain import precedence
from singularity_scheduler.requests.spec import parse_spec
from support.scheduler_core import AT_ONCE, World, reads

HALF = 500


def create(world: World, sid: str, share_milli: int = HALF, tier: Tier = Tier.STANDARD) -> None:
    """A busy notebook that wants its part of a device."""
    spec = SessionSpec(Kind.INTERACTIVE, tier, 1, sid, share_milli=share_milli)
    world.do(ev.SessionCreated(sid, "alice", spec))
    world.answer()
    world.do(ev.Activity(sid, True, world.now))
    world.need(sid)
    world.answer()


def run(world: World, sid: str, share_milli: int = HALF) -> None:
    run = BatchRun(f"/n/{sid}.ipynb", f"/n/{sid}-out.ipynb")
    spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 1, sid, run, share_milli=share_milli)
    world.do(ev.SessionCreated(sid, "alice", spec))
    world.answer()


def turns(world: World, seconds: int) -> dict[str, int]:
    """Seconds that each session has held a device for, its code always wanting one."""
    held = dict.fromkeys(world.state.sessions, 0)
    for _ in range(seconds):
        world.do(ev.Tick("local"))
        world.answer()
        for sid, view in list(world.state.sessions.items()):
            held[sid] += view.word == "running"
            if view.word == "parked":
                world.need(sid)
                world.answer()
    return held


def test_two_halves_take_turns_on_one_device() -> None:
    world = World(1, parameters=AT_ONCE.changed(slice_s=120))
    create(world, "a")
    create(world, "b")
    assert (world["a"].word, world["b"].word) == ("running", "waiting")
    held = turns(world, 600)
    assert held["a"] == pytest.approx(held["b"], rel=0.25)
    told = [c for c in world.history if c.rule == "preempt.slice"]
    assert len(told) >= 4
    assert "it is that one's turn on the device that both share" in reads(told[0])
    assert world["a"].share.attained_device_s > 200


def test_three_quarters_and_one_quarter_get_three_to_one() -> None:
    world = World(1, parameters=AT_ONCE.changed(slice_s=120))
    create(world, "large", 750)
    create(world, "small", 250)
    held = turns(world, 1200)
    assert sum(held.values()) > 1100
    assert held["large"] / held["small"] == pytest.approx(3.0, rel=0.1)


def test_a_run_that_shares_does_not_go_before_notebooks() -> None:
    world = World(1, parameters=AT_ONCE.changed(las_thresholds_device_s=(60.0,)))
    world.holding("served")
    world.now += 100
    world.do(ev.ParkAsked("served", "alice"))
    world.answer()
    world.holding("premium", Tier.PREMIUM)
    run(world, "run")
    world.need("run")
    world.need("served")
    create(world, "shares")
    assert world["served"].share.attained_device_s > 60
    assert list(line(world.state, "local")) == ["served", "run", "shares"]
    assert precedence.rule(world.state, world["served"], world["run"]) == "notebook"


def test_a_run_takes_turns_with_notebooks() -> None:
    """Those that share go round, whoever sits before them."""
    world = World(1, parameters=AT_ONCE.changed(slice_s=60))
    create(world, "a", 300)
    create(world, "b", 300)
    run(world, "run", 300)
    world.need("run")
    held = turns(world, 900)
    assert held["run"] == pytest.approx(held["a"], rel=0.3)
    assert held["b"] == pytest.approx(held["a"], rel=0.3)


def test_whole_devices_are_not_taken_by_parts() -> None:
    world = World(1, parameters=AT_ONCE.changed(slice_s=10))
    create(world, "whole", 1000)
    create(world, "part")
    assert turns(world, 100) == {"whole": 100, "part": 0}


def test_runs_are_started_as_long_as_their_parts_fit() -> None:
    world = World(1)
    for sid in ("a", "b", "c"):
        run(world, sid)
    assert [world[sid].pending for sid in ("a", "b", "c")] == [False, False, True]
    world.do(ev.EndAsked("a", "alice"))
    world.answer()
    assert not world["c"].pending


def test_parts_in_a_request() -> None:
    assert parse_spec({"device_share": 0.25}).share_milli == 250
    assert parse_spec({"device_share": 1, "devices": 2}).share_milli == 1000
    assert parse_spec({"devices": 2}).share_milli == 1000


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"device_share": 0}, "must be a number from 0.001 to 1"),
        ({"device_share": True}, "must be a number from 0.001 to 1"),
        ({"device_share": "half"}, "must be a number from 0.001 to 1"),
        ({"device_share": 1.5}, "must be a number from 0.001 to 1"),
        ({"device_share": 0.5, "devices": 2}, "does not go with 2 devices"),
    ],
)
def test_parts_that_cannot_be(request_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        parse_spec(request_)
