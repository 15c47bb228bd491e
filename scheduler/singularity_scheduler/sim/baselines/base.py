"""What the baselines share with each other and with our policy: the same devices and placement
(`Allocation`, `Pool`), the same events and actions, the same account of what each session got.

A baseline differs in two things alone: the order in which it serves those who wait, and (see
`preemptive`) whom it takes devices from. It gives every job all the devices that it asks for. No
baseline can take a device away from a live kernel, so notebooks keep theirs until they are closed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import Claim, Stage
from singularity_scheduler.core.allocation.harm import FREE_SLOT
from singularity_scheduler.core.allocation.pool import Pool
from singularity_scheduler.core.allocation.state import Allocation
from singularity_scheduler.core.values.parameters import Parameters

Rank = tuple[float, float]
"""Smaller is served first."""

Line = list[tuple[Rank, int, Claim]]
"""Heap of (rank, token, claim) of those who wait for equally many devices; when the first of them
finds no place, none of them does. No two tokens are the same; one that its claim has no more means
nothing."""


class Baseline:
    """First come, first served, and nobody overtakes: the simplest one, and the base of all."""

    reserves = True
    kills: float | None = None
    overtakes = False
    """Whether those behind one that finds no place are tried."""

    def __init__(self, name: str = "") -> None:
        unused = Parameters(las_thresholds_device_s=(), defrag_interval_s=0.0)
        self.state = Allocation(unused, name)
        self.state.forgets = False  # a baseline has timers of its own; `look` sees what they mean
        self.lines: dict[Pool, dict[int, Line]] = {}
        self.ranks: dict[Claim, Rank] = {}
        """Of all that wait."""
        self._tokens = 0

    # -- for the policies -------------------------------------------------------------------

    def prepare(self, claim: Claim, work_s: float) -> None:
        """Only oracles look at `work_s`."""

    def rank(self, claim: Claim, now: float) -> Rank:
        """The place of one that begins to wait; it stays the same while it waits."""
        return (claim.order, 0.0)

    def held_now(self, pool: Pool, claim: Claim, now: float) -> None:
        """It has its devices."""

    def gone(self, pool: Pool, claim: Claim, now: float) -> None:
        """It is about to lose devices that it works on; called before anything has changed."""

    def over(self, claim: Claim, now: float) -> None:
        """It has ended and will not come back."""

    def clear(self, pool: Pool, claim: Claim, now: float) -> bool:
        """Take devices from others for a claim that fits on no free ones; False: it waits on."""
        return False

    def look(self, claim: Claim | None, mark: float, now: float) -> None:
        """A timer of `state.timer(at, 0, claim, mark)` is due."""

    # -- a scheduler ------------------------------------------------------------------------

    @property
    def next_due(self) -> float:
        return self.state.next_due

    @property
    def held(self) -> int:
        return self.state.held

    def decide(self, event: ev.Event, now: float) -> list[do.Action]:
        """What follows from `event`; raises `BadRequest` for what baselines do not know."""
        self.state.actions = []
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise BadRequest(f"baselines are not told of {type(event).__name__} events")
        handler(self, event, now)
        if self.state.stirred:
            self.state.stirred = False
            if self.ranks:
                self.serve(now)
            self.state.touched.clear()
        return self.state.actions

    def serve(self, now: float) -> None:
        """Give devices to all who can have some, in order."""
        for pool, lines in self.lines.items():
            heads = [(line[0][0], devices) for devices, line in lines.items() if self._first(line)]
            heapify(heads)
            least = [1 << 60, 1 << 60]  # what found no place, on one node and on several
            while heads:
                _, devices = heappop(heads)
                several = devices > pool.largest
                if devices >= least[several]:
                    continue  # who was before it needed less, and may take more from others
                line = lines[devices]
                if self._place(pool, line[0][2], now):
                    if self._first(line):
                        heappush(heads, (line[0][0], devices))
                elif self.overtakes:
                    least[several] = devices
                else:
                    break

    def _first(self, line: Line) -> bool:
        """Whether somebody waits in it; the first entry means something then."""
        while line:
            _, token, claim = line[0]
            if claim.token == token and claim.stage is Stage.WAITING:
                return True
            heappop(line)
        return False

    def _place(self, pool: Pool, claim: Claim, now: float) -> bool:
        count = claim.devices
        # That one node is too small for few devices says nothing of many on several nodes.
        if count > pool.largest or not pool.hopeless(count, FREE_SLOT):
            placement = pool.place(count)
            if placement is not None:
                if len(claim.home) == 1 and count <= pool.largest:
                    home = pool.nodes[claim.home[0]]
                    if home.open and home.free.bit_count() >= count:
                        placement = {home.index: count}
                claim.given = self.state.take(pool, claim, placement)
                self.hold(pool, claim, now, "place.free")
                return True
            if count <= pool.largest:
                pool.note_failed(count, FREE_SLOT)
        return self.clear(pool, claim, now)

    def hold(self, pool: Pool, claim: Claim, now: float, rule: str) -> None:
        """All its devices are there."""
        self.ranks.pop(claim, None)
        claim.token += 1
        self.state.hold(pool, claim, now, rule, None)
        self.held_now(pool, claim, now)

    def wait(self, claim: Claim, now: float) -> None:
        """It waits for devices."""
        self.state.account.advance(claim, now)
        claim.stage = Stage.WAITING
        if claim.waiting_since is None:
            claim.waiting_since = now
        self.enter(claim, self.rank(claim, now))
        self.state.stirred = True

    def enter(self, claim: Claim, rank: Rank) -> None:
        """Put one that waits where `rank` says, also when it was somewhere else."""
        self._tokens += 1
        claim.token = self._tokens
        self.ranks[claim] = rank
        lines = self.lines.setdefault(self.state.pool_of(claim), {})
        heappush(lines.setdefault(claim.devices, []), (rank, claim.token, claim))

    def free(self, pool: Pool, claim: Claim, now: float) -> None:
        """It has no devices any more, and does not wait. Whom it left them for gets them."""
        cause, claim.leaves = claim.leaves, None
        self.ranks.pop(claim, None)
        claim.token += 1
        if claim.given:
            self.state.vacate(pool, claim, now)
            pool.freed()  # baselines do not follow news node by node
        else:
            self.state.account.advance(claim, now)
        claim.stage, claim.waiting_since = Stage.AWAY, None
        if cause is not None and cause.stage is Stage.GATHERING and claim.id in cause.lacks:
            del cause.lacks[claim.id]
            self.handed(pool, cause, now)

    def handed(self, pool: Pool, claim: Claim, now: float) -> None:
        """One of those that a gathering claim waits for has left; see `preemptive`."""

    # -- events -----------------------------------------------------------------------------

    def _node_up(self, event: ev.NodeUp, now: float) -> None:
        pools = self.state.pools
        pool = pools.setdefault(event.pool, pools.get(event.pool) or Pool(event.pool))
        pool.add(event.node, event.devices, event.rack, event.islands)
        self.state.stirred = True

    def _node_lost(self, event: ev.NodeLost, now: float) -> None:
        found = self.state.node(event.node)
        if found is None:
            return
        pool, node = found
        holders = list(node.holders)
        pool.lose(node)
        node.free = 0
        for claim in holders:
            stage = claim.stage
            if claim not in node.holders:
                continue
            if stage is Stage.HELD:
                self.gone(pool, claim, now)
            self.free(pool, claim, now)
            if stage is Stage.HELD:
                claim.epoch += 1
                claim.rule, claim.home = "node.lost", ()
                self.state.actions.append(do.Lost(claim, "node.lost", claim.epoch))
            self.wait(claim, now)

    def _close(self, event: ev.Cordon | ev.Drain, now: float) -> None:
        """What is on it stays until it ends: baselines move nothing."""
        found = self.state.node(event.node)
        if found is not None:
            found[0].close(found[1])

    def _reopen(self, event: ev.Uncordon, now: float) -> None:
        found = self.state.node(event.node)
        if found is not None:
            found[0].reopen(found[1])
            self.state.stirred = True

    def _submit(self, event: ev.Submit, now: float) -> None:
        claim = event.claim
        self.state.claims[claim.id] = claim
        claim.order = self.state.next_order()
        claim.mark = now
        self.state.account.begin(claim, now)
        self.wait(claim, now)
        if self.overtakes:  # nothing has become free for anybody else
            self.state.stirred = False
            self._place(self.state.pool_of(claim), claim, now)

    def _left(self, event: ev.Left, now: float) -> None:
        claim = self.state.claims.get(event.id)
        if claim is None or claim.stage is not Stage.LEAVING or claim.epoch != event.epoch:
            return
        self.free(self.state.pool_of(claim), claim, now)
        claim.wants = False
        self.wait(claim, now)

    def _finish(self, event: ev.Finish, now: float) -> None:
        claim = self.state.claims[event.id]
        pool = self.state.pool_of(claim)
        if claim.stage is Stage.HELD:
            self.gone(pool, claim, now)
        self.free(pool, claim, now)
        self.state.account.end(claim, now)
        self.over(claim, now)
        del self.state.claims[claim.id]

    def _tick(self, event: ev.Tick, now: float) -> None:
        due = self.state.due
        while due and due[0][0] <= now:
            _, _, _, claim, mark = heappop(due)
            self.look(claim, mark, now)


_HANDLERS: dict[type, Callable[[Baseline, Any, float], None]] = {
    ev.NodeUp: Baseline._node_up,
    ev.NodeLost: Baseline._node_lost,
    ev.Cordon: Baseline._close,
    ev.Drain: Baseline._close,
    ev.Uncordon: Baseline._reopen,
    ev.Submit: Baseline._submit,
    ev.Left: Baseline._left,
    ev.Finish: Baseline._finish,
    ev.Tick: Baseline._tick,
}
