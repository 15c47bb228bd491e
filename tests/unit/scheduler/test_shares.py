"""What a session got of what its tier promises."""

from __future__ import annotations

from dataclasses import replace

from singularity_scheduler.core.state import shares
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Share
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.service.ledger import rows
from support.scheduler_core import AT_ONCE, World

HOUR = 3600.0


def share_of(world: World, sid: str) -> Share:
    return shares.accounted(world[sid], world.now, world.state.parameters)


def begin(devices: int = 1) -> World:
    """A world at the begin of a window."""
    world = World(devices, parameters=AT_ONCE)
    world.now = 10 * HOUR
    return world


def test_one_that_computes_gets_all_that_it_wants() -> None:
    world = begin(2)
    world.computing("a", devices=2)
    got = world.now
    world.now += 2.5 * HOUR
    share = share_of(world, "a")
    assert (share.windows, share.kept) == (2, 2)
    assert share.attained_device_s == 2 * (world.now - world["a"].held_since)
    assert 0 < share.got_s <= share.wanted_s == world.now - 12 * HOUR
    assert got < 10 * HOUR + 10


def test_waiting_counts_against_it() -> None:
    world = begin()
    world.computing("p", Tier.PREMIUM)
    world.create("s")
    world.need("s")
    world.now = 11 * HOUR + 100
    share = share_of(world, "s")
    assert (share.windows, share.kept, share.attained_device_s) == (1, 0, 0.0)
    assert (share.wanted_s, share.got_s) == (100.0, 0.0)


def test_time_without_work_does_not_count() -> None:
    world = begin()
    world.holding("n")
    world.idle("n")
    idle_from = world.now
    world.now += 5 * HOUR
    share = share_of(world, "n")
    assert share.windows == 1, "the one in which it computed"
    assert share.wanted_s == share.got_s == 0.0
    assert share.attained_device_s == world.now - world["n"].held_since > idle_from - 10 * HOUR


def test_what_a_person_took_is_not_wanted() -> None:
    world = begin()
    world.computing("r")
    world.do(ev.PreemptAsked("r", "root"))
    world.answer()
    before = share_of(world, "r")
    world.now += 3 * HOUR
    after = share_of(world, "r")
    assert after.windows - before.windows == 1, "the one that it was in"
    assert after.wanted_s == 0.0


def test_a_queued_run_waits_from_the_begin() -> None:
    world = begin()
    world.submit("first", Tier.PREMIUM)
    world.submit("second", Tier.PREMIUM)
    assert world["second"].pending
    world.now += 2 * HOUR
    assert share_of(world, "second").windows == 2
    assert share_of(world, "second").kept == 0


def test_it_is_kept_in_the_ledger() -> None:
    world = begin()
    world.computing("a")
    world.now += HOUR
    world.do(ev.ParkAsked("a", "alice"))
    view = world["a"]
    assert view.share.attained_device_s > HOUR - 10
    row = rows.session_to_row(view)
    again = rows.session_from_row(row, view.devices)
    assert again.share == view.share


def test_one_of_an_older_ledger_is_accounted_from_its_last_change_on() -> None:
    world = begin()
    world.computing("a")
    view = world["a"]
    old = rows.session_from_row({**rows.session_to_row(view), "share": "{}"}, view.devices)
    assert old.share == Share(at=view.updated_at)
    world.state._replace(old)
    world.now += 2 * HOUR
    share = share_of(world, "a")
    assert (share.windows, share.kept) == (2, 2), "not those since 1970"
    assert share.attained_device_s == 2 * HOUR


def test_accounting_in_parts_is_the_same_as_at_once() -> None:
    world = begin()
    world.computing("a")
    view, parameters = world["a"], world.state.parameters
    at_once = shares.accounted(view, world.now + 3.3 * HOUR, parameters)
    for part in range(1, 34):
        now = world.now + 0.1 * part * HOUR
        view = replace(view, share=shares.accounted(view, now, parameters))
    in_parts = view.share
    assert (in_parts.windows, in_parts.kept) == (at_once.windows, at_once.kept)
    assert abs(in_parts.attained_device_s - at_once.attained_device_s) < 1e-3
    assert abs(in_parts.got_s - at_once.got_s) < 1e-3
