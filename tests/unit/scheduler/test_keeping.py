"""Sessions that are kept alive: what that prevents, what it does not, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from singularity_proxy.errors import BadRequest, Conflict, Forbidden
from singularity_scheduler.core.steps.keeping import end_of
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import Abilities
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.explain.planned import Plan, given_at, planned
from singularity_scheduler.explain.why import explain, told
from singularity_scheduler.text.reasons import render
from support.scheduler_core import World, reads

CAREFUL = Parameters(idle_soft_s=900.0, idle_grace_s=30.0, min_run_s=60.0, keep_max_s=7200.0)


def resting(devices: int = 1, parameters: Parameters = CAREFUL) -> World:
    """A notebook "a" that holds a device which no call reaches."""
    w = World(devices, parameters=parameters)
    w.holding("a")
    w.idle("a")
    w.do(ev.DeviceUse("a", w.now))
    return w


def keep(w: World, for_s: float, by: str = "alice") -> ev.Decision:
    return w.do(ev.KeepAsked("a", by, for_s))


def wait(w: World, seconds: float) -> None:
    w.now += seconds
    w.do(ev.Tick("local"))
    w.answer()


def test_a_kept_session_is_not_parked_by_itself_until_its_time_is_over():
    w = resting()
    begun = w.now + 1
    keep(w, 3600.0)
    assert w["a"].keep_until == begun + 3600.0
    assert reads(w["a"]).startswith("holds "), "why it is in its state does not change"
    [line] = [change for change in w.history if change.rule == "user.keep"]
    assert reads(line) == (
        "kept alive by alice for 60 min: it is not parked for being idle; a higher tier still goes "
        "first"
    )
    wait(w, 3590.0)
    assert w["a"].word == "running"
    wait(w, 20.0)
    assert (w["a"].word, w["a"].keep_until) == ("parked", None)
    over = [reads(change) for change in w.history if change.rule == "user.keep"][-1]
    assert over.startswith("no longer kept alive, because its time is over")


def test_the_history_of_a_keep_is_a_remark_and_not_the_reason():
    w = resting()
    decision = keep(w, 3600.0)
    assert told(w.state, decision, w.now) == decision


def test_its_idle_devices_are_not_taken_by_its_own_or_a_lower_tier():
    w = resting()
    keep(w, 3600.0)
    w.create("b")
    w.need("b")
    w.create("c", Tier.BASIC)
    w.need("c")
    wait(w, 200.0)
    assert (w["a"].word, w["b"].word, w["c"].word) == ("running", "waiting", "waiting")
    keep(w, 0)
    wait(w, 1.0)
    assert (w["a"].word, w["b"].word) == ("parked", "running")


def test_a_higher_tier_goes_first():
    w = resting()
    keep(w, 3600.0)
    w.create("p", Tier.PREMIUM)
    w.need("p")
    w.answer()
    assert (w["a"].word, w["p"].word) == ("parked", "running")
    assert "premium goes before standard" in reads(w["a"])


def test_one_of_its_tier_that_was_served_less_goes_first():
    w = resting(parameters=replace(CAREFUL, keep_max_s=86400.0, quantum_s=300.0))
    keep(w, 86400.0)
    w.now += 2000.0  # past the first level of attained service
    w.create("b")
    w.need("b")
    wait(w, 1.0)
    assert (w["a"].word, w["b"].word) == ("parked", "running")
    assert "which has been served less" in reads(w["a"])


@pytest.mark.parametrize("ends", [False, True])
def test_nobody_has_devices_for_ever_by_asking_again(ends):
    w = resting()
    keep(w, 7200.0)
    wait(w, 7000.0)
    if ends:
        keep(w, 0)
    with pytest.raises(Conflict, match="3 min are left: ask for no more") as refused:
        keep(w, 3600.0)
    assert "use them first" in refused.value.message
    keep(w, 100.0)
    wait(w, 101.0)
    assert w["a"].word == "parked"


def test_using_its_devices_begins_anew():
    w = resting()
    keep(w, 7200.0)
    wait(w, 7000.0)
    w.do(ev.DeviceUse("a", 0.0))
    w.do(ev.DeviceUse("a", w.now))
    keep(w, 7200.0)
    wait(w, 7000.0)
    assert w["a"].word == "running"


def test_one_without_devices_may_be_kept_and_counts_when_it_has_some():
    w = World(1, parameters=CAREFUL)
    w.create("a")
    keep(w, 7200.0)
    w.need("a")
    w.answer()
    w.idle("a")
    w.do(ev.DeviceUse("a", w.now))
    wait(w, 6000.0)
    assert w["a"].word == "running"


def test_more_than_may_be_is_refused_and_changes_nothing():
    w = resting()
    with pytest.raises(BadRequest, match=r"ask for at most 2\.0 h \(keep_max_s\)"):
        keep(w, 7201.0)
    w = resting(parameters=replace(CAREFUL, keep_max_s=0.0))
    with pytest.raises(Forbidden, match="nobody may do that here"):
        keep(w, 1.0)
    assert keep(w, 0).empty, "what is not kept is not kept"


def test_a_run_that_was_not_started_and_a_suspended_session_are_refused():
    w = World(1, parameters=CAREFUL)
    w.computing("r")
    w.submit("q")
    with pytest.raises(Conflict, match="has not been started"):
        w.do(ev.KeepAsked("q", "alice", 60.0))
    w.do(ev.SuspendAsked("r", "alice"))
    w.answer()
    assert w["r"].word == "suspended"
    with pytest.raises(Conflict, match="resume brings it back"):
        w.do(ev.KeepAsked("r", "alice", 60.0))


def test_a_lower_ceiling_counts_at_once():
    w = resting()
    keep(w, 7200.0)
    wait(w, 1000.0)
    w.do(adm.ParametersAsked("root", (("keep_max_s", 0.0),)))
    wait(w, 1.0)
    assert (w["a"].word, w["a"].keep_until) == ("parked", None)


def test_why_says_so_and_until_when():
    w = resting()
    keep(w, 3600.0)
    found = explain(w.state, w["a"], w.now)
    assert (
        "It is kept alive for another 60 min: until then it is not parked for being idle, but a "
        "higher tier, or one of its tier that was served less, still goes first."
        in found["sentence"]
    )
    assert found["facts"]["kept_s"] == 3600.0
    assert found["facts"]["parks_in_s"] == found["facts"]["gives_in_s"] == 3600.0


def test_it_survives_a_restart():
    w = resting()
    keep(w, 3600.0)
    again = w.reloaded()
    assert end_of(again["a"], again.state.parameters) == w["a"].keep_until
    assert again.state.nodes["local"].kept == {"a"}


# -- what is planned ------------------------------------------------------------------------


def test_the_park_of_an_idle_holder_is_planned_and_comes_at_that_time():
    w = resting()
    found = planned(w.state, w["a"])
    assert found is not None
    assert (found.what, found.rule, found.at) == (
        Plan.PARK,
        "idle.reclaim",
        w["a"].unused_since + 900.0,
    )
    assert render(found.why) == (
        "no call reaches its devices, and idle ones are freed after 15 min (idle_soft_s)"
    )
    assert given_at(w.state, w["a"]) == pytest.approx(w["a"].held_since + 60.0)
    wait(w, found.at - w.now - 10.0)
    assert w["a"].word == "running"
    wait(w, 11.0)
    assert w["a"].word == "parked"
    assert planned(w.state, w["a"]) is None
    assert given_at(w.state, w["a"]) is None


def test_nothing_is_planned_for_one_that_works():
    w = World(1, parameters=CAREFUL)
    w.holding("a")
    assert planned(w.state, w["a"]) is None
    assert given_at(w.state, w["a"]) is None
    w.idle("a")
    w.do(ev.DeviceUse("a", w.now))
    assert planned(w.state, w["a"]) is not None
    w.do(ev.DeviceUse("a", 0.0))
    assert planned(w.state, w["a"]) is None


def test_a_keep_postpones_both():
    w = resting()
    keep(w, 3600.0)
    found = planned(w.state, w["a"])
    assert found is not None
    assert found.at == given_at(w.state, w["a"]) == w["a"].keep_until


def test_a_drain_is_planned_with_its_deadline_until_it_is_carried_out():
    w = World(8)
    for number in range(6):
        w.holding(f"s{number}")
    w.join("other", 8)
    w.do(adm.DutyAsked("root", "local", adm.DutyEvent.DRAIN, "repair", deadline=w.now + 600.0))
    left = [v for v in w.state.sessions.values() if v.process_state.value == "live"]
    assert len(left) == 2, "four at a time leave"
    for view in left:
        found = planned(w.state, view)
        assert found is not None
        assert (found.what, found.rule) == (Plan.SUSPEND, "node.drain")
        assert found.at == w.state.nodes["local"].duty.deadline
        assert render(found.why) == "node local is being drained by root (repair)"


def test_a_drain_by_force_says_what_it_will_end():
    w = World(1, abilities=Abilities(image_trouble="no criu"))
    w.holding("a")
    end = w.now + 600.0
    drain = adm.DutyAsked("root", "local", adm.DutyEvent.DRAIN, "repair", deadline=end, force=True)
    w.do(drain)
    found = planned(w.state, w["a"])
    assert found is not None
    assert (found.what, found.at) == (Plan.END, end)
    assert render(found.why).endswith("and it cannot be stored (no criu)")
