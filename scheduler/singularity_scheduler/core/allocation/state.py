"""`Allocation`: the devices of a cluster, who has them, who waits; and the few steps that all
decisions consist of. Nothing here chooses anything."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.states import refuse_step

from . import actions as do
from .claims import Claim, Stage
from .events import Id
from .pool import Node, Placement, Pool, pick
from .queue import Queue
from .sla import Account
from .victims import entries

_WITH_DEVICES = (Stage.HELD, Stage.GATHERING, Stage.LEAVING, Stage.RESIZING, Stage.MOVING)

NEVER: Final = 1e18

SERVE_EVERY_S: Final = 10.0
"""Those who wait until others may be asked to leave are looked at this often at most."""

LEVEL: Final = 0
IDLE: Final = 1
SERVE: Final = 2
RISK: Final = 3
GROW: Final = 4
DEFRAGMENT: Final = 5
EVICT: Final = 6
"""What a timer is for."""


def _means(kind: int, claim: Claim, mark: float) -> bool:
    """Whether the timer of a claim still means something."""
    if kind == RISK:
        return claim.stage is Stage.WAITING and claim.token == mark
    if kind == IDLE:
        return claim.stage is Stage.HELD and claim.idle_since == mark
    return claim.stage is Stage.HELD and claim.epoch == mark


@dataclass(slots=True)
class VirtualCluster:
    """`own`: devices held within the quota, or about to be; those held beyond it are
    `borrowers`'."""

    devices: int
    may_borrow: bool = True
    own: int = 0
    borrowers: dict[Claim, None] = field(default_factory=dict)


def _fractions(parameters: Parameters) -> tuple[float, float, float]:
    return (
        parameters.basic_fraction,
        parameters.standard_fraction,
        parameters.premium_fraction,
    )


