"""Who waits is served: on free devices, on fewer devices, or on devices that others give up."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count as numbers

from . import actions as do
from . import defrag
from .claims import BASIC, PREMIUM, STANDARD, Claim, Stage
from .harm import FREE_SLOT, IDLE_SLOT, slot
from .headroom import kept_free
from .pool import Node, Placement, Pool
from .queue import Group, Key, key_of
from .state import NEVER, Allocation
from .victims import Cut, careful, cuts

TRIED = 4
"""Nodes that are looked at for each class of harm, the best of which is taken."""


def serve(state: Allocation, now: float) -> None:
    """Give devices to all who can have some, in order; up to `backfill_depth` of each tier and type
    of device may find no place before those behind them have to wait too."""
    depth = state.parameters.backfill_depth
    for tier in (PREMIUM, STANDARD, BASIC):
        tiebreak = numbers()
        heads: list[tuple[bool, Key, int, Group]] = []
        for group in state.queue.of_tier(tier):
            _push(state, heads, group, next(tiebreak))
        overtaken: dict[Pool, int] = {}
        while heads:
            borrows, *_, group = heappop(heads)
            claim = group.first()
            if claim is None:
                continue
            if state.quotas and state.borrows(claim, claim.minimum) is not borrows:
                _push(state, heads, group, next(tiebreak))  # others have used its quota meanwhile
                continue
            pool = state.pool_of(claim)
            if overtaken.get(pool, 0) > depth:
                continue
            known = _hopeless(state, claim, IDLE_SLOT if borrows else group.reach)
            if not known and try_place(state, claim, now):
                _push(state, heads, group, next(tiebreak))
            elif not known or not depth:
                overtaken[pool] = overtaken.get(pool, 0) + 1


def _push(
    state: Allocation, heads: list[tuple[bool, Key, int, Group]], group: Group, number: int
) -> None:
    """The first of a group stands for it, unless it is known that there is nothing for it: then it
    only stands in the way, where nobody overtakes."""
    claim = group.first()
    if claim is None:
        return
    borrows = bool(state.quotas) and state.borrows(claim, claim.minimum)
    if borrows and not state.quotas[claim.virtual_cluster].may_borrow:
        return
    if group.head is not claim or group.token != claim.token:
        group.head, group.token = claim, claim.token
        group.key, group.reach = key_of(claim), slot(claim, False)
    reach = IDLE_SLOT if borrows else group.reach
    if not state.parameters.backfill_depth or not _hopeless(state, claim, reach):
        heappush(heads, (borrows, group.key, number, group))


def _hopeless(state: Allocation, claim: Claim, reach: int) -> bool:
    """Whether it is known that there is nothing for it: no free devices, and nobody to leave."""
    pool, least = state.pool_of(claim), claim.minimum
    if claim.shares or not pool.hopeless(least, reach, careful(claim)):
        return False
    return pool.hopeless(least, FREE_SLOT) or least > spare(state, pool, claim)


def spare(state: Allocation, pool: Pool, claim: Claim) -> int:
    """Free devices that it may have: some are kept free for premium sessions."""
    free = pool.free
    if claim.tier == PREMIUM:
        return free
    return free - kept_free(state, pool)


def must_queue(state: Allocation, claim: Claim) -> bool:
    """Whether more wait before it than one may overtake; costs nothing while few wait."""
    depth = state.parameters.backfill_depth
    if len(state.queue.groups) <= depth:
        return False
    return sum(place < place_of(state, claim) for place, _ in firsts(state, claim)) > depth


def firsts(state: Allocation, like: Claim) -> list[tuple[tuple[bool, Key], Claim]]:
    """(place, who) of the first of each group that waits for devices of the same tier and type,
    without those that their quotas forbid any."""
    found: list[tuple[tuple[bool, Key], Claim]] = []
    for group in state.queue.of_tier(like.tier):
        claim = group.first()
        if claim is not None and state.pool_of(claim) is state.pool_of(like):
            place = place_of(state, claim)
            if not place[0] or state.quotas[claim.virtual_cluster].may_borrow:
                found.append((place, claim))
    return found


def place_of(state: Allocation, claim: Claim) -> tuple[bool, Key]:
    """Sorts those who wait for devices of one tier and type."""
    return state.borrows(claim, claim.minimum), key_of(claim)


def try_place(state: Allocation, claim: Claim, now: float) -> bool:
    """Place one that waits, or have others leave devices for it; False: it waits on."""
    pool = state.pool_of(claim)
    borrows = state.borrows(claim, claim.minimum)
    wanted = claim.devices
    if borrows and not state.quotas[claim.virtual_cluster].may_borrow:
        return False
    if not borrows and claim.elastic and state.borrows(claim, wanted):
        quota = state.quotas[claim.virtual_cluster]
        wanted = claim.largest(quota.devices - quota.own)
    fresh = False
    room = spare(state, pool, claim)
    if wanted <= room and not pool.hopeless(wanted, FREE_SLOT):
        placement = pool.place(wanted)
        if placement is not None:
            rule = "place.free" if wanted == claim.devices else "place.smaller"
            _grant(state, pool, claim, placement, now, borrows, rule)
            return True
        pool.note_failed(wanted, FREE_SLOT)
        fresh = True
    reach = slot(claim, borrows)
    if claim.elastic:
        if claim.tier == PREMIUM and _clear(state, pool, claim, wanted, reach, now, borrows):
            return True
        placement = _fewer(pool, claim, min(wanted, room))
        if placement is not None:
            _grant(state, pool, claim, placement, now, borrows, "place.smaller")
            return True
        wanted = claim.minimum
    elif fresh and claim.tier != PREMIUM and defrag.make_room(state, pool, claim, now, borrows):
        return True  # a premium session gets devices sooner from lower tiers
    return _clear(state, pool, claim, wanted, reach, now, borrows)


def _fewer(pool: Pool, claim: Claim, most: int) -> Placement | None:
    """As many free devices as an elastic claim can have now, up to `most`; None: too few."""
    if most > pool.largest:
        count = claim.largest(min(most, pool.free))
        if count > pool.largest:
            return pool.place(count)
    count = claim.largest(min(most, _room(pool)))
    if count:
        return pool.place(count)
    if claim.minimum <= most:
        pool.note_failed(claim.minimum, FREE_SLOT)
    return None


def _room(pool: Pool) -> int:
    """The most free devices that a node has."""
    buckets = pool.free_buckets
    return next((n for n in range(len(buckets) - 1, 0, -1) if buckets[n]), 0)


def _grant(
    state: Allocation,
    pool: Pool,
    claim: Claim,
    placement: Placement,
    now: float,
    borrows: bool,
    rule: str,
) -> None:
    if borrows:
        state.mark_borrowed(claim)
    if len(claim.home) == 1 and len(placement) == 1:
        placement = _at_home(pool, claim, placement)
    claim.given = state.take(pool, claim, placement)
    if claim.tier == PREMIUM:
        state.used_headroom[pool] = None
    state.hold(pool, claim, now, rule, None)


def _at_home(pool: Pool, claim: Claim, placement: Placement) -> Placement:
    """Where it was last, when there is room: its state is there."""
    node = pool.nodes[claim.home[0]]
    [wanted] = placement.values()
    if node.open and node.free.bit_count() >= wanted:
        return {node.index: wanted}
    return placement


# -- others give devices up -------------------------------------------------------------------


def _clear(
    state: Allocation, pool: Pool, claim: Claim, wanted: int, reach: int, now: float, borrows: bool
) -> bool:
    """Have others leave `wanted` devices for it, with the least harm; False: nobody can now."""
    if not claim.shares and pool.hopeless(wanted, reach, careful(claim)):
        return False
    if wanted > pool.largest:
        found = _clear_many(state, pool, claim, wanted, reach, now)
    else:
        found = _clear_one(state, pool, claim, wanted, reach, now)
    if found is None:
        if claim.shares:
            return False  # what it may take, those who do not share may not
        if wanted <= pool.largest or wanted > pool.free:
            pool.note_failed(wanted, reach, careful(claim))
        return False
    gather(state, pool, claim, found, now, borrows)
    return True


Cleared = list[tuple[Node, int, list[Cut]]]
"""(node, devices that it is to give, who leaves what there)."""


def _clear_one(
    state: Allocation, pool: Pool, claim: Claim, wanted: int, reach: int, now: float
) -> Cleared | None:
    later = NEVER
    tried: dict[int, int] = {}
    for harm_slot in range(IDLE_SLOT, reach + 1):
        if pool.total[harm_slot] == pool.total[harm_slot - 1]:
            continue  # there is nobody between the two
        best: tuple[tuple[int, int, float], Node, list[Cut]] | None = None
        for node in pool.some(wanted, harm_slot, TRIED):
            # When enough is free there, that is kept for others, and somebody has to leave as well.
            need = max(1, wanted - node.free.bit_count())
            if tried.get(node.index) == node.available[harm_slot]:
                continue
            tried[node.index] = node.available[harm_slot]
            found, when = cuts(node, need, harm_slot, claim, now, state.parameters)
            if not found:
                later = min(later, when)
                continue
            harm = _harm(found)
            if best is None or harm < best[0]:
                best = (harm, node, found)
        if best is not None:
            return [(best[1], wanted, best[2])]
    if later < NEVER:
        state.serve_later(later)
    return None


def _harm(leaving: list[Cut]) -> tuple[int, int, float]:
    """The worst class and rank of those who leave, and what is lost in all."""
    worst = rank = 0
    lost = 0.0
    for cut in leaving:
        worst, rank = max(worst, cut.loss[0]), max(rank, cut.loss[1])
        lost += cut.loss[2]
    return worst, rank, lost


def _clear_many(
    state: Allocation, pool: Pool, claim: Claim, wanted: int, reach: int, now: float
) -> Cleared | None:
    """For a gang of several nodes: whole nodes first, all or nothing."""
    later = NEVER
    for harm_slot in range(IDLE_SLOT, reach + 1):
        total = pool.total[harm_slot]
        if total < wanted or total == pool.total[harm_slot - 1]:
            continue
        found, missing, gone = Cleared(), wanted, dict[Claim, bool]()
        for size in range(pool.largest, 0, -1):
            for index in pool.buckets[harm_slot][size]:
                node = pool.nodes[index]
                part = min(missing, size)
                need = part - node.free.bit_count()
                if need > 0 and gone:
                    need -= sum(m.bit_count() for c, m in node.holders.items() if gone.get(c))
                leaving: list[Cut] = []
                if need > 0:
                    leaving, when = cuts(node, need, harm_slot, claim, now, state.parameters, gone)
                    if not leaving:
                        later = min(later, when)
                        continue
                    gone.update((cut.claim, cut.whole) for cut in leaving)
                found.append((node, part, leaving))
                missing -= part
                if missing == 0:
                    return found if gone else None  # None: these are kept free for others
    if later < NEVER:
        state.serve_later(later)
    return None


def gather(
    state: Allocation, pool: Pool, claim: Claim, cleared: Cleared, now: float, borrows: bool
) -> None:
    """Keep what is free there for the claim, and have the others leave."""
    state.gather(claim, {node.index: count for node, count, _ in cleared}, now, borrows)
    for node, count, leaving in cleared:
        free = min(count, node.free.bit_count())
        if free:
            claim.given |= state.take(pool, claim, {node.index: free})
        for cut in leaving:
            claim.lacks[cut.claim.id] = None
            if cut.whole:
                state.preempt(pool, cut.claim, now, rule_of(cut.claim, claim), claim)
            else:
                shrink(state, pool, cut.claim, node, cut.count, now, claim)
    state.recount(pool, claim)
    if not claim.lacks:
        handed(state, pool, claim, now)


def rule_of(victim: Claim, claim: Claim) -> str:
    """By which rule the victim leaves its devices to the claim."""
    if not victim.busy:
        return "preempt.idle"
    if victim.tier < claim.tier:
        return "preempt.tier"
    if victim.borrowed:
        return "preempt.borrowed"
    if victim.shares and claim.shares:
        return "preempt.slice"
    if claim.at_risk:
        return "preempt.guarantee"
    return "preempt.service" if victim.level > claim.level else "preempt.starves"


def shrink(
    state: Allocation, pool: Pool, victim: Claim, node: Node, count: int, now: float, cause: Claim
) -> None:
    """Let it go on with at least `count` devices less, those on `node` first."""
    target = victim.largest(victim.count - count)
    excess = victim.count - target
    given, old = dict(victim.given), {}
    order = [node.index, *(index for index in reversed(victim.given) if index != node.index)]
    for index in order:
        mask = given[index]
        part = min(excess, mask.bit_count())
        if not part:
            continue
        gone = 0
        for _ in range(part):  # the highest ones: the lower part of an island stays together
            gone |= 1 << ((mask & ~gone).bit_length() - 1)
        old[index] = gone
        if mask == gone:
            del given[index]
        else:
            given[index] = mask & ~gone
        excess -= part
    victim.stage = Stage.RESIZING
    victim.leaves, victim.cause, victim.rule = cause, cause.id, "shrink"
    victim.scaled_at = now
    state.change(pool, victim, given, old, now)
    state.actions.append(
        do.Resize(victim, "shrink", victim.epoch, cause, placement=dict(victim.given))
    )


def handed(state: Allocation, pool: Pool, claim: Claim, now: float) -> None:
    """Somebody has left: take what the gathering claim is to have of it; grant it when that is
    all."""
    for index, count in claim.plan.items():
        node = pool.nodes[index]
        here = claim.given.get(index, 0).bit_count()
        more = min(count - here, node.free.bit_count())
        if more > 0 and node.open:
            taken = state.take(pool, claim, {index: more})
            claim.given[index] = claim.given.get(index, 0) | taken[index]
    if claim.lacks:
        state.recount(pool, claim)
        return
    missing = any(
        claim.given.get(index, 0).bit_count() < count for index, count in claim.plan.items()
    )
    if missing:  # a park failed, or a node was lost or closed meanwhile: it waits again
        state.vacate(pool, claim, now)
        state.enqueue(claim, now)
        return
    state.hold(pool, claim, now, "place.cleared", None)
