"""Elastic sessions get more devices when some are free: after everybody who waits was served, and
before a device idles.

An idle one gets none: they would idle with it, and be charged to it. It is given them with its
next cell, at once: the interval between two changes spares what is being computed, and a cell that
has just begun has computed nothing.
"""

from __future__ import annotations

from . import actions as do
from .claims import Claim, Stage
from .pool import Node, Pool
from .serving import spare
from .state import GROW, SERVE_EVERY_S, Allocation


def grow(state: Allocation, now: float) -> None:
    """Those on nodes where devices became free take them, higher tiers first."""
    touched, state.touched = state.touched, {}
    for node in touched:
        if not node.free or not node.open:
            continue
        holders = [c for c in node.holders if c.count < c.devices and c.stage is Stage.HELD]
        for claim in sorted(holders, key=lambda c: (-c.tier, -c.priority, c.order)):
            grow_one(state, state.pool_of(claim), claim, node, now)
            if not node.free:
                break


def grow_one(state: Allocation, pool: Pool, claim: Claim, node: Node, now: float) -> None:
    """More devices of `node` for a claim, as many as it may have and as there are."""
    if not claim.busy or claim.borrowed:
        return
    larger = claim.next_larger()
    if not larger or larger - claim.count > node.free.bit_count():
        return
    rested = claim.woken_at > claim.scaled_at  # since its last change
    if not rested and claim.scaled_at + claim.interval_s > now:
        _look_again(state, claim, claim.scaled_at + claim.interval_s)
        return
    room = min(node.free.bit_count(), spare(state, pool, claim))
    if larger - claim.count > room:  # what is free is kept for others
        _look_again(state, claim, now + max(claim.interval_s, SERVE_EVERY_S))
        return
    quota = state.quotas.get(claim.virtual_cluster)
    if quota is not None:
        room = min(room, quota.devices - quota.own)
    more = claim.largest(claim.count + room) - claim.count
    if more <= 0:
        return
    taken = state.take(pool, claim, {node.index: more})
    given = dict(claim.given)
    given[node.index] = given.get(node.index, 0) | taken[node.index]
    claim.stage = Stage.RESIZING
    claim.scaled_at, claim.rule, claim.leaves = now, "grow", None
    state.change(pool, claim, given, {}, now)
    state.actions.append(do.Resize(claim, "grow", claim.epoch, None, placement=dict(given)))


def _look_again(state: Allocation, claim: Claim, at: float) -> None:
    if claim.grows_at != at:
        claim.grows_at = at
        state.timer(at, GROW, claim, claim.epoch)