class Allocation:
    """The state that `engine.decide` works on. One per cluster."""

    def __init__(self, parameters: Parameters | None = None, name: str = "") -> None:
        self.name = name
        self.claims: dict[Id, Claim] = {}
        self.pools: dict[str, Pool] = {}
        self.nowhere = Pool()
        """For those whose devices no node has yet."""
        self.queue = Queue()
        self.quotas: dict[str, VirtualCluster] = {}
        self.due: list[tuple[float, int, int, Claim | None, float]] = []
        """Heap of (when, number, what for, whose, mark that tells whether it still means
        something)."""
        self.actions: list[do.Action] = []
        """Of the decision in the making."""
        self.moved = False
        """Devices were taken or became free in this decision."""
        self.stirred = False
        """Somebody waiting may find a place now."""
        self.touched: dict[Node, None] = {}
        """Nodes on which devices became free in this decision."""
        self.serve_at = NEVER
        """When the next SERVE timer is due."""
        self.served_at = -NEVER
        """When the last one was."""
        self.held = 0
        """Devices that somebody has, or that are kept for somebody who gathers."""
        self.defragments = False
        """The timer of the background's moves is set."""
        self.used_headroom: dict[Pool, None] = {}
        """Where premium sessions took devices in this decision."""
        self.refilling: dict[Pool, list[Claim]] = {}
        """Who was asked to leave to make up for that; see `headroom`."""
        self._order = 0
        self._timers = 0
        self.forgets = True
        """Timers of claims that mean nothing any more are forgotten."""
        self.parameters = parameters = parameters or Parameters()
        self.account = Account(parameters.sla_window_s, _fractions(parameters))

    def use(self, parameters: Parameters) -> None:
        """Decide by these parameters from now on."""
        self.parameters = parameters
        self.account.use(parameters.sla_window_s, _fractions(parameters), self.claims.values())
        self.stirred = True
        for pool in self.pools.values():
            pool.freed()
        if self.pools:
            self.defragment_later(0.0)  # with the next tick

    @property
    def next_due(self) -> float:
        """When the next `Tick` is needed."""
        due = self.due
        while due:
            at, _, kind, claim, mark = due[0]
            if claim is None or not self.forgets or _means(kind, claim, mark):
                return at
            heappop(due)
        return NEVER

    def pool_of(self, claim: Claim) -> Pool:
        """The devices that this claim may get."""
        pool = self.pools.get(claim.pool)
        if pool is None and not claim.pool:
            pool = next(iter(self.pools.values()), None)
        return pool or self.nowhere

    def node(self, id: str) -> tuple[Pool, Node] | None:
        for pool in self.pools.values():
            if (node := pool.by_id.get(id)) is not None:
                return pool, node
        return None

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def timer(self, at: float, kind: int, claim: Claim | None = None, mark: float = 0.0) -> None:
        """Have `Tick` look at `claim` at this time, if its mark is the same then."""
        self._timers += 1
        heappush(self.due, (at, self._timers, kind, claim, mark))

    def serve_later(self, at: float) -> None:
        """Look again at who waits, at this time or a little later."""
        at = max(at, self.served_at + SERVE_EVERY_S)
        if at < self.serve_at:
            self.serve_at = at
            self.timer(at, SERVE, None, at)

    def defragment_later(self, at: float) -> None:
        """Look for moves in the background from this time on, if there are to be any."""
        if not self.defragments and self.parameters.defrag_interval_s:
            self.defragments = True
            self.timer(at, DEFRAGMENT)

    # -- devices ----------------------------------------------------------------------------

    def take(self, pool: Pool, claim: Claim, placement: Placement) -> dict[int, int]:
        """Free devices, as many on each node as `placement` says, are the claim's; their masks.
        The caller puts them into the claim and counts it (`recount`)."""
        masks = {}
        for index, count in placement.items():
            node = pool.nodes[index]
            mask = pick(node.free, count, node.islands)
            node.free &= ~mask
            node.holders[claim] = node.holders.get(claim, 0) | mask
            masks[index] = mask
        self._use(claim, sum(placement.values()))
        return masks

    def drop(self, pool: Pool, claim: Claim, masks: dict[int, int]) -> None:
        """These devices of the claim are free; as `take`."""
        count = 0
        for index, mask in masks.items():
            node = pool.nodes[index]
            rest = node.holders[claim] & ~mask
            if rest:
                node.holders[claim] = rest
            else:
                del node.holders[claim]
            count += mask.bit_count()
            if not node.lost:
                node.free |= mask
                self.touched[node] = None
        self._use(claim, -count)
        self.stirred = True
        self._settle(claim.virtual_cluster)

    def recount(self, pool: Pool, claim: Claim) -> None:
        """Let the pool's indices follow what the claim has and how it is classed."""
        pool.count_in(claim, entries(claim))

    def _use(self, claim: Claim, count: int) -> None:
        self.moved = True
        self.held += count
        if self.quotas and claim.stage is not Stage.GATHERING:
            self._charge(claim, count)

    def _charge(self, claim: Claim, count: int) -> None:
        quota = self.quotas.get(claim.virtual_cluster)
        if quota is not None and not claim.borrowed:
            quota.own += count
            if count > 0:  # who borrows now goes behind others
                self.moved_up()

    # -- steps ------------------------------------------------------------------------------

    def wait(self, claim: Claim, now: float) -> None:
        """It wants devices; whether it has to queue for them is seen next."""
        self.account.advance(claim, now)
        claim.stage = Stage.WAITING
        self.relevel(claim)
        if claim.waiting_since is None:
            claim.waiting_since = now
            claim.turn = self.next_order()

    def enqueue(self, claim: Claim, now: float) -> None:
        """It waits for devices in the queue."""
        self.wait(claim, now)
        self.line_up(claim)
        patience = self.account.patience_s(claim.tier)
        since = now if claim.waiting_since is None else claim.waiting_since
        if patience < math.inf:
            self.timer(max(now, since + patience), RISK, claim, claim.token)
        elif self.parameters.starve_s:
            self.timer(max(now, since + self.parameters.starve_s), RISK, claim, claim.token)
        self.stirred = True

    def line_up(self, claim: Claim) -> None:
        """Take its place in the queue, or another one; quotas tell those who are alike apart."""
        name = claim.virtual_cluster
        self.queue.enter(claim, name if name in self.quotas else "")

    def moved_up(self) -> None:
        """Somebody who waited does so no more, or goes before others now: who had to wait behind
        may be tried."""
        if len(self.queue.groups) > self.parameters.backfill_depth:
            self.stirred = True

    def relevel(self, claim: Claim) -> None:
        """Its level by what it has attained; set the timer for the next one while it is held."""
        claim.level = level = self.parameters.level(claim.attained)
        thresholds = self.parameters.las_thresholds_device_s
        if claim.stage is Stage.HELD and claim.count and level < len(thresholds):
            left = (thresholds[level] - claim.attained) / claim.count
            self.timer(claim.mark + left, LEVEL, claim, claim.epoch)

    def gather(self, claim: Claim, plan: Placement, now: float, borrows: bool) -> None:
        """It will have devices as `plan` says, which are not all free yet; from now on they count
        for its virtual cluster."""
        self._must(claim, "gather", Stage.WAITING)
        if borrows:
            self.mark_borrowed(claim)
        self.account.advance(claim, now)
        self.queue.leave(claim)
        claim.stage = Stage.GATHERING
        claim.plan = plan
        claim.given, claim.count = {}, 0
        self._charge(claim, sum(plan.values()))

    def hold(self, pool: Pool, claim: Claim, now: float, rule: str, cause: Claim | None) -> None:
        """All its devices are there: they are granted to it."""
        self._must(claim, "hold", Stage.WAITING, Stage.GATHERING)
        self.account.advance(claim, now)
        self.queue.leave(claim)
        claim.stage = Stage.HELD
        claim.count = sum(map(int.bit_count, claim.given.values()))
        claim.epoch += 1
        claim.since = now
        claim.scaled_at = now
        claim.waiting_since = None
        claim.at_risk = claim.starves = claim.preempted = False
        claim.plan, claim.lacks = {}, {}
        if not claim.started:
            back, cost = "start", 0.0
        elif claim.given.keys() == set(claim.home):
            back, cost = "attach", claim.costs[1]
        else:
            back, cost = "resume", claim.costs[2]
        claim.serves_from = now + cost
        claim.started = True
        claim.rule = rule
        self.relevel(claim)
        self.recount(pool, claim)
        self.actions.append(
            do.Grant(claim, rule, claim.epoch, cause, placement=dict(claim.given), back=back)
        )

    def preempt(self, pool: Pool, claim: Claim, now: float, rule: str, cause: Claim | None) -> None:
        """Have it leave its devices; `cause` gets them."""
        self._must(claim, "preempt", Stage.HELD)
        self.account.advance(claim, now)
        claim.stage = Stage.LEAVING
        claim.epoch += 1
        claim.serves_from = NEVER
        claim.leaves = cause
        claim.cause = None if cause is None else cause.id
        claim.rule = rule
        claim.preempted = claim.busy
        claim.wants = claim.busy
        self.recount(pool, claim)
        self.actions.append(do.Preempt(claim, rule, claim.epoch, cause))

    def change(
        self, pool: Pool, claim: Claim, given: dict[int, int], old: dict[int, int], now: float
    ) -> None:
        """It goes on with `given`, and leaves `old` when that is done. The caller says which action
        that is."""
        self._must(claim, "change", Stage.RESIZING, Stage.MOVING)
        self.account.advance(claim, now)
        claim.before, claim.given, claim.old = claim.given, given, old
        claim.count = sum(mask.bit_count() for mask in given.values())
        claim.epoch += 1
        claim.serves_from = NEVER
        self.recount(pool, claim)

    def vacate(self, pool: Pool, claim: Claim, now: float) -> None:
        """All that it has is free; what it becomes is the caller's business."""
        self._must(claim, "vacate", *_WITH_DEVICES)
        self.account.advance(claim, now)
        if claim.stage is Stage.GATHERING:
            self._charge(claim, -sum(claim.plan.values()))
        masks = dict(claim.given)
        for index, mask in claim.old.items():
            masks[index] = masks.get(index, 0) | mask
        if claim.stage is Stage.MOVING:
            claim.home = ()  # it is neither here nor there
        elif claim.stage is not Stage.GATHERING:
            claim.home = tuple(claim.given)
        claim.given, claim.old, claim.count = {}, {}, 0
        claim.plan, claim.lacks = {}, {}
        self.drop(pool, claim, masks)
        if claim.borrowed:
            self.quotas[claim.virtual_cluster].borrowers.pop(claim)
            claim.borrowed = False
        pool.count_in(claim, ())

    def _settle(self, virtual_cluster: str) -> None:
        """What others borrowed is theirs by right, as far as the quota reaches now."""
        quota = self.quotas.get(virtual_cluster)
        if quota is None:
            return
        for other in list(quota.borrowers):
            held = self.charged(other)
            if held and quota.own + held <= quota.devices:
                del quota.borrowers[other]
                other.borrowed = False
                quota.own += held
                self.recount(self.pool_of(other), other)

    def charged(self, claim: Claim) -> int:
        """The devices that count for its virtual cluster: those that it has or is to have."""
        if claim.stage is Stage.GATHERING:
            return sum(claim.plan.values())
        held = {i: claim.given.get(i, 0) | claim.old.get(i, 0) for i in (*claim.given, *claim.old)}
        return sum(map(int.bit_count, held.values()))

    def _must(self, claim: Claim, step: str, *stages: Stage) -> None:
        """`InvalidTransition` when a claim that is none of this cluster's, or in none of these
        stages, is to take this step."""
        if claim.stage in stages and self.claims.get(claim.id) is claim:
            return
        there = self.claims.get(claim.id) is claim
        story = [f"epoch {claim.epoch}", f"{claim.count} devices since {claim.since:g} s"]
        if claim.rule:
            cause = "" if claim.cause is None else f" for {claim.cause}"
            story.insert(0, f"{claim.rule}{cause}")
        start = claim.stage.name.lower() if there else "ended"
        raise refuse_step(claim.id, start, step, story)

    def borrows(self, claim: Claim, count: int) -> bool:
        """Whether `count` devices for it are more than its virtual cluster has."""
        if not self.quotas:
            return False
        quota = self.quotas.get(claim.virtual_cluster)
        return quota is not None and quota.own + count > quota.devices

    def mark_borrowed(self, claim: Claim) -> None:
        """What it gets next is borrowed."""
        claim.borrowed = True
        self.quotas[claim.virtual_cluster].borrowers[claim] = None
