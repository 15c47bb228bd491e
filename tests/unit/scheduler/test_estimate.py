"""Estimates are compared with what then happened, in a cluster under load."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest
from singularity_scheduler.core.policy import decide
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.administration import Administration
from singularity_scheduler.core.values.requested import Kind, SessionSpec, Tier
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.explain.estimate import Basis, Estimate, estimate
from singularity_scheduler.text.phrases import short, span, stored
from singularity_scheduler.text.reasons import render
from support.scheduler_core import AT_ONCE, devices_of, outcome

TAKES_S = {ev.Start: 0.8, ev.Attach: 0.5, ev.Park: 1.5, ev.End: 0.1}
"""Seconds that a node needs for each action."""

DEVICES = 8
MEAN_S = 120.0
"""Mean time for which a session needs its device, over all of its turns."""


class Busy:
    """A node whose sessions of all tiers come at random, need a device for a while and end."""

    def __init__(self, seed: int, sessions: int, load: float) -> None:
        self.state = ClusterState()
        self.state.govern(Administration(defaults=AT_ONCE))
        self.now = 0.0
        self.seen: list[tuple[Estimate, float]] = []
        """What was said when a wait began, and how long it was."""
        self._random = random.Random(seed)
        self._number = 0
        self._heap: list[tuple[float, int, ev.Event]] = []
        self._said: dict[str, tuple[float, Estimate]] = {}
        self.do(ev.NodeJoined("n", devices_of("n", DEVICES), ()))
        at = 0.0
        for number in range(sessions):
            at += self._random.expovariate(load * DEVICES / MEAN_S)
            tier = self._random.choice([Tier.PREMIUM, Tier.STANDARD, Tier.BASIC, Tier.BASIC])
            spec = SessionSpec(Kind.INTERACTIVE, tier, 1, f"s{number}")
            self._later(at, ev.SessionCreated(f"s{number}", "alice", spec))
        while self._heap:
            self.now, _, event = heapq.heappop(self._heap)
            self.do(event)

    def do(self, event: ev.Event) -> None:
        if isinstance(event, ev.EndAsked):
            view = self.state.sessions.get(event.session)
            if view is None or (view.device_state, str(view.epoch)) != (DeviceState.HELD, event.by):
                return  # it lost its device before it had done its work
        decision = decide(self.state, event, self.now)
        self.state.apply(decision)
        self.state.experience.learn(decision)
        for action in decision.actions:
            self._later(self.now + TAKES_S[type(action)], outcome(action))
        self._look()
        session = getattr(event, "session", "")
        view = self.state.sessions.get(session)
        if isinstance(event, ev.Started | ev.Parked) and view is not None:
            self.do(ev.DeviceNeeded(session))
        elif isinstance(event, ev.Attached) and view is not None:
            work_s = self._random.expovariate(1 / MEAN_S)
            self._later(self.now + work_s, ev.EndAsked(session, str(view.epoch)))

    def _later(self, at: float, event: ev.Event) -> None:
        self._number += 1  # of equal times the first
        heapq.heappush(self._heap, (at, self._number, event))

    def _look(self) -> None:
        waiting = {key[-1] for key in self.state.nodes["n"].queue} if self.state.nodes else set()
        for sid in waiting - self._said.keys():
            found = estimate(self.state, self.state.sessions[sid], self.now)
            assert found is not None
            self._said[sid] = (self.now, found)
        for sid in self._said.keys() - waiting:
            began, found = self._said.pop(sid)
            self.seen.append((found, self.now - began))


def test_waits_end_when_it_was_said_more_often_than_not() -> None:
    seen = Busy(seed=1, sessions=500, load=0.85).seen
    kinds = Counter(found.basis for found, _ in seen)
    assert kinds[Basis.CERTAIN] > 100
    assert kinds[Basis.EXPERIENCE] > 100
    # What a node needs is constant here, so what is certain is met to the second.
    for found, waited in seen:
        if found.basis is Basis.CERTAIN and found.low_s is not None:
            assert abs(waited - found.low_s) < 2.0, (found, waited)
    said = [(f.low_s, f.high_s, w) for f, w in seen if f.basis is Basis.EXPERIENCE]
    half = sum(waited <= (low or 0.0) for low, _, waited in said) / len(said)
    most = sum(waited <= (high or 0.0) for _, high, waited in said) / len(said)
    assert 0.35 < half < 0.65
    assert 0.65 < most < 0.97


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, 0.4, "less than 1 s"),
        (0.4, 2.0, "less than 1 s to 2.0 s"),
        (3.04, 3.01, "about 3.0 s"),
        (20.0, 180.0, "20 s to 3 min"),
        (200.0, 205.0, "about 3 min"),
    ],
)
def test_spans_are_read_by_people(low: float, high: float, said: str) -> None:
    assert span(low, high) == said
    assert short(59.6) == "60 s"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("before lr", "checkpoint 'before lr'"),
        ("20261125T135016-d4aae8b5", "the checkpoint of 2026-11-25 13:50:16 UTC"),
        ("20261125T135016-d4aae8b5 ", "checkpoint '20261125T135016-d4aae8b5 '"),
        ("\u06620261125T135016-d4aae8b5", "checkpoint '\u06620261125T135016-d4aae8b5'"),
    ],
)
def test_a_checkpoint_without_a_name_is_known_by_its_time(name: str, said: str) -> None:
    assert stored(name) == said


def test_reasons_name_no_checkpoint_by_its_id() -> None:
    called = because("called", by="ada", name="20261125T135016-d4aae8b5")
    assert "from the checkpoint of 2026-11-25 13:50:16 UTC" in render(called)
