"""Elastic sessions: started on fewer devices, shrunk for others, grown back; and `resize`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, Conflict
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import VirtualCluster
from singularity_scheduler.core.values.layout import blocks, kept, layout
from singularity_scheduler.core.values.requested import (
    BatchRun,
    Kind,
    Priority,
    ScalePolicy,
    SessionSpec,
    Tier,
)
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.explain.why import explain
from support.scheduler_core import AT_ONCE, World, facts, reads, used

SLOW = AT_ONCE.changed(scale_interval_s=100.0)
ANY = ScalePolicy(1, 4)


def later(world: World, seconds: float = 100.0) -> None:
    world.now += seconds - 1
    for node in list(world.state.nodes):
        world.do(ev.Tick(node))
    world.answer()


def notebook(world: World, sid: str = "nb", scale: ScalePolicy | None = ANY, **more: Any) -> None:
    """One with four virtual devices that holds devices and is busy."""
    world.holding(sid, devices=4, scale=scale, **more)


def spread(world: World, sid: str = "nb") -> str:
    """Behind each virtual device, the number of the physical one."""
    return "".join(device.partition(":")[2] for device in world[sid].devices)


# -- which devices ---------------------------------------------------------------------------


def test_virtual_devices_are_in_blocks_and_few_of_them_move() -> None:
    assert [list(part) for part in blocks(5, 3)] == [[0, 1], [2, 3], [4]]
    assert "".join(layout(4, "ab")) == "aabb"
    assert "".join(layout(4, "abc")) == "aabc"
    assert "".join(layout(4, "ba", before="aaaa")) == "aabb"
    assert "".join(layout(4, "abcd", before="ccdd")) == "cadb"
    assert "".join(kept("abcd", 2)) == "ac"
    assert "".join(layout(4, kept("abcd", 2), before="abcd")) == "aacc"
    assert kept("aabb", 1) == ("a",)


@pytest.mark.parametrize("virtual", range(1, 9))
def test_every_layout_uses_every_device_and_keeps_the_order(virtual: int) -> None:
    before = [f"d{n}" for n in range(virtual)]
    for count in range(virtual, 0, -1):
        devices = kept(before, count)
        assert len(set(devices)) == count
        now = layout(virtual, devices, before)
        changes = sum(a != b for a, b in pairwise(now))
        assert (len(now), set(now), changes) == (virtual, set(devices), count - 1)
        for more in range(count, virtual + 1):
            grown = layout(virtual, [*devices, *(f"n{n}" for n in range(more - count))], now)
            assert len(set(grown)) == more
        before = list(now)


# -- by itself -------------------------------------------------------------------------------


def test_it_starts_on_what_is_free_and_grows_when_there_is_more() -> None:
    world = World(4, parameters=SLOW)
    world.holding("other", devices=3, tier=Tier.PREMIUM)
    notebook(world)
    assert spread(world) == "3333"
    assert "4 virtual devices on 1 physical" in reads(world["nb"])
    world.do(ev.ParkAsked("other", "bob"))
    world.answer()
    later(world, 10)
    assert spread(world) == "3333"  # not so soon after the last change
    later(world)
    assert spread(world) == "3012"
    assert reads(world["nb"]).startswith("goes on with cpu:3, cpu:0, cpu:1 and cpu:2")
    assert [c.rule for c in world.history if c.session == "nb"][-2:] == ["grow", "device.resized"]


def test_it_is_shrunk_before_anybody_is_preempted_and_grows_back() -> None:
    world = World(4, parameters=SLOW)
    notebook(world)
    assert spread(world) == "0123"
    later(world)
    world.create("train", Tier.PREMIUM, 3, user="bob")
    world.need("train")
    assert world["nb"].device_state is DeviceState.RESIZING
    assert world["nb"].word == "resizing"
    assert set(world.state.nodes["local"].leases.values()) == {"nb"}
    assert (
        reads(world["nb"]) == "runs its 4 virtual devices on 1 physical: bob/train (premium) needs "
        "3 devices; nothing is lost; it grows back when devices are free"
    )
    world.answer()
    assert (spread(world), spread(world, "train")) == ("0000", "123")
    assert "bob/train (premium) needs 3" in explain(world.state, world["nb"], world.now)["sentence"]
    later(world, 500)
    assert spread(world) == "0000"
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    later(world)
    assert sorted(set(spread(world))) == list("0123")
    assert not [c for c in world.history if c.session == "nb" and c.rule.startswith("preempt")]


def test_only_what_is_needed_is_given_up_and_counts_are_kept_to() -> None:
    world = World(8, parameters=SLOW)
    world.holding("nb", devices=8, scale=ScalePolicy(2, 8, (2, 4, 8)))
    later(world)
    world.holding("one")
    assert len(world["nb"].physical) == 4
    world.holding("two")
    assert len(world["nb"].physical) == 4
    for sid in ("three", "four"):
        world.holding(sid)
    later(world)
    world.holding("five")
    assert len(world["nb"].physical) == 2
    assert spread(world, "nb")[:4] == spread(world, "nb")[0] * 4


def test_below_the_least_a_session_is_preempted_as_others_are() -> None:
    world = World(4, parameters=SLOW)
    notebook(world, scale=ScalePolicy(2, 4))
    later(world)
    world.holding("train", Tier.PREMIUM, 3)
    assert world["nb"].word in ("parked", "waiting")


def test_an_idle_one_is_not_grown() -> None:
    world = World(4, parameters=SLOW)
    world.holding("other", devices=3, tier=Tier.PREMIUM)
    notebook(world)
    world.idle("nb")
    world.do(ev.ParkAsked("other", "bob"))
    world.answer()
    later(world, 500)
    assert spread(world) == "3333"
    world.do(ev.Activity("nb", True, world.now))
    later(world, 1)
    assert len(world["nb"].physical) == 4


def shrunk(world: World) -> None:
    """ "nb" works on one of its four devices, since a moment ago; bob's "train" has the others."""
    notebook(world)
    later(world)
    world.holding("train", Tier.PREMIUM, 3, user="bob")
    assert spread(world) == "0000"


