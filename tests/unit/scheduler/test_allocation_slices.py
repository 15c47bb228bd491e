"""Sessions that ask for a part of a device take turns on it."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from support.allocations import BASIC, PREMIUM, STANDARD, Stage, World

COST_S = 1.0


def run(world: World, until: float) -> dict[ev.Id, float]:
    """Let everybody who is told to leave do so in a second; device-seconds that each has had."""
    leaving: list[tuple[float, do.Preempt]] = []
    while True:
        due = min([world.state.next_due, *(at for at, _ in leaving)])
        if due > until:
            break
        world.until(due - 1e-9)
        world.at = due
        ready = [(at, action) for at, action in leaving if at <= due]
        leaving = [(at, action) for at, action in leaving if at > due]
        done = [a for _, action in ready for a in world.left(action.claim)]
        done += world.tell(ev.Tick())
        leaving += [(due + COST_S, a) for a in done if isinstance(a, do.Preempt)]
    world.until(until)
    for claim in world.state.claims.values():
        world.state.account.advance(claim, until)
    return {claim.id: claim.attained for claim in world.state.claims.values()}


@pytest.mark.parametrize("shares", [(500, 500), (500, 250, 250), (700, 200, 100)])
def test_each_gets_its_part_of_the_device(shares: tuple[int, ...]) -> None:
    world = World(1, slice_s=120.0)
    for number, share in enumerate(shares):
        world.submit(number, 1, share_milli=share)
    got = run(world, 36_000.0)
    total = sum(got.values())
    assert total > 36_000 * (1 - 2 * len(shares) / 120)
    for number, share in enumerate(shares):
        assert got[number] / total == pytest.approx(share / 1000, abs=0.02)


def test_the_one_whose_turn_is_over_knows_for_whom() -> None:
    world = World(1, slice_s=100.0)
    first = world.submit("a", 1, share_milli=500)
    world.submit("b", 1, share_milli=500)
    assert not world.until(49.0)
    [action] = world.until(51.0)
    assert (action.claim, action.rule) == (first, "preempt.slice")
    assert (action.rule, action.cause and action.cause.id) == ("preempt.slice", "b")


def test_nobody_shares_a_device_while_others_are_free() -> None:
    world = World(2, slice_s=10.0)
    for id in "ab":
        world.submit(id, 1, share_milli=100)
    assert not world.until(5000.0)
    assert world.state.held == 2


def test_one_that_shares_goes_on_alone_when_the_others_are_gone() -> None:
    world = World(1, slice_s=100.0)
    first = world.submit("a", 1, share_milli=500)
    world.submit("b", 1, share_milli=500)
    world.finish("b", at=10.0)
    assert not world.until(1000.0)
    assert first.stage is Stage.HELD


def test_one_that_wants_a_whole_device_does_not_break_turns() -> None:
    world = World(1, slice_s=100.0)
    world.submit("a", 1, share_milli=500)
    world.submit("whole", 1)
    assert not world.until(90.0)
    assert world.lane() == ["whole"]


def test_one_that_shares_takes_no_whole_device_from_its_tier() -> None:
    world = World(1, slice_s=10.0)
    world.submit("whole", 1)
    world.submit("a", 1, share_milli=500)
    assert not world.until(500.0)


@pytest.mark.parametrize(("tier", "waits"), [(PREMIUM, False), (STANDARD, True), (BASIC, True)])
def test_tiers_go_before_turns(tier: int, waits: bool) -> None:
    world = World(1, slice_s=1000.0)
    world.submit("a", 1, share_milli=500, tier=STANDARD)
    world.submit("b", 1, share_milli=500, tier=tier, at=1.0)
    assert (not world.actions) == waits


def test_who_has_served_more_gives_way_to_one_that_wants_a_whole_device() -> None:
    world = World(1, slice_s=100.0, las_thresholds_device_s=(600.0,), quantum_s=100.0)
    world.submit("a", 1, share_milli=500)
    world.submit("whole", 1, at=700.0)
    assert world.done() == [("Preempt", "a", "preempt.service")]


def test_what_is_promised_is_a_part_of_the_part() -> None:
    world = World(1, premium_fraction=0.7, standard_fraction=0.7, slice_s=60.0, sla_window_s=3600.0)
    for number in range(2):
        world.submit(number, 1, share_milli=500)
    run(world, 36_000.0)
    account = world.state.account
    assert account.windows[STANDARD] == account.kept[STANDARD] == 20
    assert account.wanted[STANDARD] == 1000


@pytest.mark.parametrize(
    ("devices", "share"), [(1, 0), (1, 1001), (2, 500)], ids=["nothing", "too much", "two devices"]
)
def test_parts_that_cannot_be_are_refused(devices: int, share: int) -> None:
    world = World(2)
    with pytest.raises(BadRequest, match="session x"):
        world.tell(ev.Submit(Claim("x", devices, share_milli=share)))
    assert not world.state.claims
