"""A cluster's allocation for tests: told events, checked after each of them, asked by name."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import engine, invariants
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import BASIC, PREMIUM, STANDARD, Claim, Stage
from singularity_scheduler.core.allocation.state import Allocation
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.text.errors import in_words

__all__ = ["BASIC", "PREMIUM", "STANDARD", "Claim", "Stage", "World", "quiet"]


def quiet(**changed: Any) -> Parameters:
    """Parameters under which nothing happens by itself; `changed` is what a test is about."""
    usual: dict[str, Any] = {
        "idle_soft_s": 0.0,
        "idle_grace_s": 0.0,
        "min_run_s": 0.0,
        "quantum_s": 100.0,
        "premium_fraction": 0.0,
        "standard_fraction": 0.0,
        "basic_fraction": 0.0,
        "headroom_fraction": 0.0,
        "las_thresholds_device_s": (),
        "defrag_interval_s": 0.0,
        "starve_s": 0.0,
        "backfill_depth": 100,
    }
    return Parameters(**usual | changed)


def by_right(action: do.Action) -> None:
    """What is taken from somebody may be taken from it, by the rule that is named."""
    claim, cause, rule = action.claim, action.cause, action.rule
    if cause is None or not isinstance(action, do.Preempt | do.Resize):
        return
    assert claim.cause == cause.id
    assert claim.rule == rule
    if rule == "preempt.idle":
        assert not claim.busy
    elif rule == "shrink":
        assert claim.busy
        assert claim.tier <= cause.tier
    elif rule == "preempt.tier":
        assert claim.tier < cause.tier
    else:
        right = {
            "preempt.borrowed": claim.borrowed,
            "preempt.slice": claim.shares and cause.shares,
            "preempt.service": claim.level > cause.level,
            "preempt.starves": cause.starves and claim.level == cause.level > 0,
            "preempt.guarantee": cause.at_risk,
        }
        assert claim.tier == cause.tier
        assert right[rule]


class World:
    """One cluster. `at` is the time; events are told at it."""

    def __init__(self, *sizes: int, islands: tuple[int, ...] = (), **changed: Any) -> None:
        self.state = Allocation(quiet(**changed))
        self.at = 0.0
        self.epochs: dict[ev.Id, int] = {}
        self.actions: list[do.Action] = []
        for number, size in enumerate(sizes):
            self.tell(ev.NodeUp(f"n{number}", size, islands=islands))

    def tell(self, event: ev.Event, at: float | None = None) -> list[do.Action]:
        """One decision, with all that must hold after it."""
        if at is not None:
            self.until(at)
        with in_words():
            self.actions = engine.decide(self.state, event, self.at)
        invariants.check(self.state)
        for action in self.actions:
            assert action.rule in do.RULES
            assert action.cause is not None or "{cause}" not in do.RULES[action.rule]
            id = action.claim.id
            assert action.epoch > self.epochs.get(id, 0), "an epoch came twice"
            self.epochs[id] = action.epoch
            by_right(action)
        return self.actions

    def until(self, at: float) -> list[do.Action]:
        """Let time go on, with the ticks that are asked for."""
        done: list[do.Action] = []
        while self.state.next_due <= at:
            self.at = max(self.at, self.state.next_due)
            done += self.tell(ev.Tick())
        self.at = max(self.at, at)
        return done

    def submit(self, id: ev.Id, devices: int, at: float | None = None, **more: Any) -> Claim:
        claim = Claim(id, devices, **more)
        self.tell(ev.Submit(claim), at)
        return claim

    def finish(self, id: ev.Id, at: float | None = None) -> list[do.Action]:
        return self.tell(ev.Finish(id), at)

    def left(self, claim: Claim, at: float | None = None) -> list[do.Action]:
        return self.tell(ev.Left(claim.id, claim.epoch), at)

    def changed(self, claim: Claim, at: float | None = None) -> list[do.Action]:
        return self.tell(ev.Changed(claim.id, claim.epoch), at)

    def done(self) -> list[tuple[str, ev.Id, str]]:
        """(what, whom, by which rule) of the last decision."""
        return [(type(a).__name__, a.claim.id, a.rule) for a in self.actions]

    def where(self, claim: Claim) -> dict[str, int]:
        """node -> how many of its devices the claim has."""
        nodes = self.state.pool_of(claim).nodes
        return {nodes[i].id: mask.bit_count() for i, mask in claim.given.items()}

    def lane(self) -> list[ev.Id]:
        """Who waits."""
        return [claim.id for claim in self.state.queue.waiting]