def test_after_a_rest_the_next_cell_has_all_devices_at_once() -> None:
    """However lately it was shrunk; and the reasons say so all the time."""
    world = World(4, parameters=SLOW.changed(idle_grace_s=20.0))
    shrunk(world)
    world.idle("nb")
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    world.now += 30
    world.do(ev.Tick("local"))
    assert (spread(world), world.pending) == ("0000", [])
    why = explain(world.state, world["nb"], world.now)
    assert (
        "with its next cell it gets up to 4 devices, as many as are free then." in (why["sentence"])
    )
    assert why["facts"]["grows_to"] == 4
    world.do(ev.Activity("nb", True, world.now))
    assert world["nb"].word == "resizing"
    assert reads(world["nb"]) == (
        "runs its 4 virtual devices on 4 physical: devices are free; nothing is lost; running code "
        "just waits"
    )
    world.answer()
    assert sorted(set(spread(world))) == list("0123")
    why = explain(world.state, world["nb"], world.now)
    assert "next cell" not in why["sentence"]
    assert "grows_to" not in why["facts"]


def test_a_pause_between_two_cells_is_no_rest() -> None:
    world = World(4, parameters=SLOW.changed(idle_grace_s=20.0))
    shrunk(world)
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    for _ in range(5):
        world.idle("nb")
        world.now += 10
        world.do(ev.Activity("nb", True, world.now))
        assert (spread(world), world.pending) == ("0000", [])
    later(world)
    assert len(world["nb"].physical) == 4


def test_after_a_rest_it_gets_what_becomes_free_later() -> None:
    world = World(4, parameters=SLOW)
    shrunk(world)
    world.idle("nb")
    world.do(ev.Activity("nb", True, world.now))
    assert spread(world) == "0000"
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    assert len(world["nb"].physical) == 4


def test_growth_after_a_rest_that_failed_is_not_tried_with_every_cell() -> None:
    world = World(4, parameters=SLOW.changed(idle_grace_s=20.0))
    shrunk(world)
    world.idle("nb")
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    world.now += 30
    world.do(ev.Activity("nb", True, world.now))
    [action] = world.pending
    world.pending.clear()
    world.do(ev.ResizeFailed("nb", action.epoch, "its ranks did not come together"))
    for _ in range(3):
        world.idle("nb")
        world.now += 5
        world.do(ev.Activity("nb", True, world.now))
        assert (spread(world), world.pending) == ("0000", [])


def test_what_it_got_after_a_rest_is_not_taken_back_at_once() -> None:
    """The interval holds for the next change."""
    world = World(4, parameters=SLOW)
    shrunk(world)
    world.idle("nb")
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    world.do(ev.Activity("nb", True, world.now))
    world.answer()
    assert len(world["nb"].physical) == 4
    world.create("same", devices=2)
    world.need("same")
    world.answer()
    assert (world["same"].word, len(world["nb"].physical)) == ("waiting", 4)
    later(world)
    world.answer()
    assert (world["same"].word, len(world["nb"].physical)) == ("running", 2)


