"""Devices that are kept free for premium sessions, so that they need not wait until somebody has
left: other tiers do not take them, and when a premium session did, lower ones make up for it."""

from __future__ import annotations

from itertools import chain, islice

from .claims import PREMIUM, STANDARD, Claim, Stage
from .harm import IDLE_SLOT, TIER_SLOT
from .pool import Pool
from .state import Allocation
from .victims import cuts

RULE = "preempt.headroom"

LOOKED = 4
"""Nodes that are looked at for each class of harm."""

_NEXT = Claim("", 1, tier=PREMIUM)
"""Who would need the devices next."""


def kept_free(state: Allocation, pool: Pool) -> int:
    """Devices of a pool that other tiers leave free."""
    return int(state.parameters.headroom_fraction * pool.capacity)


def refill(state: Allocation, now: float) -> None:
    """Have lower tiers leave what premium sessions took of the devices that are kept free."""
    for pool in state.used_headroom:
        leaving = state.refilling.get(pool, [])
        leaving = [c for c in leaving if c.stage is Stage.LEAVING and c.rule == RULE]
        missing = kept_free(state, pool) - pool.free - sum(c.count for c in leaving)
        while missing > 0:
            victim = _victim(state, pool, missing, now)
            if victim is None:
                break
            state.preempt(pool, victim, now, RULE, None)
            leaving.append(victim)
            missing -= victim.count
        state.refilling[pool] = leaving
    state.used_headroom.clear()


def _victim(state: Allocation, pool: Pool, missing: int, now: float) -> Claim | None:
    """The least harm, where most is free already: sessions on several devices need them on one
    node. Nobody who has more devices than are missing."""
    fullest = [i for bucket in reversed(pool.free_buckets[1:]) for i in islice(bucket, LOOKED)]
    for slot in range(IDLE_SLOT, TIER_SLOT[STANDARD] + 1):
        if pool.total[slot] == pool.total[slot - 1]:
            continue  # there is nobody between the two
        best: tuple[tuple[int, tuple[int, int, float]], Claim] | None = None
        nodes = (pool.nodes[index] for index in fullest[:LOOKED])
        for node in chain(nodes, pool.some(1, slot, LOOKED)):
            found, _ = cuts(node, 1, slot, _NEXT, now, state.parameters)
            for cut in found:
                key = (-node.free.bit_count(), cut.loss)
                if cut.whole and cut.claim.count <= missing and (best is None or key < best[0]):
                    best = (key, cut.claim)
        if best is not None:
            return best[1]
    return None
