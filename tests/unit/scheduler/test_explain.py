"""`why`: what a session waits for, who is before it and by which rule, when, what it lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons.reason import NONE, because
from singularity_scheduler.core.state.experience import (
    KEPT,
    TAKES,
    Experience,
    Of,
    Step,
    Taken,
    Wait,
    placed,
)
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import DutyEvent, NodeMark, VirtualCluster
from singularity_scheduler.core.values.model import PARK_RETRY_S, Change
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.requested import Kind, Priority, SessionSpec, Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.explain import precedence
from singularity_scheduler.explain.estimate import FEWEST, estimate
from singularity_scheduler.explain.why import HISTORY_DEPTH, explain, told
from singularity_scheduler.service.schemas import sessions as session_schemas
from singularity_scheduler.text.meanings import PRECEDENCE
from singularity_scheduler.text.phrases import short, span
from singularity_scheduler.text.reasons import render
from support.scheduler_core import World, outcome, reads

FACTS = Draft202012Validator(session_schemas.FACTS)

KEEPS = Parameters(idle_soft_s=0, idle_grace_s=30, min_run_s=60)
"""Idle devices are not taken at once."""


def why(world: World, sid: str, later: float = 0.0) -> tuple[str, dict[str, Any]]:
    answer = explain(world.state, world[sid], world.now + later)
    FACTS.validate(answer["facts"])
    return answer["sentence"], answer["facts"]


def waits(world: World, sid: str, tier: Tier = Tier.STANDARD, devices: int = 1) -> None:
    world.create(sid, tier, devices)
    world.need(sid)
    assert world[sid].word == "waiting"


def measured(
    world: World, *seconds: float, what: Wait = Wait.DEVICES, tier: str = "standard"
) -> None:
    """The cluster has seen these waits."""
    states = {
        Wait.DEVICES: [(ProcessState.LIVE, DeviceState.WAITING), (None, DeviceState.ATTACHING)],
        Wait.START: [(ProcessState.QUEUED, DeviceState.NONE), (ProcessState.STARTING, None)],
        Wait.RETURN: [(ProcessState.SUSPENDED, DeviceState.NONE), (ProcessState.RESUMING, None)],
    }[what]
    for number, one in enumerate(seconds):
        at = 100.0
        for process, device in states:
            line = (process or ProcessState.LIVE, device or DeviceState.NONE)
            world.state.experience.see(
                Change(f"past-{what.value}-{number}", at, *line, "", NONE, "queue.return"),
                Of(tier, 1, "local"),
            )
            at += one


# -- who is before it, and by which rule -------------------------------------------------------


def test_each_who_is_before_it_is_named_with_the_rule() -> None:
    world = World(1)
    world.holding("h", Tier.PREMIUM, user="bob")
    for sid, tier, priority in (
        ("high", Tier.STANDARD, Priority.HIGH),
        ("first", Tier.STANDARD, Priority.MEDIUM),
        ("me", Tier.STANDARD, Priority.MEDIUM),
        ("lower", Tier.BASIC, Priority.HIGH),
        ("top", Tier.PREMIUM, Priority.LOW),
    ):
        spec = SessionSpec(Kind.INTERACTIVE, tier, 1, sid, priority=priority)
        world.do(ev.SessionCreated(sid, "alice", spec))
        world.answer()
        world.need(sid)
    sentence, facts = why(world, "me")
    assert (facts["place"], facts["ahead"]) == (4, 3)
    assert facts["before"] == [
        {"session": "alice/top", "tier": "premium", "rule": "tier"},
        {"session": "alice/high", "tier": "standard", "rule": "priority"},
        {"session": "alice/first", "tier": "standard", "rule": "first"},
    ]
    assert (
        "; before it: alice/top (premium, a higher tier), alice/high (standard, a higher "
        "priority), alice/first (standard, came first); in use: "
    ) in sentence
    world.do(ev.PreemptAsked("top", "root"))
    assert precedence.rule(world.state, world["me"], world["top"]) == "held"
    named = {*precedence.OF_LINE, *precedence.OF_QUEUE, precedence.OF_GROUPS}
    assert named == set(precedence.RULES) == set(PRECEDENCE)
    assert len(precedence.OF_QUEUE) == len(world["me"].queue_key) - 1, "each part has a name"
    assert why(world, "top")[1]["estimate"]["why"].startswith("it waits until somebody resumes it")


# -- when: what is certain ------------------------------------------------------------------


def test_an_idle_holder_gives_its_devices_at_a_known_time() -> None:
    world = World(1, parameters=KEEPS)
    world.holding("h")
    world.now += 200.0
    world.idle("h")
    waits(world, "a")
    sentence, facts = why(world, "a", later=10.0)
    left = 30.0 - (world.now + 10.0 - world["h"].idle_since)  # type: ignore[operator]
    assert facts["estimate"]["low_s"] == facts["estimate"]["high_s"] == pytest.approx(left, abs=0.1)
    assert facts["estimate"]["basis"] == "certain"
    assert sentence.endswith(
        f"expected in about {span(left, left)[6:]}, as alice/h is idle and others may take its "
        "devices after 30 s (idle_grace_s), if it stays idle."
    )
    world.now += left
    world.do(ev.Tick("local"))
    world.answer()
    world.now += 30.0
    world.do(ev.Tick("local"))
    world.answer()
    assert world["a"].word == "running"


def test_devices_that_it_just_got_stay_for_the_minimum_run_time() -> None:
    world = World(1, parameters=KEEPS)
    world.holding("h")
    world.idle("h")
    waits(world, "a")
    sentence, facts = why(world, "a")
    left = world["h"].held_since + 60.0 - world.now  # type: ignore[operator]
    assert facts["estimate"]["low_s"] == pytest.approx(left, abs=0.1)
    assert "after it had them for 60 s (min_run_s), if it stays idle." in sentence


def test_one_that_could_not_be_parked_gives_its_devices_at_the_next_try() -> None:
    world = World(1)
    world.holding("h")
    world.idle("h")
    waits(world, "a")
    world.do(ev.ParkFailed("h", world["h"].epoch, "the host is full"))
    sentence, facts = why(world, "a", later=2.0)
    assert facts["estimate"]["basis"] == "certain"
    assert facts["estimate"]["low_s"] == pytest.approx(PARK_RETRY_S - 2.0)
    assert "after another try, 10 s after a park of it failed, if it stays idle." in sentence
    assert why(world, "h", later=2.0)[1]["gives_in_s"] == pytest.approx(PARK_RETRY_S - 2.0)
    world.pending.clear()
    world.now += PARK_RETRY_S
    world.do(ev.Tick("local"))
    assert world["h"].word == "parking", "as it was said"


def test_an_idle_holder_whose_devices_a_higher_tier_may_take_at_once_is_no_failed_park() -> None:
    world = World(1, parameters=KEEPS)
    world.holding("h")
    world.idle("h")
    world.create("top", Tier.PREMIUM)
    made = estimate(world.state, replace(world["top"], device_state=DeviceState.WAITING), world.now)
    assert made is not None
    assert made.facts["why"] == "alice/h is idle and gives its devices up at once"
    assert made.high_s == 0.0
    lines = told(world.state, world.do(ev.DeviceNeeded("top")), world.now).history
    assert not [line for line in lines if "another try" in reads(line)]


def test_one_that_was_served_more_gives_its_devices_when_its_turn_ends() -> None:
    world = World(1)
    world.holding("h")
    world.now += 4000.0
    world.do(ev.ParkAsked("h", "alice"))
    world.answer()
    world.need("h")
    world.answer()
    world.now += 100.0
    waits(world, "a")
    held_since = world["h"].held_since
    assert held_since is not None
    sentence, facts = why(world, "a")
    left = held_since + world.state.parameters.quantum_s - world.now
    assert facts["estimate"]["basis"] == "certain"
    assert facts["estimate"]["low_s"] == pytest.approx(left, abs=1.5)
    assert "as alice/h was served more and its turn ends then (quantum_s)." in sentence
    world.now += left
    world.do(ev.Tick("local"))
    assert world["h"].word == "parking"
    assert why(world, "h")[1]["preempted"]["rule"] == "preempt.service"


def test_a_crowded_queue_has_only_reasons_in_its_history() -> None:
    world = World(1)
    world.holding("h", Tier.PREMIUM)
    for number in range(HISTORY_DEPTH + 1):
        sid = f"s{number}"
        world.create(sid)
        decision = world.do(ev.DeviceNeeded(sid))
        [line] = told(world.state, decision, world.now).history
        place = f"; place {number + 1} of the queue for standard" in reads(line)
        assert place is (number < HISTORY_DEPTH)
        assert f"place {number + 1} of the queue" in why(world, sid)[0]


def test_devices_on_their_way_are_expected_as_parks_were() -> None:
    world = World(1)
    world.holding("h", Tier.BASIC)
    waits(world, "a")
    assert world["h"].word == "parking"
    sentence, facts = why(world, "a")
    assert facts["estimate"]["basis"] == "none"
    assert sentence.endswith(
        "it cannot be said when: the devices of alice/h are being freed and a park was not "
        "measured on node local yet."
    )
    world.now += 4.0
    world.answer()
    assert world.state.experience.steps(Step.PARK, "local") == (5.0,)
    world.create("c", Tier.PREMIUM)
    world.need("c")
    assert world["a"].word == "parking"
    sentence, facts = why(world, "c", later=2.0)
    assert facts["estimate"]["low_s"] == pytest.approx(3.0)
    assert sentence.endswith(
        "expected in about 3.0 s, as the devices of alice/a are being freed and a park takes about "
        "5.0 s on node local (1 measured)."
    )


def test_no_time_is_certain_when_those_before_it_take_what_comes() -> None:
    world = World(1, parameters=KEEPS)
    world.holding("h")
    world.now += 200.0
    world.idle("h")
    waits(world, "first")
    waits(world, "second")
    assert why(world, "first")[1]["estimate"]["basis"] == "certain"
    assert why(world, "second")[1]["estimate"]["basis"] == "none"


def test_its_own_way_takes_what_it_took_before() -> None:
    world = World(1)
    world.create("a")
    world.need("a")
    assert world["a"].word == "attaching"
    sentence, facts = why(world, "a")
    assert sentence == "alice/a is attaching: gets cpu:0."
    assert facts["estimate"]["why"] == "an attach was not measured on node local yet"
    world.answer()
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    world.need("a")
    sentence, facts = why(world, "a", later=0.25)
    assert sentence.endswith(
        "expected in less than 1 s, as an attach takes about 1.0 s on node local (1 measured)."
    )
    assert facts["estimate"]["high_s"] == pytest.approx(0.8)
    quick = because("step_takes", step="attach", usual_s=0.2, node="local", samples=3)
    assert render(quick) == "an attach takes less than 1 s on node local (3 measured)"


def test_an_idle_holder_says_until_when_it_keeps_its_devices() -> None:
    soft = replace(KEEPS, idle_soft_s=900)
    world = World(1, parameters=soft)
    world.holding("a")
    assert why(world, "a")[0] == "alice/a is running: holds cpu:0."
    world.now += 200.0
    world.idle("a")
    sentence, facts = why(world, "a", later=20.0)
    since = world["a"].idle_since
    assert since is not None
    assert facts["gives_in_s"] == pytest.approx(since + 30.0 - world.now - 20.0)
    assert facts["parks_in_s"] == pytest.approx(since + 900.0 - world.now - 20.0)
    assert sentence.endswith(
        f"It is idle, so it gives its devices to the next session that needs them in "
        f"{short(facts['gives_in_s'])} or later and it is parked by itself in 15 min (idle_soft_s)."
    )
    sentence, facts = why(world, "a", later=60.0)
    assert "session that needs them and it is parked by itself" in sentence
    world.now = since + 900.0
    world.do(ev.Tick("local"))
    assert world["a"].word == "parking", "as it was said"


def test_a_holder_whose_cell_has_just_ended_still_counts_as_busy() -> None:
    world = World(1, parameters=KEEPS)
    world.holding("a")
    world.do(ev.DeviceUse("a", 0.0))
    world.idle("a")
    sentence, facts = why(world, "a", later=200.0)
    assert sentence.endswith(
        "Its cell has ended, but calls reached its devices until now: it still counts as busy."
    )
    assert "gives_in_s" not in facts
    world.do(ev.DeviceUse("a", world.now))
    sentence, facts = why(world, "a", later=200.0)
    assert "it gives its devices to the next session" in sentence
    assert facts["gives_in_s"] == 0.0


def test_a_run_that_calls_nothing_says_when_it_is_parked() -> None:
    world = World(1, parameters=replace(KEEPS, idle_soft_s=900))
    world.computing("run")
    world.now += 100.0
    world.do(ev.DeviceUse("run", world.now))
    sentence, facts = why(world, "run", later=300.0)
    assert sentence.endswith(
        "No call reaches its devices, so it is parked by itself in 10 min (idle_soft_s)."
    )
    assert "gives_in_s" not in facts, "a run keeps them from its own tier"


def test_a_start_takes_what_starts_took() -> None:
    world = World(1)
    world.do(ev.SessionCreated("a", "alice", SessionSpec(Kind.INTERACTIVE, Tier.BASIC, 1, "a")))
    sentence, facts = why(world, "a")
    assert sentence == "alice/a is starting: its process is being started."
    assert facts["estimate"]["why"] == "a start was not measured on node local yet"
    world.answer()
    world.do(ev.SessionCreated("b", "alice", SessionSpec(Kind.INTERACTIVE, Tier.BASIC, 1, "b")))
    assert why(world, "b")[1]["estimate"]["low_s"] == 1.0


# -- when: by experience, or not at all --------------------------------------------------------


def test_by_experience_half_to_nine_tenths() -> None:
    world = World(1)
    world.holding("h", Tier.PREMIUM, user="bob")
    waits(world, "a")
    measured(world, *(10.0 * n for n in range(1, FEWEST)))
    sentence, facts = why(world, "a")
    assert facts["estimate"]["basis"] == "none"
    assert "only 4 waits of standard sessions for 1 device were measured yet" in sentence
    world = World(1)
    world.holding("h", Tier.PREMIUM, user="bob")
    waits(world, "a")
    measured(world, *(10.0 * n for n in range(1, 11)))
    measured(world, 9999.0, 9999.0, 9999.0, tier="basic")
    sentence, facts = why(world, "a")
    assert facts["estimate"] == {
        "basis": "experience",
        "why": "the 10 last waits of standard sessions for 1 device were 50 s to 90 s",
        "reason_code": "last_waits",
        "reason_args": {
            "wait": "devices",
            "tier": "standard",
            "needs": 1,
            "samples": 10,
            "low_s": 50.0,
            "high_s": 90.0,
        },
        "low_s": 50.0,
        "high_s": 90.0,
        "samples": 10,
        "after": None,
    }
    assert sentence.endswith(
        "expected in 50 s to 90 s, as the 10 last waits of standard sessions for 1 device were "
        "50 s to 90 s."
    )
    sentence, facts = why(world, "a", later=65.0)
    assert (facts["estimate"]["low_s"], facts["estimate"]["high_s"]) == (15.0, 35.0)
    assert sentence.endswith(
        "expected in 15 s to 35 s, as of the 10 last waits of standard sessions for 1 device those "
        "that were longer than 65 s (4) were 80 s to 100 s."
    )
    sentence, facts = why(world, "a", later=3000.0)
    assert facts["estimate"]["low_s"] is None
    assert sentence.endswith(
        "it cannot be said when: it has waited for 50 min, longer than the 10 last waits of "
        "standard sessions for 1 device (at most 100 s)."
    )


def test_a_queued_run_and_one_that_comes_back_by_the_waits_of_their_kind() -> None:
    world = World(1, "n1")
    world.join("n2", 1)
    measured(world, *[30.0] * FEWEST, what=Wait.START)
    measured(world, *[50.0] * FEWEST, what=Wait.RETURN)
    for sid in ("r1", "r2", "r3"):
        world.submit(sid)
    assert world["r3"].pending
    sentence, _ = why(world, "r3")
    assert "expected in about 30 s, as the 5 last waits of standard runs for a start" in sentence
    world = World(1, "n1")
    world.join("n2", 1)
    measured(world, *[50.0] * FEWEST, what=Wait.RETURN)
    world.holding("a")
    world.holding("b")
    world.do(adm.DutyAsked("root", world["a"].node, DutyEvent.DRAIN, "a fan"))
    world.answer()
    sentence, facts = why(world, "a")
    assert facts["place"] == 1
    assert "place 1 of the queue for nodes" in sentence
    assert facts["estimate"]["basis"] == "experience"
    assert "of standard sessions with 1 device to come back from the store were about 50 s" in (
        sentence
    )


@pytest.mark.parametrize("why_not", ["silent", "drained", "smaller", "quota"])
def test_no_time_is_promised_where_it_is_up_to_people(why_not: str) -> None:
    world = World(2)
    world.do(adm.QuotaAsked("root", VirtualCluster("team", 1, may_borrow=False)))
    world.holding("h", Tier.PREMIUM, 2 if why_not != "quota" else 1, user="bob")
    measured(world, *[10.0] * FEWEST)
    if why_not == "quota":
        for sid in ("q1", "q2"):
            spec = SessionSpec(Kind.INTERACTIVE, Tier.STANDARD, 1, sid, virtual_cluster="team")
            world.do(ev.SessionCreated(sid, "alice", spec))
            world.answer()
            world.need(sid)
            world.answer()
        assert "uses 1 of its 1 device and may not borrow" in why(world, "q2")[0]
        assert why(world, "q2")[1]["estimate"]["basis"] == "none"
        return
    waits(world, "a", devices=2)
    if why_not == "silent":
        world.do(ev.NodeAway("local"))
        said = "it cannot be said when: node local does not answer."
    elif why_not == "drained":
        world.do(ev.DrainAsked("local", "cpu:1", "root", "a fan"))
        said = "it cannot be said when: node local has only 1 device now."
    else:
        world.do(ev.DrainAsked("local", "cpu:0", "root", "a fan"))
        world.do(ev.DrainAsked("local", "cpu:1", "root", "a fan"))
        said = "it cannot be said when: node local has no device now."
    sentence, facts = why(world, "a")
    assert facts["estimate"]["low_s"] is None
    assert sentence.endswith(said)


# -- what was taken from it -----------------------------------------------------------------


def test_a_preempted_session_says_by_whom_which_rule_what_was_saved_and_when() -> None:
    world = World(1)
    world.holding("a", Tier.BASIC)
    world.create("b", Tier.PREMIUM, user="bob")
    world.need("b")
    sentence, facts = why(world, "a")
    assert world["a"].word == "parking"
    assert facts["preempted"]["saved"] == {
        "where": "node",
        "node": "local",
        "level": "device",
        "done": False,
        "stored": None,
    }
    assert (
        "; rule preempt.tier; its device state is being saved in the memory of node loc" in sentence
    )
    world.answer()
    sentence, facts = why(world, "a", later=5.0)
    assert sentence == (
        "alice/a is parked: paused for bob/b: premium goes before basic and needs 1 device; "
        "nothing is lost; it comes back with the next device call and running code just waits; "
        "rule preempt.tier; its device state is kept in the memory of node local; it cannot be "
        "said when: no waits of basic sessions for 1 device were measured yet."
    )
    about = facts["preempted"]
    assert (about["by"], about["tier"], about["rule"]) == ("bob/b", "premium", "preempt.tier")
    assert about["meaning"] == RULES["preempt.tier"]
    assert about["since_s"] == pytest.approx(world.now + 5.0 - world.state.experience.taken["a"].at)
    world.need("a")
    sentence, facts = why(world, "a")
    assert (
        "in use: cpu:0 by bob/b (premium, busy); before that: paused for bob/b: premium goes "
        "before basic and needs 1 device (rule preempt.tier); its device state is kept in the "
        "memory of node local; it cannot be said when"
    ) in sentence
    assert facts["preempted"]["by"] == "bob/b"
    world.do(ev.EndAsked("b", "bob"))
    world.answer()
    assert world["a"].word == "running"
    assert "preempted" not in why(world, "a")[1]
    assert world.state.experience.taken == {}


def test_a_parked_session_is_expected_when_its_devices_are_free() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    sentence, facts = why(world, "a")
    assert sentence == (
        "alice/a is parked: parked by alice: nothing is lost; it comes back with the next device "
        "call; rule user.park; its device state is kept in the memory of node local; expected less "
        "than 1 s after its next device call, as devices are free."
    )
    assert facts["preempted"]["by"] == "alice"
    assert facts["estimate"]["after"] == "its next device call"


def test_a_session_that_left_a_drained_node_says_what_is_in_the_store() -> None:
    world = World(1)
    world.holding("a")
    tell = adm.DutyAsked("root", "local", DutyEvent.DRAIN, "a fan", store=True)
    world.do(tell)
    sentence, facts = why(world, "a")
    assert "everything of it goes to the store; nothing is lost" in sentence
    assert "; rule node.drain; it cannot be said when: no node can take it as" in sentence
    assert facts["preempted"]["saved"] == {"where": "store", "level": "process", "done": False}
    world.answer()
    world.now = 1300.0
    sentence, facts = why(world, "a")
    newest = world["a"].newest_whole
    assert newest is not None
    about = facts["preempted"]
    assert (about["by"], about["rule"]) == ("root", "node.drain")
    assert about["saved"] == {
        "where": "store",
        "level": "process",
        "done": True,
        "checkpoint": newest.id,
        "name": "",
        "bytes": 1 << 30,
        "age_s": pytest.approx(1300.0 - newest.at),
    }
    assert f"everything of it is in checkpoint '{newest.id}' (1 GiB, 5 min old)" in sentence
    assert sentence.endswith("it cannot be said when: no node can take it as things are.")
    world.do(adm.DutyAsked("root", "local", DutyEvent.UNDRAIN))
    world.answer()
    assert "preempted" not in why(world, "a")[1]


def test_a_session_that_left_a_spot_machine_and_one_whose_node_is_gone() -> None:
    world = World(2, "n1")
    for sid in ("a", "b"):
        world.holding(sid)
        world.do(ev.CheckpointAsked(sid, "alice", "good"))
        world.answer()
    world.do(adm.NoticeGiven("n1", world.now + 30.0))
    [first] = [a for a in world.pending if a.session == "a"]
    world.pending.clear()
    world.do(outcome(first))
    sentence, facts = why(world, "a")
    assert (facts["preempted"]["rule"], facts["preempted"]["by"]) == ("node.notice", None)
    newest = world["a"].newest_whole
    assert newest is not None
    assert facts["preempted"]["saved"]["checkpoint"] == newest.id
    world.join("n2", 1)
    world.do(ev.NodeLost("n1", 60.0, True, True))
    assert world["b"].word in ("suspended", "resuming")
    sentence, facts = why(world, "b")
    assert facts["preempted"]["rule"] == "node.lost"
    assert facts["preempted"]["saved"]["name"] == "good"
    assert "node n1 has been gone for 60 s: it goes on from checkpoint 'good'" in sentence


def test_a_suspended_session_is_expected_as_resumes_were() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    assert why(world, "a")[1]["estimate"]["basis"] == "none"
    world.do(ev.ResumeAsked("a", "alice"))
    world.now += 11.0
    world.answer()
    world.do(ev.SuspendAsked("a", "alice"))
    world.answer()
    sentence, _ = why(world, "a")
    assert sentence.count("in checkpoint") == 1
    assert sentence.endswith(
        "before that: suspended by alice (rule user.suspend); expected about 12 s after it is "
        "asked for, as a resume takes about 12 s on node local (1 measured), when a node has room."
    )


def test_who_took_it_is_known_of_every_reason_that_says_so() -> None:
    world = World(2)
    world.holding("a", Tier.BASIC)
    world.create("b", Tier.PREMIUM, user="bob")
    a, b = world["a"], world["b"]
    mark = NodeMark("n1", by="root", reason="a fan")
    one = replace(a, virtual_cluster="x")
    other = replace(b, virtual_cluster="y")
    held = replace(a, held_by="root")
    assert reasons.paused_idle(b).by == "bob/b"
    assert reasons.paused_lower(a, b).by == "bob/b"
    assert reasons.paused_borrower(one, other).by == "bob/b"
    assert reasons.paused_for_turn(a, b).by == "bob/b"
    assert reasons.paused_for_guarantee(a, b).by == "bob/b"
    assert reasons.paused_for_slice(a, b).by == "bob/b"
    assert reasons.paused_for_long_wait(a, b).by == "bob/b"
    assert reasons.paused_lower(a, b).tier == reasons.paused_idle(b).tier == "premium"
    assert reasons.paused_for_turn(a, b).tier is None
    assert reasons.goes_elsewhere(a, "n2").by is None
    assert reasons.parked_by("alice").by == "alice"
    assert reasons.parked_idle(900.0, 600.0).by is None
    assert reasons.held_back(held).by == "root"
    assert move_reasons.suspending("alice").by == "alice"
    assert move_reasons.suspending("alice", "its server was stopped").by == "alice"
    drained = replace(mark, duty=adm.NodeDuty.DRAINING)
    assert move_reasons.drained(drained, True, True).by == "root"
    assert move_reasons.drained(replace(drained, reason=""), True, True).by == "root"
    assert move_reasons.drained(replace(drained, by=""), True, True).by is None
    assert reasons.moved_off("cpu:0", "a fan", "root").by == "root"
    assert reasons.moved_off("cpu:0", "too hot", "").by is None
    assert reasons.lapsed().by is None
    assert set(RULES) >= TAKES >= {rule for rule in RULES if rule.startswith("preempt.")}


# -- the history says the same, and remembers ---------------------------------------------------


def test_a_line_of_history_is_what_why_says_at_that_moment() -> None:
    world = World(1)
    world.holding("a", Tier.BASIC)
    world.create("b", Tier.PREMIUM, user="bob")
    for event in (ev.DeviceNeeded("b"), ev.Parked("a", 1), ev.DeviceNeeded("a")):
        decision = world.do(event)
        written = told(world.state, decision, world.now)
        assert [c.rule for c in written.history] == [c.rule for c in decision.history]
        assert written.sessions == decision.sessions, "what is decided stays as it is"
        last = {change.session: reads(change) for change in written.history}
        assert last
        for sid, reason in last.items():
            assert why(world, sid)[0] == f"{world[sid].label} is {world[sid].word}: {reason}."


def test_what_was_learnt_is_found_again_in_the_ledgers_history() -> None:
    world = World(1)
    world.holding("a", Tier.BASIC)
    for round_ in range(3):
        name = f"b{round_}"
        world.create(name, Tier.PREMIUM, user="bob")
        world.need(name)
        world.now += 2.0
        world.answer()
        world.need("a")
        world.now += 10.0 * (round_ + 1)
        world.do(ev.EndAsked(name, "bob"))
        world.answer()
    world.do(ev.ParkAsked("a", "alice"))
    world.answer()
    known = Of("basic", 1, "local")
    top = Of("premium", 1, "local")
    lines = [(change, known if change.session == "a" else top) for change in world.history]
    again = Experience()
    again.replay(lines)
    live = world.state.experience
    for tier in ("basic", "premium", "standard"):
        for what in Wait:
            assert again.waits(what, tier, 1) == live.waits(what, tier, 1)
    for step in Step:
        assert again.steps(step, "local") == live.steps(step, "local")
    assert len(live.waits(Wait.DEVICES, "basic", 1)) == 3
    assert again.taken == live.taken
    assert again.taken == {
        "a": Taken(live.taken["a"].at, "user.park", because("parked_by", by="alice"), False)
    }


def test_how_long_steps_took_is_not_said_of_a_node_that_the_session_went_to_later() -> None:
    world = World(1, "n1")
    world.holding("a")
    world.join("n2", 1)
    world.do(ev.MigrateAsked("a", "alice", node="n2"))
    world.answer()
    assert (world["a"].node, world["a"].word) == ("n2", "running")
    today = Of("standard", 1, "n2")
    again, live = Experience(), world.state.experience
    again.replay(placed([(change, today) for change in reversed(world.history)])[::-1])
    assert len(live.steps(Step.ATTACH, "n1")) == len(live.steps(Step.SUSPEND, "n1")) == 1
    for step in Step:
        assert again.steps(step, "n2") == live.steps(step, "n2")
        assert again.steps(step, "n1") == again.steps(step, "") == ()
    assert len(again.steps(Step.RESUME, "n2")) == len(again.steps(Step.ATTACH, "n2")) == 1


def test_only_so_many_are_kept_and_who_is_held_back_does_not_count() -> None:
    world = World(1)
    measured(world, *(float(n) for n in range(1, 2 * KEPT)))
    assert world.state.experience.waits(Wait.DEVICES, "standard", 1) == tuple(
        float(n) for n in range(KEPT, 2 * KEPT)
    )
    world = World(1)
    world.holding("a")
    world.do(ev.PreemptAsked("a", "root"))
    world.answer()
    world.need("a")
    world.now += 500.0
    world.do(ev.ResumeAsked("a", "root"))
    world.answer()
    assert world["a"].word == "running"
    assert [s for s in world.state.experience.waits(Wait.DEVICES, "standard", 1) if s > 400] == []