@pytest.mark.parametrize("interval_s", [None, 0.0])
def test_what_one_is_just_granted_is_not_taken_in_the_same_turn(interval_s: float | None) -> None:
    """Two wait, and devices for both of them become free at once."""
    world = World(4, parameters=SLOW)
    world.holding("first", devices=4)
    world.create("nb", devices=4, scale=ScalePolicy(1, 4, interval_s=interval_s))
    world.create("train", devices=2)
    for sid in ("nb", "train"):
        world.do(ev.Activity(sid, True, world.now))
        world.need(sid)
    world.do(ev.EndAsked("first", "alice"))
    world.answer()
    assert len(world["nb"].physical) == 4 or world["train"].word == "running"
    later(world)
    assert (len(world["nb"].physical), world["train"].word) == (2, "running")


def test_a_policy_of_its_own_interval() -> None:
    world = World(4, parameters=SLOW)
    world.holding("other", devices=3, tier=Tier.PREMIUM)
    notebook(world, scale=ScalePolicy(1, 4, interval_s=1000.0))
    world.do(ev.EndAsked("other", "bob"))
    world.answer()
    later(world, 500)
    assert len(world["nb"].physical) == 1
    later(world, 500)
    assert len(world["nb"].physical) == 4


def test_a_run_starts_when_there_is_room_for_its_least() -> None:
    world = World(2, parameters=SLOW)
    run = BatchRun("/n.ipynb", "/o.ipynb")
    spec = SessionSpec(Kind.BATCH, Tier.STANDARD, 4, "a", run, scale=ANY)
    for sid in "ab":
        world.do(ev.SessionCreated(sid, "alice", replace(spec, name=sid)))
    world.answer(ev.Start)
    assert world["a"].word == world["b"].word == "ready"
    for sid in "ab":
        world.need(sid)
    world.answer()
    later(world)
    assert {spread(world, "a"), spread(world, "b")} == {"0000", "1111"}
    assert {world["a"].word, world["b"].word} == {"running"}


def test_what_was_used_is_counted_by_physical_devices() -> None:
    world = World(4, parameters=SLOW)
    notebook(world)
    later(world)
    world.holding("train", Tier.PREMIUM, 3)
    later(world, 300)
    world.do(ev.EndAsked("train", "bob"))
    world.answer()
    later(world)
    world.do(ev.Tick("local"))
    assert used(world).device_s == pytest.approx(world.leased_s)


def test_quotas_count_physical_devices() -> None:
    world = World(4, parameters=SLOW)
    world.do(adm.QuotaAsked("root", VirtualCluster("research", 2, may_borrow=False)))
    notebook(world, virtual_cluster="research")
    assert len(world["nb"].physical) == 2
    assert world.state.held_of["research"] == 2
    later(world, 500)
    assert len(world["nb"].physical) == 2


# -- somebody asks ---------------------------------------------------------------------------


def resize(world: World, count: int, sid: str = "nb") -> None:
    world.do(ev.ResizeAsked(sid, "alice", count))


def test_somebody_resizes_and_the_wish_lasts() -> None:
    world = World(4, parameters=SLOW)
    notebook(world, scale=None)
    resize(world, 2)
    assert world["nb"].word == "resizing"
    world.answer()
    assert spread(world) == "0022"
    later(world, 500)
    assert spread(world) == "0022"  # nobody asked for more
    world.do(ev.ParkAsked("nb", "alice"))
    world.answer()
    world.need("nb")
    world.answer()
    assert len(world["nb"].physical) == 2
    resize(world, 4)
    world.answer()
    assert sorted(set(spread(world))) == list("0123")
    assert world["nb"].wish == 0


def test_more_than_is_free_is_waited_for() -> None:
    world = World(4, parameters=SLOW)
    notebook(world, scale=None)
    resize(world, 1)
    world.answer()
    world.holding("other", devices=3)
    resize(world, 3)
    world.answer()
    assert len(world["nb"].physical) == 1
    assert "gets the others when they are free" in reads(world["nb"])
    world.do(ev.EndAsked("other", "bob"))
    world.answer()
    later(world, 1)
    assert len(world["nb"].physical) == 3


