"""Devices that are unwell are drained and their sessions go elsewhere; administrators may, too."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import Conflict, NotFound
from singularity_scheduler.core.operations.health import FATAL_XIDS, REST_S, faults
from singularity_scheduler.core.state.devices import DeviceHealth
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import PARK_RETRY_S
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.explain.why import explain
from singularity_scheduler.text.reasons import render, render_words
from support.scheduler_core import World, cards, facts, reads


def report(device: str, **changes: object) -> DeviceHealth:
    return DeviceHealth(device, **changes)  # type: ignore[arg-type]


def drained(world: World) -> dict[str, str]:
    node = world.state.nodes["local"]
    marks = [node.mark(device) for device in node.devices]
    return {mark.device: render_words(mark.reason) for mark in marks if mark.drained}


def parks(world: World) -> list[ev.Park]:
    return [a for a in world.all_actions if isinstance(a, ev.Park)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, None),
        ({"temperature_c": 99.0, "temperature_limit_c": 95.0}, None),  # not for long
        ({"xids": ((13, 5.0), (43, 6.0), (94, 7.0))}, None),  # a program's, or corrected
        ({"ecc_corrected": 7, "row_remap_pending": True}, None),
        ({"trouble": "install nvidia-ml-py"}, None),
        ({"silent_s": 59.0}, None),
        ({"xids": ((79, 5.0),)}, "Xid 79: the GPU has fallen off the bus"),
        ({"xids": ((48, 5.0), (95, 6.0))}, "Xid 95: an uncontained memory error"),
        ({"ecc_uncorrected": 2}, "2 memory errors that could not be corrected (ECC)"),
        ({"row_remap_failed": True}, "a faulty memory row could not be remapped"),
        ({"present": False}, "the driver no longer reaches it (fallen off the bus)"),
        ({"silent_s": 600.0}, "the driver has not answered for 10 min"),
        (
            {"temperature_c": 99.4, "hot_since": 900.0},
            "too hot for more than a minute (99 °C)",
        ),
    ],
)
def test_what_is_a_fault(changes: dict[str, object], sentence: str | None) -> None:
    found = faults(report("cuda:0", **changes), 1000.0)
    assert (render(found[0].why) if found else None) == sentence


def test_every_fatal_error_drains() -> None:
    for code in FATAL_XIDS:
        world = World(1)
        world.look(report("cpu:0", xids=((code, 5.0),)))
        assert f"Xid {code}" in drained(world)["cpu:0"]


def test_a_session_on_a_broken_device_goes_on_elsewhere() -> None:
    world = World(2)
    world.holding("a")
    assert world["a"].devices == ("cpu:0",)
    world.look(report("cpu:0", xids=((79, 5.0),)), report("cpu:1"))
    assert world["a"].word == "migrating"
    assert reads(world["a"]) == (
        "leaves cpu:0, which was drained (Xid 79: the GPU has fallen off the bus); nothing is "
        "lost, it comes back on another device"
    )
    [park] = parks(world)
    assert park.force
    world.answer()
    assert (world["a"].word, world["a"].devices) == ("running", ("cpu:1",))
    rules = [change.rule for change in world.history[-4:]]
    assert "device.drained" in rules
    assert "user.migrate" not in rules


def test_nobody_gets_a_drained_device_until_it_is_returned() -> None:
    world = World(1)
    world.look(report("cpu:0", ecc_uncorrected=1))
    world.create("a")
    world.need("a")
    assert world["a"].word == "waiting"
    said = explain(world.state, world["a"], world.now)
    assert "drained: cpu:0" in said["sentence"]
    assert (said["facts"]["free"], said["facts"]["drained"]) == ([], ["cpu:0"])
    world.do(ev.Tick("local"))
    assert world["a"].word == "waiting"
    world.do(ev.ReturnAsked("local", "cpu:0", "root"))
    world.answer()
    assert world["a"].word == "running"


def test_an_idle_notebook_is_parked_and_asks_for_nothing() -> None:
    world = World(2)
    world.holding("a")
    world.idle("a")
    world.do(ev.DrainAsked("local", "cpu:0", "root", "new fan"))
    assert reads(world["a"]).startswith("leaves cpu:0, which was drained by root (new fan)")
    assert not parks(world)[0].force
    world.answer()
    assert world["a"].word == "parked"
    world.need("a")
    world.answer()
    assert world["a"].devices == ("cpu:1",)


def test_a_session_without_another_device_waits_and_keeps_its_place() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.DrainAsked("local", "cpu:0", "root"))
    world.answer()
    world.create("b")
    world.need("b")
    world.do(ev.ReturnAsked("local", "cpu:0", "root"))
    world.answer()
    assert (world["a"].word, world["b"].word) == ("running", "waiting")


def test_what_was_acknowledged_does_not_drain_again() -> None:
    world = World(1)
    old, new = report("cpu:0", xids=((79, 5.0),)), report("cpu:0", xids=((79, 5.0), (79, 9.0)))
    world.look(old)
    world.do(ev.ReturnAsked("local", "cpu:0", "root"))
    world.look(old)
    assert drained(world) == {}
    assert world.reloaded().state.nodes["local"].marks["cpu:0"].ignored == ("xid:79:5",)
    world.look(new)
    assert list(drained(world)) == ["cpu:0"]
    world.do(ev.ReturnAsked("local", "cpu:0", "root"))
    world.look(report("cpu:0"))  # the agent was started anew and knows of no error
    assert world.state.nodes["local"].marks["cpu:0"].ignored == ()


def test_a_mark_follows_its_card_and_not_the_number() -> None:
    world = World(0)
    world.do(ev.NodeJoined("local", cards("A", "B")))
    world.do(ev.DrainAsked("local", "cpu:0", "root", "new fan"))
    assert list(drained(world)) == ["cpu:0"]

    world.do(ev.NodeJoined("local", cards("B", "A")))  # the driver counts them anew
    assert list(drained(world)) == ["cpu:1"]
    world.holding("a")
    assert world["a"].devices == ("cpu:0",)

    world.do(ev.NodeJoined("local", cards("B", "C"), (facts(world["a"]),)))  # A was taken out
    assert drained(world) == {}
    world.do(ev.NodeJoined("local", cards("B"), (facts(world["a"]),)))
    again = world.reloaded()
    again.do(ev.NodeJoined("local", cards("C", "A"), (facts(world["a"]),)))  # and comes back
    assert drained(again) == {"cpu:1": "new fan"}
    again.do(ev.ReturnAsked("local", "cpu:1", "root"))
    assert drained(again) == {}
    [mark] = again.state.nodes["local"].marks.values()
    assert (mark.uuid, mark.device, mark.drained) == ("A", "cpu:1", False)


def test_what_is_wrong_with_a_card_that_was_swapped_drains_nobody() -> None:
    world = World(0)
    world.do(ev.NodeJoined("local", cards("A", "B")))
    world.look(report("cpu:0", uuid="A", ecc_uncorrected=1), report("cpu:1", uuid="B"))
    assert list(drained(world)) == ["cpu:0"]
    world.do(ev.NodeJoined("local", cards("C", "B")))
    world.look(report("cpu:0", uuid="A", ecc_uncorrected=2))  # told before the swap
    assert drained(world) == {}
    world.look(report("cpu:0", uuid="C", ecc_uncorrected=3))
    assert list(drained(world)) == ["cpu:0"]


def test_a_hot_device_rests_until_it_is_cool() -> None:
    world = World(1)
    hot = report("cpu:0", temperature_c=96.0, temperature_limit_c=95.0)
    cool = report("cpu:0", temperature_c=60.0, temperature_limit_c=95.0)
    world.look(hot)
    world.look(hot, seconds=50)
    world.look(cool, seconds=5)
    world.look(hot, seconds=5)
    world.look(hot, seconds=50)
    assert drained(world) == {}
    world.look(hot, seconds=20)
    assert drained(world) == {"cpu:0": "too hot for more than a minute (96 °C)"}
    world.look(cool, seconds=5)
    world.look(cool, seconds=REST_S - 30)
    assert list(drained(world)) == ["cpu:0"]
    world.look(cool, seconds=30)
    assert drained(world) == {}


def test_a_device_that_breaks_after_an_administrator_drained_it_is_left_by_force() -> None:
    world = World(2)
    world.holding("a")
    world.do(ev.DrainAsked("local", "cpu:0", "root", "new fan"))
    world.do(ev.ParkFailed("a", world["a"].epoch, "the disk is full"))
    world.pending.clear()
    world.look(report("cpu:0", present=False), seconds=PARK_RETRY_S)
    assert [park.force for park in parks(world)] == [False, True]
    mark = world.state.nodes["local"].marks["cpu:0"]
    assert (mark.by, mark.reason, mark.faults) == ("root", "new fan", ("lost",))
    world.answer()
    assert world["a"].devices == ("cpu:1",)


@pytest.mark.parametrize("asked", [True, False])
def test_a_device_that_breaks_while_it_is_left_ends_the_wait(asked: bool) -> None:
    world = World(2)
    world.holding("a")
    if asked:
        world.do(ev.DrainAsked("local", "cpu:0", "root"))
    else:
        world.do(ev.ParkAsked("a", "alice"))
    for _ in range(2):
        world.look(report("cpu:0", xids=((79, 5.0),)))
    first, second = parks(world)
    assert (first.force, second.force) == (False, True)
    assert second.seq == first.seq + 1 == world["a"].seq
    world.answer()
    assert world["a"].device_state is not DeviceState.PARKING


def test_a_silent_driver_is_not_waited_for_and_heat_is() -> None:
    for changes, force in (({"silent_s": 60.0}, True), ({"temperature_c": 96.0}, False)):
        world = World(2)
        world.holding("a")
        ill = report("cpu:0", temperature_limit_c=95.0, **changes)
        world.look(ill)
        world.look(ill, seconds=70)
        assert [park.force for park in parks(world)] == [force]


def test_a_passing_fault_becomes_a_lasting_one() -> None:
    world = World(1)
    hot = {"temperature_c": 96.0, "temperature_limit_c": 95.0}
    world.look(report("cpu:0", **hot))
    world.look(report("cpu:0", **hot), seconds=70)
    world.look(report("cpu:0", present=False, **hot))
    assert drained(world) == {"cpu:0": "the driver no longer reaches it (fallen off the bus)"}
    world.look(report("cpu:0"))
    assert list(drained(world)) == ["cpu:0"]


def test_a_device_that_somebody_drained_is_never_returned_by_itself() -> None:
    world = World(1)
    world.do(ev.DrainAsked("local", "cpu:0", "root", "new fan"))
    world.look(report("cpu:0"))
    assert drained(world) == {"cpu:0": "new fan"}
    world.do(ev.DrainAsked("local", "cpu:0", "root", "new fan and dust"))
    assert drained(world) == {"cpu:0": "new fan and dust"}
    assert world.reloaded().state.nodes["local"].marks["cpu:0"].drained


def test_what_cannot_be_drained_returned_or_moved_to() -> None:
    world = World(2)
    for node, device in (("local", "cpu:7"), ("moon", "cpu:0")):
        for event in (
            ev.DrainAsked(node, device, "root"),
            ev.ReturnAsked(node, device, "root"),
        ):
            with pytest.raises(NotFound, match="pick from local/cpu:0, local/cpu:1"):
                world.do(event)
    with pytest.raises(Conflict, match="is not drained"):
        world.do(ev.ReturnAsked("local", "cpu:0", "root"))
    world.holding("a")
    world.do(ev.DrainAsked("local", "cpu:1", "root", "new fan"))
    with pytest.raises(Conflict, match=r"cpu:1 is drained \(new fan\): pick another device"):
        world.do(ev.MigrateAsked("a", "alice", ("cpu:1",)))
    with pytest.raises(Conflict, match="fewer than 1 other device"):
        world.do(ev.MigrateAsked("a", "alice"))


def test_a_device_that_falls_ill_during_an_attach_is_left_at_once() -> None:
    world = World(2)
    world.create("a")
    world.need("a")
    assert world["a"].word == "attaching"
    world.look(report("cpu:0", present=False), report("cpu:1"))
    assert world["a"].word == "attaching"
    world.answer()
    assert (world["a"].word, world["a"].devices) == ("running", ("cpu:1",))


def test_a_park_that_failed_is_tried_again_and_forced_after_a_restart_too() -> None:
    world = World(2)
    world.holding("a")
    ill = report("cpu:0", present=False)
    world.look(ill)
    world.do(ev.ParkFailed("a", world["a"].epoch, "the disk is full"))
    world.pending.clear()
    assert world["a"].word == "running"
    world.look(ill)
    assert world["a"].word == "running"
    world.look(ill, seconds=PARK_RETRY_S)
    assert world["a"].word == "migrating"
    again = world.reloaded()
    view = world["a"]
    devices = tuple(world.state.nodes["local"].devices.values())
    again.do(ev.NodeJoined("local", devices, (facts(view, devices=view.devices),)))
    [park] = parks(again)
    assert (park.force, park.rule) == (True, "recover")


def test_queued_runs_start_only_for_devices_that_may_be_used() -> None:
    world = World(2)
    world.look(report("cpu:0", present=False), report("cpu:1"))
    world.submit("one")
    world.submit("two")
    world.submit("large", devices=2)
    assert [world[s].pending for s in ("one", "two", "large")] == [False, True, True]
    world.do(ev.ReturnAsked("local", "cpu:0", "root"))
    assert [world[s].pending for s in ("one", "two", "large")] == [False, False, True]


def test_a_device_drained_of_a_pair_frees_the_other_one() -> None:
    world = World(3)
    world.holding("pair", devices=2)
    world.look(report("cpu:0", present=False), report("cpu:1"), report("cpu:2"))
    world.answer()
    assert world["pair"].devices == ("cpu:1", "cpu:2")
