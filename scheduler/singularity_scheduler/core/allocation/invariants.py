"""What holds after every decision. Tests call `check`, which computes everything anew."""

from __future__ import annotations

from bisect import bisect

from .claims import Claim, Stage
from .harm import FREE_SLOT, SLOTS
from .pool import Pool
from .serving import firsts, spare
from .state import Allocation
from .victims import entries


class InvariantBroken(AssertionError):
    """The state contradicts itself; the message says where."""


def check(state: Allocation) -> None:
    """Raise `InvariantBroken` if anything does not hold."""
    held = 0
    for pool in state.pools.values():
        _check_pool(state, pool)
        held += sum(m.bit_count() for node in pool.nodes for m in node.holders.values())
    if held != state.held:
        raise InvariantBroken(f"{held} devices are held, not {state.held}")
    wanted, queued = [0, 0, 0], [0, 0, 0]
    for claim in state.claims.values():
        _check_claim(state, claim)
        wanted[claim.tier] += claim.wanted_milli if claim.sla_on else 0
        queued[claim.tier] += claim.devices if claim.stage is Stage.WAITING else 0
    if wanted != state.account.wanted:
        raise InvariantBroken(f"{wanted} thousandths are wanted, not {state.account.wanted}")
    if queued != state.queue.devices:
        raise InvariantBroken(f"{queued} are waited for, not {state.queue.devices}")
    for claim in state.queue.waiting:
        if state.claims.get(claim.id) is not claim:
            raise InvariantBroken(f"{claim.id} waits and is gone")
        if claim.stage is not Stage.WAITING:
            raise InvariantBroken(f"{claim.id} waits and is {claim.stage.name}")
    for name in state.quotas:
        _check_quota(state, name)
    _check_order(state)


def _check_quota(state: Allocation, name: str) -> None:
    quota = state.quotas[name]
    mine = [c for c in state.claims.values() if c.virtual_cluster == name]
    own = sum(state.charged(c) for c in mine if not c.borrowed)
    if own != quota.own:
        raise InvariantBroken(f"{name} has {own} devices of its own, not {quota.own}")
    borrowed = {c for c in mine if c.borrowed}
    if borrowed != set(quota.borrowers):
        raise InvariantBroken(f"{name}: its borrowers are not who borrowed")
    twice = sum(sum(map(int.bit_count, c.old.values())) for c in mine if c.stage is Stage.MOVING)
    if own - twice > quota.devices:
        raise InvariantBroken(f"{name} has {own} devices and a right to {quota.devices}")


def _check_pool(state: Allocation, pool: Pool) -> None:
    total = [0] * len(SLOTS)
    pool.refresh()
    for node in pool.nodes:
        taken = 0
        for claim, mask in node.holders.items():
            if claim.id not in state.claims:
                raise InvariantBroken(f"{claim.id} is gone and holds devices of {node.id}")
            if mask & taken:
                raise InvariantBroken(f"a device of {node.id} is held twice")
            both = claim.given.get(node.index, 0) | claim.old.get(node.index, 0)
            if mask != both:
                raise InvariantBroken(f"{claim.id} and {node.id} disagree: {both:b}, {mask:b}")
            taken |= mask
        if node.lost:
            if taken or node.free:
                raise InvariantBroken(f"{node.id} is lost and has devices")
            continue
        if taken & node.free:
            raise InvariantBroken(f"a device of {node.id} is free and held")
        if (taken | node.free) != node.full:
            raise InvariantBroken(f"a device of {node.id} is nowhere")
        free = node.free.bit_count()
        expected = [free] * len(SLOTS)
        for claim in node.holders:
            for index, harm, count in claim.entries:
                if index == node.index:
                    for slot in range(bisect(SLOTS, harm), len(SLOTS)):
                        expected[slot] += count
        if expected != node.available:
            raise InvariantBroken(f"{node.id}: {node.available} is not {expected}")
        for slot, available in enumerate(node.available):
            inside = node.index in pool.buckets[slot][available]
            if inside != (node.open and available > 0):
                raise InvariantBroken(f"{node.id} is in the wrong bucket of slot {slot}")
            total[slot] += available if node.open else 0
    found = pool.best(pool.failed[FREE_SLOT])
    if found is not None:
        raise InvariantBroken(f"it is held that no node has {pool.failed[FREE_SLOT]} free devices")
    if total != pool.total:
        raise InvariantBroken(f"pool {pool.name!r}: {pool.total} is not {total}")
    for slot, buckets in enumerate(pool.buckets):
        number = sum(map(len, buckets))
        if number != sum(n.open and n.available[slot] > 0 for n in pool.nodes):
            raise InvariantBroken(f"slot {slot} has {number} nodes")


def _check_claim(state: Allocation, claim: Claim) -> None:
    who = f"{claim.id} ({claim.stage.name})"
    count = sum(mask.bit_count() for mask in claim.given.values())
    if claim.stage in (Stage.AWAY, Stage.WAITING):
        if claim.given or claim.old or claim.entries:
            raise InvariantBroken(f"{who} has devices")
        if (claim in state.queue.waiting) != (claim.stage is Stage.WAITING):
            raise InvariantBroken(f"{who}: queue")
        return
    if claim in state.queue.waiting:
        raise InvariantBroken(f"{who} is in the queue")
    if claim.entries != entries(claim):
        raise InvariantBroken(f"{who} is counted as {claim.entries}")
    if claim.stage is Stage.GATHERING:
        if not claim.lacks:
            raise InvariantBroken(f"{who} waits for nobody")
        for index, mask in claim.given.items():
            if mask.bit_count() > claim.plan.get(index, 0):
                raise InvariantBroken(f"{who} has more than planned")
        for other in claim.lacks:
            leaves = state.claims[other].leaves if other in state.claims else None
            if leaves is not claim:
                raise InvariantBroken(f"{who} waits for {other}, who does not leave for it")
        return
    if count != claim.count:
        raise InvariantBroken(f"{who} has {count} devices, not {claim.count}")
    allowed = claim.minimum <= count <= claim.devices
    if claim.counts:
        allowed = allowed and (count in claim.counts or count == claim.devices)
    if not allowed:
        raise InvariantBroken(f"{who} has {count} devices of {claim.minimum} to {claim.devices}")
    if claim.old and claim.stage not in (Stage.MOVING, Stage.RESIZING):
        raise InvariantBroken(f"{who} has old ones")


def _check_order(state: Allocation) -> None:
    """Nobody waits for free devices that it may have, but those who may not overtake others."""
    if state.stirred:
        return  # they are looked at next
    alike = {(c.tier, state.pool_of(c).name): c for c in state.queue.waiting}
    for like in alike.values():
        for _, claim in sorted(firsts(state, like))[: state.parameters.backfill_depth + 1]:
            pool, least = state.pool_of(claim), claim.minimum
            fits = least <= spare(state, pool, claim) and pool.place(least) is not None
            if fits:
                raise InvariantBroken(f"{claim.id} waits for {least} devices, which are free")
