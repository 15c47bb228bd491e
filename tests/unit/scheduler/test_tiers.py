"""Sessions that get another tier or priority, and which tiers are open to whom."""

from __future__ import annotations

import pytest
from singularity_proxy.errors import BadRequest, Conflict, Forbidden
from singularity_scheduler.core.state import shares
from singularity_scheduler.core.steps.tiers import open_to
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import Priority, Tier
from support.scheduler_core import World, reads

NO_IDLE = Parameters(idle_soft_s=0, idle_grace_s=1e5, min_run_s=0.0)


def tier(w: World, session: str, tier: Tier, by: str = "alice") -> ev.Decision:
    return w.do(ev.TierAsked(session, by, tier=tier))


def allow(w: World, *tiers: Tier, user: str = "alice") -> ev.Decision:
    return w.do(adm.TiersAsked("root", user, tiers or None))


def test_a_lower_tier_lets_those_who_wait_go_first():
    w = World(1, parameters=NO_IDLE)
    w.holding("a")
    w.create("b")
    w.need("b")
    w.answer()
    assert (w["a"].word, w["b"].word) == ("running", "waiting")
    reason = reads(w["a"])
    done = tier(w, "a", Tier.BASIC)
    [line] = [change for change in done.history if change.rule == "user.tier"]
    assert reads(line) == (
        "alice changed its tier from standard to basic: nothing else of it changed"
    )
    assert (line.word, reason) == ("running", "holds cpu:0")
    w.answer()
    assert (w["a"].word, w["b"].word) == ("parked", "running")
    assert "standard goes before basic" in reads(w["a"])


def test_a_higher_tier_goes_first_at_once():
    w = World(1, parameters=NO_IDLE)
    w.holding("a")
    w.create("b")
    w.need("b")
    tier(w, "b", Tier.PREMIUM)
    w.answer()
    assert (w["a"].word, w["b"].word) == ("parked", "running")


def test_one_that_waits_gets_another_place():
    w = World(1, parameters=NO_IDLE)
    w.holding("p", Tier.PREMIUM)
    for name in ("a", "b", "c"):
        w.create(name)
        w.need(name)
    tier(w, "a", Tier.BASIC)
    w.do(ev.TierAsked("c", "alice", priority=Priority.HIGH))
    assert [view.id for view in w.state.waiting("local")] == ["c", "b", "a"]


@pytest.mark.parametrize("state", ["queued", "suspended", "coming back"])
def test_wherever_it_is_the_indices_follow(state):
    w = World(1, parameters=NO_IDLE)
    if state == "queued":
        w.computing("first")
        w.submit("a")
    else:
        w.computing("a")
        w.do(ev.SuspendAsked("a", "alice"))
        w.answer()
        w.holding("p", Tier.PREMIUM)
        if state == "coming back":
            w.do(ev.ResumeAsked("a", "alice"))
    for wanted in (Tier.BASIC, Tier.PREMIUM, Tier.STANDARD):
        tier(w, "a", wanted)  # `World` checks every index
        assert w["a"].tier is wanted


def test_a_queued_run_of_a_higher_tier_starts():
    w = World(1, parameters=NO_IDLE)
    w.computing("first")
    w.submit("a")
    assert w["a"].word == "queued"
    tier(w, "a", Tier.PREMIUM)
    w.answer(ev.Start)
    assert w["a"].process_state.value == "live"


def test_its_account_begins_anew_and_its_device_time_stays():
    w = World(1, parameters=NO_IDLE)
    w.holding("a")
    w.now += 8000.0
    w.do(ev.Activity("a", True, w.now))
    w.do(ev.CheckpointAsked("a", "alice"))  # anything that changes it
    before = shares.accounted(w["a"], w.now, w.state.parameters)
    assert before.windows >= 2
    assert before.wanted_s > 0
    tier(w, "a", Tier.PREMIUM)
    after = w["a"].share
    assert (after.windows, after.kept, after.wanted_s, after.got_s) == (0, 0, 0.0, 0.0)
    assert after.attained_device_s == pytest.approx(before.attained_device_s, abs=2.0)
    w.do(ev.TierAsked("a", "alice", priority=Priority.LOW))
    assert w["a"].share.wanted_s == pytest.approx(1.0), "a priority promises nothing"


def test_what_is_not_open_is_refused_and_changes_nothing():
    w = World(1)
    w.create("a")
    allow(w, Tier.STANDARD, Tier.BASIC)
    with pytest.raises(Forbidden) as refused:
        tier(w, "a", Tier.PREMIUM)
    assert refused.value.message == (
        "the tier premium is not open to alice, so nothing was changed: pick standard and basic, "
        "or ask an administrator"
    )
    assert w["a"].tier is Tier.STANDARD
    with pytest.raises(Forbidden):
        w.create("b", Tier.PREMIUM)
    assert "b" not in w.state.sessions
    w.create("c", Tier.PREMIUM, user="bob")
    tier(w, "a", Tier.PREMIUM, by="root")
    assert w["a"].tier is Tier.PREMIUM, "an administrator may"
    w.do(ev.TierAsked("a", "alice", priority=Priority.HIGH))
    assert w["a"].priority is Priority.HIGH, "its tier is not what is asked for"


def test_what_is_open_is_kept_and_logged_only_when_it_changes():
    w = World(1)
    assert open_to(w.state, "alice") == tuple(Tier)
    [order] = allow(w, Tier.BASIC, Tier.STANDARD).orders
    assert (order.verb, order.subject, order.before, order.after) == (
        "tiers",
        "alice",
        '["premium", "standard", "basic"]',
        '["standard", "basic"]',
    )
    assert allow(w, Tier.STANDARD, Tier.BASIC).empty
    assert open_to(w.reloaded().state, "alice") == (Tier.STANDARD, Tier.BASIC)
    assert allow(w, *Tier).orders
    assert w.state.admin.tiers == {}
    assert allow(w).empty
    with pytest.raises(BadRequest):
        w.do(adm.TiersAsked("root", "alice", ()))


def test_no_change_is_none_and_an_ended_one_is_refused():
    w = World(1)
    w.create("a")
    assert tier(w, "a", Tier.STANDARD).empty
    w.do(ev.EndAsked("a", "alice"))
    with pytest.raises(Conflict, match="has ended"):
        tier(w, "a", Tier.BASIC)
