"""Hypothesis looks for an order of events that breaks the allocation of one small cluster, and
shrinks it. `World.tell` checks every invariant, every action and its right after each of them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from support.allocations import Stage, World

NODES = ("n0", "n1", "n2")
TEAMS = ("", "a", "b")


class AllocationMachine(RuleBasedStateMachine):
    """People, agents that answer late, twice or not at all, nodes that come and go."""

    @initialize(
        sizes=st.tuples(*[st.integers(1, 4)] * len(NODES)),
        headroom=st.sampled_from((0.0, 0.3)),
        depth=st.sampled_from((0, 100)),
        levels=st.sampled_from(((), (50.0, 400.0))),
        defragment=st.sampled_from((0.0, 60.0)),
        patience=st.sampled_from((0.0, 300.0)),
    )
    def build(
        self,
        sizes: tuple[int, ...],
        headroom: float,
        depth: int,
        levels: tuple[float, ...],
        defragment: float,
        patience: float,
    ) -> None:
        self.world = World(
            headroom_fraction=headroom,
            backfill_depth=depth,
            las_thresholds_device_s=levels,
            defrag_interval_s=defragment,
            starve_s=patience,
            idle_soft_s=200.0,
            idle_grace_s=10.0,
            min_run_s=20.0,
            quantum_s=30.0,
            premium_fraction=0.9,
            standard_fraction=0.5,
            sla_window_s=600.0,
        )
        self.sizes = dict(zip(NODES, sizes, strict=True))
        self.number = 0
        self.asked: list[do.Action] = []
        """Actions that an agent may answer, or has answered already."""
        for node in NODES:
            self.tell(ev.NodeUp(node, self.sizes[node]))

    def tell(self, event: ev.Event) -> None:
        self.asked += [a for a in self.world.tell(event) if not isinstance(a, do.Grant | do.Lost)]

    def session(self, data: st.DataObject) -> ev.Id:
        return data.draw(st.sampled_from(sorted(self.world.state.claims, key=str)), label="id")

    def sessions(self) -> bool:
        return bool(self.world.state.claims)

    @precondition(lambda self: len(self.world.state.claims) < 8)
    @rule(
        devices=st.integers(1, 6),
        least=st.integers(0, 6),
        tier=st.integers(0, 2),
        priority=st.integers(0, 2),
        notebook=st.booleans(),
        team=st.sampled_from(TEAMS),
        interval_s=st.sampled_from((0.0, 40.0)),
        cost_s=st.sampled_from((0.0, 5.0)),
    )
    def submit(
        self,
        devices: int,
        least: int,
        tier: int,
        priority: int,
        notebook: bool,
        team: str,
        interval_s: float,
        cost_s: float,
    ) -> None:
        self.number += 1
        claim = Claim(
            self.number,
            devices,
            tier=tier,
            priority=priority,
            kind="interactive" if notebook else "batch",
            minimum=min(least, devices),
            interval_s=interval_s,
            virtual_cluster=team,
            costs=(cost_s, cost_s, cost_s),
        )
        self.tell(ev.Submit(claim))

    @precondition(sessions)
    @rule(data=st.data(), what=st.sampled_from((ev.Idle, ev.Busy, ev.Want, ev.Release, ev.Finish)))
    def people(self, data: st.DataObject, what: Callable[[ev.Id], ev.Event]) -> None:
        self.tell(what(self.session(data)))

    @precondition(lambda self: bool(self.asked))
    @rule(data=st.data(), works=st.booleans(), again=st.booleans())
    def answer(self, data: st.DataObject, works: bool, again: bool) -> None:
        """In any order, however late; `again`: it may come once more."""
        number = data.draw(st.integers(0, len(self.asked) - 1), label="of which action")
        action = self.asked[number] if again else self.asked.pop(number)
        leaves = isinstance(action, do.Preempt)
        done, failed = (ev.Left, ev.LeaveFailed) if leaves else (ev.Changed, ev.ChangeFailed)
        self.tell((done if works else failed)(action.claim.id, action.epoch))

    @rule(node=st.sampled_from(NODES), what=st.sampled_from((ev.Drain, ev.Cordon, ev.Uncordon)))
    def administrator(self, node: str, what: Callable[[str], ev.Event]) -> None:
        self.tell(what(node))

    @rule(node=st.sampled_from(NODES))
    def node_goes_or_comes(self, node: str) -> None:
        found = self.world.state.node(node)
        assert found is not None
        self.tell(ev.NodeUp(node, self.sizes[node]) if found[1].lost else ev.NodeLost(node))

    @rule(team=st.sampled_from(TEAMS[1:]), devices=st.integers(0, 6), may_borrow=st.booleans())
    def quota(self, team: str, devices: int, may_borrow: bool) -> None:
        self.tell(ev.Quota(team, devices, may_borrow))

    @rule(seconds=st.sampled_from((1.0, 15.0, 50.0, 400.0)))
    def time_goes_on(self, seconds: float) -> None:
        until = self.world.at + seconds
        while self.world.state.next_due <= until:
            self.world.at = max(self.world.at, self.world.state.next_due)
            self.tell(ev.Tick())
        self.world.at = until

    @invariant()
    def whoever_leaves_was_asked(self) -> None:
        asked = {(action.claim.id, action.epoch) for action in self.asked}
        for claim in self.world.state.claims.values():
            if claim.stage in (Stage.LEAVING, Stage.RESIZING, Stage.MOVING):
                assert claim.epoch == self.world.epochs[claim.id]
        assert len(asked) == len(self.asked)

    def teardown(self) -> None:
        """When all agents have answered and all nodes are open, nobody is on its way for ever."""
        if not hasattr(self, "world"):
            return
        state = self.world.state
        for node in NODES:
            found = state.node(node)
            if found is not None and found[1].lost:
                self.tell(ev.NodeUp(node, self.sizes[node]))
            self.tell(ev.Uncordon(node))
        for _ in range(200):
            going = [c for c in state.claims.values() if c.stage in ON_THE_WAY]
            if not going:
                break
            for claim in going:
                self.tell(ev.Left(claim.id, claim.epoch))
                self.tell(ev.Changed(claim.id, claim.epoch))
        stuck = [c.id for c in state.claims.values() if c.stage in (*ON_THE_WAY, Stage.GATHERING)]
        assert not stuck


ON_THE_WAY = (Stage.LEAVING, Stage.RESIZING, Stage.MOVING)

AllocationMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAllocation = AllocationMachine.TestCase
