"""A seeded stream of everything that can happen to a cluster's allocation, in any order: people,
agents that succeed, fail, answer late and twice, nodes that go and come, and administrators."""

from __future__ import annotations

from random import Random

from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim
from support.allocations import World

Line = tuple[float, str, ev.Id, str, int, tuple[tuple[int, int], ...]]
"""(when, what, whom, rule, epoch, masks by node) of an action."""


class Noise:
    """One cluster and its bad luck. `forget`: before each decision, all that is remembered of
    searches that failed is forgotten. `fixed`: parameters that are always these."""

    def __init__(self, seed: int, forget: bool = False, **fixed: object) -> None:
        self.random = r = Random(seed)
        self.forget = forget
        self.fixed = fixed
        self.events = 0
        self.lines: list[Line] = []
        self.answers: list[ev.Event] = []
        """What agents have to say, not yet told."""
        self.old: list[ev.Event] = []
        """What they said already: they may say it again."""
        self.elsewhere: list[Claim] = []
        """Those that wait in another cluster for now."""
        self.number = 0
        self.world = World(**self.parameters())
        self.nodes = {f"n{i}": r.choice((2, 4, 4, 8)) for i in range(r.randint(2, 4))}
        for id in self.nodes:
            self.up(id)
        self.tell(ev.Quota("a", r.randint(0, 6)))
        self.tell(ev.Quota("b", r.randint(0, 6), False))

    def parameters(self) -> dict[str, object]:
        r = self.random
        return {
            "idle_soft_s": r.choice((0.0, 300.0)),
            "idle_grace_s": r.choice((0.0, 30.0)),
            "min_run_s": r.choice((0.0, 60.0)),
            "quantum_s": r.choice((1.0, 300.0)),
            "premium_fraction": 0.95,
            "standard_fraction": 0.7,
            "sla_window_s": r.choice((600.0, 3600.0)),
            "headroom_fraction": r.choice((0.0, 0.0, 0.2)),
            "las_thresholds_device_s": r.choice(((), (200.0, 2000.0))),
            "defrag_interval_s": r.choice((0.0, 120.0)),
            "starve_s": r.choice((0.0, 900.0)),
            "backfill_depth": r.choice((0, 1, 100)),
            **self.fixed,
        }

    def up(self, id: str) -> None:
        size = self.nodes[id]
        half = (1 << size // 2) - 1
        islands = self.random.choice(((), (half,), (half, half << size // 2)))
        pool = "other" if id == "n3" else ""
        self.tell(ev.NodeUp(id, size, f"r{self.random.randint(0, 1)}", islands, pool))

    def tell(self, event: ev.Event) -> None:
        if self.forget:
            for pool in self.world.state.pools.values():
                pool.freed()
        self.events += 1
        for action in self.world.tell(event):
            self.follow(action)

    def follow(self, action: do.Action) -> None:
        claim, world = action.claim, self.world
        placement = getattr(action, "placement", None) or {}
        self.lines.append(
            (
                world.at,
                type(action).__name__,
                claim.id,
                action.rule,
                action.epoch,
                tuple(sorted(placement.items())),
            )
        )
        works = self.random.random() < 0.9
        if isinstance(action, do.Preempt):
            answer = ev.Left if works else ev.LeaveFailed
            self.answers.append(answer(claim.id, action.epoch))
        elif isinstance(action, do.Resize | do.Migrate):
            done = ev.Changed if works else ev.ChangeFailed
            self.answers.append(done(claim.id, action.epoch))

    def step(self) -> None:
        """Time goes on, and something happens."""
        at = self.world.at + self.random.expovariate(1 / 40)
        while self.world.state.next_due <= at:
            self.world.at = max(self.world.at, self.world.state.next_due)
            self.tell(ev.Tick())
        self.world.at = at
        event = self.event()
        if event is not None:
            self.tell(event)

    def event(self) -> ev.Event | None:
        r, state = self.random, self.world.state
        ids = list(state.claims)
        x = r.random()
        if x < 0.25 and len(ids) < 12:
            return ev.Submit(self.claim())
        if x < 0.55 and self.answers:
            answer = self.answers.pop(r.randrange(len(self.answers)))
            self.old = [*self.old[-9:], answer]
            return answer
        if x < 0.6 and self.old:
            return r.choice(self.old)
        if x < 0.57 and self.elsewhere:
            return ev.Submit(self.elsewhere.pop(r.randrange(len(self.elsewhere))))
        if x < 0.58 and state.queue.waiting:
            self.elsewhere.append(r.choice(list(state.queue.waiting)))
            return ev.Depart(self.elsewhere[-1].id)
        if x < 0.94 and ids:
            kinds = (ev.Finish, ev.Idle, ev.Idle, ev.Busy, ev.Want, ev.Want, ev.Release)
            return r.choice(kinds)(r.choice(ids))
        if x < 0.96:
            kind = r.choice((ev.Drain, ev.Cordon, ev.Uncordon, ev.Uncordon))
            return kind(r.choice(list(self.nodes)))
        if x < 0.98:
            node = r.choice(list(self.nodes))
            found = state.node(node)
            assert found is not None
            if not found[1].lost:
                return ev.NodeLost(node)
            self.up(node)
        elif x < 0.99:
            quota = None if r.random() < 0.1 else r.randint(0, 8)
            return ev.Quota(r.choice("ab"), quota, r.random() < 0.5)
        elif x < 0.993:
            state.use(state.parameters.changed(**self.parameters()))
        return None

    def claim(self) -> Claim:
        r = self.random
        self.number += 1
        devices = r.choice((1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12))
        elastic = devices > 1 and r.random() < 0.4
        minimum = r.randint(1, devices) if elastic else 0
        counts: tuple[int, ...] = ()
        if elastic and r.random() < 0.5:
            counts = tuple(sorted({minimum, devices, r.randint(minimum, devices)}))
        return Claim(
            self.number,
            devices,
            tier=r.randint(0, 2),
            priority=r.randint(0, 2),
            kind=r.choice(("batch", "interactive")),
            minimum=minimum,
            counts=counts,
            interval_s=r.choice((0.0, 100.0)) if elastic else 0.0,
            virtual_cluster=r.choice(("", "", "a", "b")),
            pool=r.choice(("", "", "", "other")),
            costs=r.choice(((0.0, 0.0, 0.0), (2.0, 1.0, 5.0), (60.0, 30.0, 90.0))),
        )