def test_all_of_its_devices_are_waited_for_too() -> None:
    world = World(4, parameters=SLOW)
    notebook(world, scale=None)
    resize(world, 2)
    world.answer()
    world.holding("other", devices=2)
    resize(world, 4)
    world.answer()
    assert len(world["nb"].physical) == 2
    assert "gets the others when they are free" in reads(world["nb"])
    world.do(ev.EndAsked("other", "bob"))
    world.answer()
    later(world, 1)
    assert len(world["nb"].physical) == 4


def test_a_wish_that_cannot_be_met_is_not_tried_all_the_time() -> None:
    world = World(4, parameters=SLOW)
    notebook(world, scale=None)
    resize(world, 1)
    world.answer()
    world.holding("other", devices=3)
    resize(world, 3)
    world.do(ev.EndAsked("other", "bob"))
    world.answer(ev.End)
    [action] = [a for a in world.pending if isinstance(a, ev.Resize)]
    world.pending.clear()
    world.do(ev.ResizeFailed("nb", action.epoch, "its ranks did not come together"))
    assert world.pending == []
    later(world)
    assert len(world["nb"].physical) == 3


def test_without_devices_it_is_a_wish_for_the_next_ones() -> None:
    world = World(4)
    world.create("nb", devices=4)
    resize(world, 1)
    assert "at most so many with its next devices" in reads(world["nb"])
    world.need("nb")
    world.answer()
    assert spread(world) == "0000"


def test_bad_wishes_are_refused_by_one_sentence_and_change_nothing() -> None:
    world = World(4, parameters=SLOW)
    notebook(world, scale=ScalePolicy(1, 4, (1, 2, 4)))
    before = world["nb"]
    for count, why in (
        (0, "4 virtual devices, so it runs on 1 to 4 physical ones, not on 0"),
        (5, "not on 5"),
        (3, "scale policy of alice/nb does not allow 3 devices: pick from 1, 2, 4"),
    ):
        with pytest.raises(BadRequest, match=why):
            resize(world, count)
    assert world["nb"] == before
    resize(world, 2)
    with pytest.raises(Conflict, match="is being resized right now"):
        resize(world, 1)
    for event in (
        ev.ParkAsked("nb", "alice"),
        ev.MigrateAsked("nb", "alice"),
        ev.CheckpointAsked("nb", "alice"),
    ):
        with pytest.raises(Conflict, match="changing devices right now"):
            world.do(event)
    with pytest.raises(Conflict, match="already holds"):
        world.do(ev.ResumeAsked("nb", "alice"))


def test_a_node_with_fewer_devices_is_named() -> None:
    world = World(2)
    world.create("nb", devices=4, scale=ANY)
    with pytest.raises(BadRequest, match="node local of alice/nb has 2 devices"):
        resize(world, 3)


def test_a_failed_resize_is_not_tried_again_at_once_and_a_higher_tier_goes_first() -> None:
    world = World(4, parameters=SLOW)
    notebook(world)
    later(world)
    world.create("train", Tier.PREMIUM, 3)
    world.need("train")
    [action] = [a for a in world.pending if isinstance(a, ev.Resize)]
    world.pending.remove(action)
    world.do(ev.ResizeFailed("nb", action.epoch, "its state does not fit"))
    told = [c for c in world.history if c.session == "nb"][-2:]
    assert [c.rule for c in told] == ["device.resize_failed", "preempt.tier"]
    assert "goes on with cpu:0, cpu:1, cpu:2 and cpu:3, which could not be changed (its state " in (
        reads(told[0])
    )
    world.answer()
    assert world["train"].word == "running"


def test_a_wish_of_somebody_that_fails_is_forgotten() -> None:
    world = World(4)
    notebook(world, scale=None)
    resize(world, 1)
    [action] = [a for a in world.pending if isinstance(a, ev.Resize)]
    world.pending.remove(action)
    world.do(ev.ResizeFailed("nb", action.epoch, "its state does not fit"))
    assert (spread(world), world["nb"].wish, world["nb"].word) == ("0123", 0, "running")
    assert "could not be changed (its state does not fit)" in reads(world["nb"])


def test_answers_of_older_leases_mean_nothing() -> None:
    world = World(4)
    notebook(world, scale=None)
    resize(world, 1)
    epoch = world["nb"].epoch
    world.do(ev.Resized("nb", epoch - 1))
    world.do(ev.ResizeFailed("nb", epoch - 1, "late"))
    assert world["nb"].word == "resizing"
    world.answer()
    world.do(ev.Resized("nb", epoch))
    assert spread(world) == "0000"


