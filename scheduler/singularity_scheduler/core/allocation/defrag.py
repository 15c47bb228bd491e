"""Moves that join free devices: for one that fits nowhere although enough is free, and in the
background, so that some node is free as a whole when somebody needs one.

A move costs its devices the way out and the way in. It pays when the devices that it makes usable,
for as long as they would lie idle otherwise (`defrag_interval_s`), are `defrag_gain` times that.
"""

from __future__ import annotations

from . import actions as do
from .claims import PREMIUM, Claim, Stage
from .pool import Node, Pool
from .state import Allocation

LOOKED = 4
"""Nodes that are looked at for one who waits, and emptied in one background turn."""

SPARE = 0.05
"""Share of the nodes that the background keeps free as a whole."""

RESTS_S = 3600.0
"""A session that was moved is left alone for this long."""

SETTLES_S = 600.0
"""So is a premium session that has just got its devices: if it ends soon, a move costs it more than
its guarantee allows."""


def cost_s(claim: Claim) -> float:
    """Device-seconds that moving it costs."""
    return claim.count * (claim.costs[0] + claim.costs[2])


def make_room(state: Allocation, pool: Pool, claim: Claim, now: float, borrows: bool) -> bool:
    """Move others out of the way of one that fits on no node although enough devices are free."""
    wanted, horizon = claim.devices, state.parameters.defrag_interval_s
    if not horizon or wanted > pool.largest or pool.free < wanted:
        return False
    worth = wanted * horizon / state.parameters.defrag_gain
    looked = 0
    for free in range(min(wanted - 1, len(pool.free_buckets) - 1), 0, -1):
        for index in list(pool.free_buckets[free])[:LOOKED]:
            looked += 1
            node = pool.nodes[index]
            moves = None
            if node.size >= wanted:
                moves = _moves(pool, node, wanted - node.free.bit_count(), worth, now)
            if moves:
                _carry_out(state, pool, claim, node, moves, now, borrows)
                return True
            if looked == LOOKED:
                return False
    return False


def _movable(claim: Claim, now: float) -> bool:
    alone = len(claim.given) == 1 and claim.stage is Stage.HELD
    return alone and claim.busy and not _rests(claim, now)


def _rests(claim: Claim, now: float) -> bool:
    """Whether it has been moved, or has come, just now."""
    settled = claim.tier != PREMIUM or now - claim.since >= SETTLES_S
    return now - claim.moved_at < RESTS_S or not settled


def _moves(
    pool: Pool, node: Node, need: int, worth: float, now: float
) -> list[tuple[Claim, Node]] | None:
    """Who goes where so that `need` more devices of `node` are free; None: it does not pay."""
    found: list[tuple[Claim, Node]] = []
    taken: dict[int, int] = {}
    holders = [c for c in node.holders if _movable(c, now)]
    for claim in sorted(holders, key=lambda c: (cost_s(c) / c.count, c.count)):
        if need <= 0:
            break
        worth -= cost_s(claim)
        if worth < 0:
            return None
        target = _elsewhere(pool, node, claim.count, taken)
        if target is None:
            continue
        taken[target.index] = taken.get(target.index, 0) + claim.count
        found.append((claim, target))
        need -= claim.count
    return found if need <= 0 else None


def _elsewhere(pool: Pool, node: Node, count: int, taken: dict[int, int]) -> Node | None:
    """The node that has least besides `count` free devices, with what is promised there off."""
    for bucket in pool.free_buckets[count : pool.largest + 1]:
        for index in list(bucket)[:LOOKED]:
            other = pool.nodes[index]
            if other is not node and other.free.bit_count() - taken.get(index, 0) >= count:
                return other
    return None


def _carry_out(
    state: Allocation,
    pool: Pool,
    claim: Claim,
    node: Node,
    moves: list[tuple[Claim, Node]],
    now: float,
    borrows: bool,
) -> None:
    state.gather(claim, {node.index: claim.devices}, now, borrows)
    claim.given = state.take(pool, claim, {node.index: node.free.bit_count()})
    for other, target in moves:
        move(state, pool, other, {target.index: other.count}, now, "defragment", claim)
        claim.lacks[other.id] = None
    state.recount(pool, claim)


def move(
    state: Allocation,
    pool: Pool,
    claim: Claim,
    placement: dict[int, int],
    now: float,
    rule: str,
    cause: Claim | None,
) -> None:
    """Have a claim go on elsewhere; it has both places until it is there."""
    old = dict(claim.given)
    given = state.take(pool, claim, placement)
    claim.stage = Stage.MOVING
    claim.moved_at, claim.rule, claim.leaves = now, rule, cause
    claim.cause = None if cause is None else cause.id
    state.change(pool, claim, given, old, now)
    state.actions.append(do.Migrate(claim, rule, claim.epoch, cause, placement=dict(given)))


def whole_nodes_missing(pool: Pool) -> int:
    """How many more nodes should be free as a whole; 0 or less: enough are."""
    size = pool.largest
    if size < 2:
        return 0
    return max(1, int(SPARE * len(pool.nodes))) - len(pool.free_buckets[size])


def consolidate(state: Allocation, pool: Pool, now: float) -> bool:
    """In the background: empty nodes that are nearly empty into gaps of others, while too few are
    free as a whole. True: somebody rests who may be moved later."""
    missing, size = whole_nodes_missing(pool), pool.largest
    if not state.parameters.defrag_interval_s:
        return False
    later = False
    for free in range(size - 1, size // 2 - 1, -1):
        for index in list(pool.free_buckets[free])[:LOOKED]:
            if missing <= 0:
                return False
            node = pool.nodes[index]
            later = later or any(_rests(claim, now) for claim in node.holders)
            if node.size == size and _empty_into_gaps(state, pool, node, now):
                missing -= 1
    return later


def _empty_into_gaps(state: Allocation, pool: Pool, node: Node, now: float) -> bool:
    holders = list(node.holders)
    if not all(_movable(claim, now) for claim in holders):
        return False
    worth = node.size * state.parameters.defrag_interval_s / state.parameters.defrag_gain
    if sum(map(cost_s, holders)) > worth:
        return False
    targets: list[tuple[Claim, Node]] = []
    taken: dict[int, int] = {}
    for claim in sorted(holders, key=lambda c: -c.count):
        target = _elsewhere(pool, node, claim.count, taken)
        if target is None or target.free.bit_count() >= node.free.bit_count():
            return False  # that would only move the gap
        taken[target.index] = taken.get(target.index, 0) + claim.count
        targets.append((claim, target))
    for claim, target in targets:
        move(state, pool, claim, {target.index: claim.count}, now, "consolidate", None)
    return True
