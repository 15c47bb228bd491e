"""Idle devices: when they are taken, by whom, and what a session keeps at least."""

from __future__ import annotations

from dataclasses import replace

import pytest
from singularity_proxy.errors import BadRequest, NotFound
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import Tier
from support.scheduler_core import World, devices_of, facts, reads

CAREFUL = Parameters(idle_soft_s=900.0, idle_grace_s=30.0, min_run_s=60.0)


def world(devices: int = 1) -> World:
    return World(devices, parameters=CAREFUL)


def wait(world: World, seconds: float) -> None:
    world.now += seconds
    world.do(ev.Tick("local"))
    world.answer()


def test_an_idle_notebook_keeps_its_devices_for_the_grace_and_its_least_run():
    w = world()
    w.holding("a")
    w.idle("a")
    w.create("b")
    w.need("b")
    assert w["a"].word == "running"
    wait(w, 30.0)  # idle for long enough, but it has not had its devices for a minute
    assert w["a"].word == "running"
    wait(w, 30.0)
    assert (w["a"].word, w["b"].word) == ("parked", "running")
    assert reads(w["a"]).startswith("paused for alice/b: standard needs 1 device")


def test_one_that_has_had_its_devices_for_long_gives_them_up_after_the_grace():
    w = world()
    w.holding("a")
    w.now += 1000.0
    w.idle("a")
    w.create("b")
    w.need("b")
    wait(w, 20.0)
    assert w["a"].word == "running"
    wait(w, 10.0)
    assert w["a"].word == "parked"


def test_a_higher_tier_does_not_wait_for_the_grace():
    w = world()
    w.holding("a")
    w.idle("a")
    w.create("p", Tier.PREMIUM)
    w.need("p")
    w.answer()
    assert (w["a"].word, w["p"].word) == ("parked", "running")


def test_calls_of_a_background_thread_keep_the_devices_of_an_idle_kernel():
    w = world()
    w.holding("a")
    w.idle("a")
    w.do(ev.DeviceUse("a", 0.0))
    w.create("b")
    w.need("b")
    wait(w, 600.0)
    assert w["a"].word == "running"
    w.do(ev.DeviceUse("a", w.now))
    wait(w, 31.0)
    assert w["a"].word == "parked"


@pytest.mark.parametrize("kind", ["notebook", "run"])
def test_devices_that_no_call_reaches_are_parked_by_themselves(kind):
    w = world()
    w.holding("a") if kind == "notebook" else w.computing("a")
    w.do(ev.DeviceUse("a", w.now))
    wait(w, 890.0)
    assert w["a"].word == "running"
    wait(w, 20.0)
    assert w["a"].word == "parked"
    assert reads(w["a"]) == (
        "parked by itself: no call reached its devices for 15 min (idle_soft_s is 900); nothing is "
        "lost; it comes back with the next device call"
    )
    assert w.history[-1].rule == "device.parked"
    assert "idle.reclaim" in {change.rule for change in w.history}
    w.need("a")
    w.answer()
    assert w["a"].word == "running"
    wait(w, 500.0)  # what it did before does not count any more
    assert w["a"].word == "running"


def test_of_a_node_that_does_not_tell_the_kernel_decides():
    w = world()
    w.holding("a")
    wait(w, 2000.0)
    assert w["a"].word == "running"
    w.idle("a")
    wait(w, 901.0)
    assert w["a"].word == "parked"


def test_zero_parks_nothing_by_itself():
    w = World(1, parameters=replace(CAREFUL, idle_soft_s=0.0))
    w.holding("a")
    w.do(ev.DeviceUse("a", w.now))
    wait(w, 1e6)
    assert w["a"].word == "running"


def test_an_agent_that_comes_back_says_how_quiet_its_devices_are():
    w = world()
    w.holding("a")
    quiet = facts(w["a"], quiet_since=w.now - 2000.0)
    w.now += 100.0
    w.do(ev.NodeJoined("local", devices_of("local", 1), (quiet,)))
    wait(w, 100.0)
    assert w["a"].word == "running", "it has not had its devices for 15 minutes"
    wait(w, 750.0)
    assert w["a"].word == "parked"


def test_parameters_change_with_the_next_decision_and_are_logged():
    w = world()
    w.holding("a")
    w.idle("a")
    w.create("b")
    w.need("b")
    changes = (("idle_grace_s", 0), ("min_run_s", 0.0))
    done = w.do(adm.ParametersAsked("root", changes, "a demonstration"))
    assert [(o.by, o.verb, o.subject, o.before, o.after) for o in done.orders] == [
        ("root", "set", "idle_grace_s", "30.0", "0.0"),
        ("root", "set", "min_run_s", "60.0", "0.0"),
    ]
    w.do(ev.Tick("local"))
    w.answer()
    assert w["a"].word == "parked"
    assert w.do(adm.ParametersAsked("root", changes)).empty, "nothing changed"
    w.do(adm.ParametersAsked("root", (("idle_grace_s", None),)))
    assert w.state.parameters == replace(CAREFUL, min_run_s=0.0)
    assert w.reloaded().state.parameters == w.state.parameters


def test_a_wrong_change_changes_nothing():
    w = world()
    for changes, error in (
        ((("idle_grace_s", 5), ("quantum_s", -1)), BadRequest),
        ((("idle_grace", 5),), NotFound),
    ):
        with pytest.raises(error):
            w.do(adm.ParametersAsked("root", changes))
    assert w.state.parameters == CAREFUL