def test_the_command_is_repeated_when_the_node_is_back() -> None:
    world = World(4)
    notebook(world, scale=None)
    resize(world, 1)
    [before] = [a for a in world.pending if isinstance(a, ev.Resize)]
    world.pending.clear()
    told = replace(facts(world["nb"]), devices=world["nb"].devices)
    world.do(ev.NodeAway("local"))
    world.join("local", 4, None, told)
    [again] = [a for a in world.pending if isinstance(a, ev.Resize)]
    assert (again.epoch, again.seq, again.devices) == (before.epoch, before.seq, before.devices)
    world.answer()
    assert spread(world) == "0000"


def test_what_is_decided_meanwhile_is_done_afterwards() -> None:
    world = World(4)
    notebook(world, scale=None)
    resize(world, 1)
    world.do(ev.PreemptAsked("nb", "root"))
    world.answer()
    assert world["nb"].word == "parked"
    world.do(ev.ResumeAsked("nb", "alice"))
    world.answer()
    assert spread(world) == "0000"
    resize(world, 2)
    world.do(ev.SuspendAsked("nb", "alice"))
    assert world["nb"].word == "resizing"
    world.answer()
    assert world["nb"].word == "suspended"


def test_it_may_end_in_the_middle_and_no_device_stays_leased() -> None:
    world = World(4)
    notebook(world, scale=None)
    resize(world, 1)
    world.answer()
    resize(world, 4)
    world.do(ev.EndAsked("nb", "alice"))
    assert len(world.state.nodes["local"].leases) == 4
    world.answer(ev.End)
    assert world.state.nodes["local"].leases == {}


def test_a_lost_lease_in_the_middle_frees_everything() -> None:
    world = World(4)
    notebook(world, scale=None)
    resize(world, 1)
    world.do(ev.LeaseReaped("nb", world["nb"].epoch, "its node was silent"))
    assert (world["nb"].word, world["nb"].resizing) == ("parked", ())
    assert world.state.nodes["local"].leases == {}


def test_priorities_decide_who_grows_first() -> None:
    world = World(4, parameters=SLOW)
    world.holding("other", devices=2, tier=Tier.PREMIUM)
    notebook(world, "low", priority=Priority.LOW)
    later(world)
    notebook(world, "high", priority=Priority.HIGH)
    assert len(world["low"].physical) == len(world["high"].physical) == 1
    world.do(ev.EndAsked("other", "bob"))
    world.answer()
    later(world)
    assert len(world["high"].physical) == 3


def test_a_session_of_shards_is_not_tried_on_too_few_devices_again() -> None:
    """It was parked while its ranks held two parts, and only one device is free now."""
    world = World(4, parameters=SLOW)
    notebook(world)
    world.do(ev.ParkAsked("nb", "alice"))
    world.answer()
    world.holding("other", devices=3)
    world.need("nb")
    [attach] = [a for a in world.pending if isinstance(a, ev.Attach)]
    world.pending.clear()
    assert len(set(attach.devices)) == 1
    world.do(ev.AttachFailed("nb", attach.epoch, "its ranks hold 2 different shards", 2))
    for _ in range(3):
        later(world, 10)
    assert world.all_actions.count(attach) == 1
    assert [a for a in world.all_actions if isinstance(a, ev.Attach)][-1] == attach
    assert world["nb"].scale == ScalePolicy(2, 4)
    world.do(ev.EndAsked("other", "bob"))
    world.answer()
    assert len(world["nb"].physical) >= 2


def test_a_session_of_shards_is_preempted_and_not_shrunk_again() -> None:
    world = World(4, parameters=SLOW)
    notebook(world)
    later(world)
    world.create("train", Tier.PREMIUM, 3)
    world.need("train")
    [action] = [a for a in world.pending if isinstance(a, ev.Resize)]
    world.pending.remove(action)
    world.do(ev.ResizeFailed("nb", action.epoch, "its ranks hold 4 different shards", 4))
    assert world["nb"].needs == 4
    world.answer()
    assert world["train"].word == "running"


@pytest.mark.parametrize(("wish", "least", "left"), [(1, 2, 2), (3, 2, 3), (1, 0, 1)])
def test_a_wish_for_fewer_devices_than_it_can_be_on_is_for_as_few_as_that(
    wish: int, least: int, left: int
) -> None:
    world = World(4)
    world.create("nb", devices=4)
    resize(world, wish)
    world.need("nb")
    [attach] = [a for a in world.pending if isinstance(a, ev.Attach)]
    world.pending.clear()
    world.do(ev.AttachFailed("nb", attach.epoch, "its ranks hold 2 different shards", least))
    assert world["nb"].wish == left
