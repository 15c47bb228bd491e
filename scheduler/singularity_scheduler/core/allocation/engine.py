"""`decide(allocation, event, now)`: what follows from what happened. Pure but for the state it is
given; the simulator calls it, and so does whoever carries actions out.

Time never goes back; an answer of an older epoch decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, NotFound

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.reasons.refusals import refuse

from . import actions as do
from . import defrag, elastic, headroom, serving
from . import events as ev
from .claims import PRIORITIES, TIERS, Claim, Stage
from .pool import Node, Pool
from .state import (
    DEFRAGMENT,
    EVICT,
    GROW,
    IDLE,
    LEVEL,
    NEVER,
    RISK,
    SERVE,
    SERVE_EVERY_S,
    Allocation,
    VirtualCluster,
)

Handler = Callable[[Allocation, Any, float], None]


def decide(state: Allocation, event: ev.Event, now: float) -> list[do.Action]:
    """Change `state` by `event`; the actions that follow. Raises `BadRequest`, `Conflict` or
    `NotFound` (nothing changed) for what does not fit."""
    state.actions = []
    _HANDLERS[type(event)](state, event, now)
    while state.stirred:
        state.stirred = False
        if state.queue.waiting:
            serving.serve(state, now)
        if state.touched:
            elastic.grow(state, now)
    if state.used_headroom:
        headroom.refill(state, now)
    if state.moved:
        state.moved = False
        if not state.defragments and any(
            defrag.whole_nodes_missing(pool) > 0 for pool in state.pools.values()
        ):
            state.defragment_later(now + state.parameters.defrag_interval_s)
    if not state.queue.waiting:
        for pool in state.pools.values():
            if pool.known:
                pool.freed()  # nobody looks for what is known, and keeping it up costs time
    return state.actions


# -- nodes ----------------------------------------------------------------------------------


def _node_up(state: Allocation, event: ev.NodeUp, now: float) -> None:
    if event.devices < 1:
        raise refuse(
            BadRequest, because("node_without_devices", node=event.node, number=event.devices)
        )
    known = state.node(event.node)
    if known is not None and not known[1].lost:
        raise refuse(Conflict, because("node_exists", node=event.node), node=event.node)
    together = 0
    for island in event.islands:
        if not 0 < island < 1 << event.devices or island & together:
            raise refuse(
                BadRequest,
                because("islands_overlap", node=event.node, number=event.devices),
                node=event.node,
            )
        together |= island
    pool = state.pools.get(event.pool)
    if pool is None:
        pool = state.pools[event.pool] = Pool(event.pool)
    if known is not None and known[0] is not pool:
        del known[0].by_id[event.node]  # it has other devices than before
    state.defragment_later(now + state.parameters.defrag_interval_s)
    node = pool.add(event.node, event.devices, event.rack, event.islands)
    state.touched[node] = None
    state.stirred = True


def _found(state: Allocation, id: str) -> tuple[Pool, Node]:
    found = state.node(id)
    if found is None:
        raise refuse(NotFound, because("no_node_of_that_name", node=id), node=id)
    return found


def _node_lost(state: Allocation, event: ev.NodeLost, now: float) -> None:
    pool, node = _found(state, event.node)
    holders = list(node.holders)
    pool.lose(node)
    node.free = 0
    for claim in holders:
        if claim not in node.holders:
            continue  # another one's end has changed it already
        if claim.stage is Stage.GATHERING:
            state.vacate(pool, claim, now)
            state.enqueue(claim, now)
        elif claim.stage is Stage.MOVING and node.index not in claim.before:
            _stays(state, pool, claim, now)
        else:
            _lost(state, pool, claim, now)
    for claim in state.claims.values():  # nothing of those that were parked there is left
        if node.index in claim.home and state.pool_of(claim) is pool:
            claim.home = ()
    state.stirred = True


def _lost(state: Allocation, pool: Pool, claim: Claim, now: float) -> None:
    cause = claim.leaves
    claim.leaves = None
    state.vacate(pool, claim, now)
    claim.epoch += 1
    claim.rule, claim.preempted, claim.cause = "node.lost", True, None
    claim.home = ()
    state.actions.append(do.Lost(claim, "node.lost", claim.epoch))
    if claim.busy:
        state.enqueue(claim, now)
    else:
        _away(claim)
    _hand_over(state, pool, claim, cause, now)


def _cordon(state: Allocation, event: ev.Cordon, now: float) -> None:
    pool, node = _found(state, event.node)
    pool.close(node)


def _uncordon(state: Allocation, event: ev.Uncordon, now: float) -> None:
    pool, node = _found(state, event.node)
    pool.reopen(node)
    state.touched[node] = None
    state.stirred = True


def _drain(state: Allocation, event: ev.Drain, now: float) -> None:
    """Close it, and empty it: large ones first, they find places least easily. Those that are
    just changing follow when they are back."""
    pool, node = _found(state, event.node)
    pool.close(node)
    node.draining = not node.lost
    for claim in sorted(node.holders, key=lambda c: (-c.tier, -c.count, c.order)):
        if claim.stage is Stage.GATHERING:
            state.vacate(pool, claim, now)
            state.enqueue(claim, now)
        elif claim.stage is Stage.HELD:
            _evict(state, pool, claim, node, now)


def _evict(state: Allocation, pool: Pool, claim: Claim, node: Node, now: float) -> None:
    """Have one that rests leave a node that is drained."""
    here = node.holders[claim].bit_count()
    placement = pool.place(claim.count) if len(claim.given) == 1 else None
    if placement is not None and claim.busy:
        defrag.move(state, pool, claim, placement, now, "node.drain", None)
    elif len(claim.given) == 1 or not _part_moves(state, pool, claim, node, here, now):
        state.preempt(pool, claim, now, "node.drain", None)


def _evict_due(state: Allocation, claim: Claim, mark: float, now: float) -> None:
    pool = state.pool_of(claim)
    for index in claim.given:
        if pool.nodes[index].draining:
            _evict(state, pool, claim, pool.nodes[index], now)
            return


def _rests(state: Allocation, pool: Pool, claim: Claim, now: float, failed: bool = False) -> None:
    """It has moved or resized, or that or its leaving came to nothing (`failed`), and it goes on
    with what it has. What it should have done meanwhile is done now, or a little later."""
    claim.stage, claim.serves_from = Stage.HELD, now
    state.relevel(claim)
    state.recount(pool, claim)
    state.stirred = True
    soft = state.parameters.idle_soft_s
    if claim.idle_since is not None and soft:
        at = now + soft if failed else max(now, claim.idle_since + soft)
        state.timer(at, IDLE, claim, claim.idle_since)
    nodes = [pool.nodes[index] for index in claim.given]
    if any(node.draining for node in nodes):
        state.timer(now + (SERVE_EVERY_S if failed else 0.0), EVICT, claim, claim.epoch)
    if claim.count < claim.devices:
        state.touched |= dict.fromkeys(nodes)


def _part_moves(
    state: Allocation, pool: Pool, claim: Claim, node: Node, count: int, now: float
) -> bool:
    """The part of a gang that is on `node` goes to another one that it is not on yet."""
    others = (n for n in pool.some(count, 0, len(claim.given) + 1) if n.index not in claim.given)
    target = next(others, None)
    if target is None:
        return False
    old = {node.index: claim.given[node.index]}
    given = {index: mask for index, mask in claim.given.items() if index != node.index}
    given |= state.take(pool, claim, {target.index: count})
    claim.stage = Stage.MOVING
    claim.moved_at, claim.rule, claim.leaves, claim.cause = now, "node.drain", None, None
    state.change(pool, claim, given, old, now)
    state.actions.append(do.Migrate(claim, "node.drain", claim.epoch, None, placement=dict(given)))
    return True


# -- sessions -------------------------------------------------------------------------------


def _submit(state: Allocation, event: ev.Submit, now: float) -> None:
    claim = event.claim
    if claim.id in state.claims:
        raise refuse(Conflict, because("session_exists", session=claim.id), session=claim.id)
    if claim.stage is not Stage.AWAY:
        raise refuse(Conflict, because("is_in_another_cluster", session=claim.id), session=claim.id)
    if not 1 <= claim.minimum <= claim.devices:
        why = because("least_above_most", session=claim.id, least=claim.minimum, most=claim.devices)
        raise refuse(BadRequest, why, session=claim.id)
    _check_claim(claim)
    state.claims[claim.id] = claim
    claim.home = ()
    claim.order = claim.turn = state.next_order()
    claim.mark = now
    state.account.begin(claim, now)
    _try_now(state, claim, now)


def _check_claim(claim: Claim) -> None:
    counts = claim.counts
    if counts and (
        list(counts) != sorted(set(counts))
        or counts[-1] > claim.devices
        or not (claim.minimum in counts or claim.minimum == claim.devices)
    ):
        raise refuse(
            BadRequest,
            because(
                "counts_do_not_rise",
                session=claim.id,
                counts=tuple(counts),
                least=claim.minimum,
                most=claim.devices,
            ),
            session=claim.id,
        )
    if not 0 <= claim.tier < len(TIERS) or not 0 <= claim.priority < len(PRIORITIES):
        raise refuse(
            BadRequest,
            because(
                "rank_out_of_range",
                session=claim.id,
                tier_rank=claim.tier,
                priority_rank=claim.priority,
            ),
            session=claim.id,
        )
    if not 1 <= claim.share_milli <= 1000 or (claim.shares and claim.devices > 1):
        milli, number = claim.share_milli, claim.devices
        why = because("share_out_of_range", session=claim.id, share_milli=milli, number=number)
        raise refuse(BadRequest, why, session=claim.id)
    for seconds in (*claim.costs, claim.interval_s):
        if not 0 <= seconds < NEVER:
            why = because("cost_out_of_range", session=claim.id, seconds=seconds)
            raise refuse(BadRequest, why, session=claim.id)


def _try_now(state: Allocation, claim: Claim, now: float) -> None:
    """It wants devices. Nobody else is looked at: nothing has become free for them."""
    state.wait(claim, now)
    if serving.must_queue(state, claim) or not serving.try_place(state, claim, now):
        stirred = state.stirred
        state.enqueue(claim, now)
        state.stirred = stirred


def _claim(state: Allocation, id: ev.Id) -> Claim:
    claim = state.claims.get(id)
    if claim is None:
        raise refuse(NotFound, because("no_such_session", session=id), session=id)
    return claim


def _want(state: Allocation, event: ev.Want, now: float) -> None:
    claim = _claim(state, event.id)
    if not claim.busy:
        since = now if claim.idle_since is None else claim.idle_since
        if now - since >= state.parameters.idle_grace_s:
            claim.woken_at = now
        claim.busy, claim.idle_since = True, None
        state.account.begin(claim, now)
    if claim.stage is Stage.AWAY:
        state.account.begin(claim, now)
        _try_now(state, claim, now)
    elif claim.stage is Stage.LEAVING:
        claim.wants = claim.preempted = True
    elif claim.stage is Stage.HELD:
        pool = state.pool_of(claim)
        state.recount(pool, claim)
        if claim.count < claim.devices:
            state.touched |= dict.fromkeys(pool.nodes[index] for index in claim.given)
            state.stirred = True


def _idle(state: Allocation, event: ev.Idle, now: float) -> None:
    claim = _claim(state, event.id)
    if not claim.busy:
        return
    state.account.pause(claim, now)
    claim.busy, claim.idle_since = False, now
    if claim.stage is Stage.WAITING:
        state.queue.leave(claim)
        state.moved_up()
        _away(claim)
    elif claim.stage is Stage.GATHERING:
        state.vacate(state.pool_of(claim), claim, now)
        _away(claim)
    elif claim.stage is Stage.LEAVING:
        claim.wants = False
    else:
        state.recount(state.pool_of(claim), claim)
        if state.parameters.idle_soft_s:
            state.timer(now + state.parameters.idle_soft_s, IDLE, claim, now)
        if state.queue.waiting:
            begin = max(
                now + state.parameters.idle_grace_s, claim.since + state.parameters.min_run_s
            )
            state.serve_later(begin)


def _away(claim: Claim) -> None:
    claim.stage, claim.waiting_since = Stage.AWAY, None
    claim.at_risk = claim.starves = False


def _busy(state: Allocation, event: ev.Busy, now: float) -> None:
    _want(state, ev.Want(event.id), now)


def _release(state: Allocation, event: ev.Release, now: float) -> None:
    _gone(state, _claim(state, event.id), now)


def _gone(state: Allocation, claim: Claim, now: float) -> None:
    """It has no devices and wants none."""
    pool = state.pool_of(claim)
    cause, claim.leaves = claim.leaves, None
    if claim.stage is Stage.WAITING:
        state.queue.leave(claim)
        state.moved_up()
    elif claim.stage is not Stage.AWAY:
        state.vacate(pool, claim, now)
    state.account.pause(claim, now)
    _away(claim)
    claim.epoch += 1
    _hand_over(state, pool, claim, cause, now)


def _left(state: Allocation, event: ev.Left, now: float) -> None:
    claim = state.claims.get(event.id)
    if claim is not None and claim.stage is Stage.LEAVING and claim.epoch == event.epoch:
        _has_left(state, state.pool_of(claim), claim, now)


def _has_left(state: Allocation, pool: Pool, claim: Claim, now: float) -> None:
    cause, claim.leaves = claim.leaves, None
    state.vacate(pool, claim, now)
    if claim.wants:
        claim.wants = False
        state.enqueue(claim, now)
    else:
        _away(claim)
    _hand_over(state, pool, claim, cause, now)


def _hand_over(
    state: Allocation, pool: Pool, claim: Claim, cause: Claim | None, now: float
) -> None:
    if cause is not None and cause.stage is Stage.GATHERING and claim.id in cause.lacks:
        del cause.lacks[claim.id]
        serving.handed(state, pool, cause, now)


def _leave_failed(state: Allocation, event: ev.LeaveFailed, now: float) -> None:
    claim = state.claims.get(event.id)
    if claim is None or claim.stage is not Stage.LEAVING or claim.epoch != event.epoch:
        return
    pool = state.pool_of(claim)
    cause, claim.leaves = claim.leaves, None
    state.account.advance(claim, now)
    claim.since = now
    claim.wants = claim.preempted = False
    claim.cause = None
    _rests(state, pool, claim, now, failed=True)
    _hand_over(state, pool, claim, cause, now)


def _changed(state: Allocation, event: ev.Changed, now: float) -> None:
    claim = state.claims.get(event.id)
    if claim is None or claim.epoch != event.epoch:
        return
    if claim.stage in (Stage.RESIZING, Stage.MOVING):
        _has_changed(state, state.pool_of(claim), claim, now)


def _has_changed(state: Allocation, pool: Pool, claim: Claim, now: float) -> None:
    cause, claim.leaves = claim.leaves, None
    state.account.advance(claim, now)
    old, claim.old = claim.old, {}
    if old:
        state.drop(pool, claim, old)
    _rests(state, pool, claim, now)
    _hand_over(state, pool, claim, cause, now)


def _change_failed(state: Allocation, event: ev.ChangeFailed, now: float) -> None:
    claim = state.claims.get(event.id)
    if claim is None or claim.epoch != event.epoch:
        return
    if claim.stage in (Stage.RESIZING, Stage.MOVING):
        _stays(state, state.pool_of(claim), claim, now)


def _stays(state: Allocation, pool: Pool, claim: Claim, now: float) -> None:
    """A move or resize came to nothing: it has what it had before."""
    cause, claim.leaves = claim.leaves, None
    state.account.advance(claim, now)
    before = claim.before
    gone = {i: new for i, m in claim.given.items() if (new := m & ~before.get(i, 0))}
    claim.given, claim.old = before, {}
    claim.count = sum(mask.bit_count() for mask in before.values())
    # A change that fails is not tried again at once, however short its own interval is.
    again_s = max(SERVE_EVERY_S, claim.interval_s, state.parameters.scale_interval_s)
    claim.scaled_at = now + again_s - claim.interval_s
    if gone:
        state.drop(pool, claim, gone)
    _rests(state, pool, claim, now, failed=True)
    _hand_over(state, pool, claim, cause, now)


def _finish(state: Allocation, event: ev.Finish, now: float) -> None:
    claim = _claim(state, event.id)
    _gone(state, claim, now)
    state.account.end(claim, now)
    del state.claims[claim.id]
    claim.token += 1


def _depart(state: Allocation, event: ev.Depart, now: float) -> None:
    """What it attained, what it got in this window and how long it has waited go with it."""
    claim = _claim(state, event.id)
    if claim.stage is not Stage.WAITING:
        raise refuse(Conflict, because("does_not_wait", session=claim.id), session=claim.id)
    since = claim.waiting_since
    _gone(state, claim, now)
    del state.claims[claim.id]
    claim.token += 1
    claim.waiting_since = since


def _quota(state: Allocation, event: ev.Quota, now: float) -> None:
    if event.devices is not None and event.devices < 0:
        raise refuse(BadRequest, because("negative_quota", number=event.devices))
    name = event.virtual_cluster
    mine = [c for c in state.claims.values() if c.virtual_cluster == name]
    for claim in mine:
        claim.borrowed = False
    if event.devices is None:
        state.quotas.pop(name, None)
    else:
        quota = state.quotas[name] = VirtualCluster(event.devices, event.may_borrow)
        for claim in sorted(mine, key=lambda c: (-c.tier, c.order)):
            held = state.charged(claim)
            if quota.own + held <= quota.devices:
                quota.own += held
            elif held:
                state.mark_borrowed(claim)
    for claim in mine:
        if claim.given:
            state.recount(state.pool_of(claim), claim)
        if claim.stage is Stage.WAITING:
            state.queue.leave(claim)
            state.enqueue(claim, now)
    for pool in state.pools.values():
        pool.freed()
    state.stirred = True


# -- time -----------------------------------------------------------------------------------


def _tick(state: Allocation, event: ev.Tick, now: float) -> None:
    while state.next_due <= now:  # which forgets those that mean nothing any more
        _, _, kind, claim, mark = heappop(state.due)
        _TIMERS[kind](state, claim, mark, now)


def _level_due(state: Allocation, claim: Claim, mark: float, now: float) -> None:
    state.account.advance(claim, now)
    state.relevel(claim)
    state.recount(state.pool_of(claim), claim)
    if state.queue.waiting:
        state.stirred = True


def _idle_due(state: Allocation, claim: Claim, mark: float, now: float) -> None:
    state.preempt(state.pool_of(claim), claim, now, "idle.reclaim", None)


def _serve_due(state: Allocation, claim: None, mark: float, now: float) -> None:
    if state.serve_at == mark:
        state.serve_at, state.served_at = NEVER, now
        for pool in state.pools.values():
            pool.freed()
        state.stirred = True


def _risk_due(state: Allocation, claim: Claim, mark: float, now: float) -> None:
    state.account.advance(claim, now)
    patience = state.parameters.starve_s
    since = now if claim.waiting_since is None else claim.waiting_since
    starves = bool(patience) and now - since >= patience - 1e-6
    capacity = state.pool_of(claim).capacity
    at_risk = state.account.behind(claim) and state.account.feasible(capacity)
    same = (starves, at_risk) == (claim.starves, claim.at_risk)
    claim.starves, claim.at_risk = starves, at_risk
    if not same:
        state.line_up(claim)
    if not starves and patience:
        state.timer(since + patience, RISK, claim, claim.token)
    if same:
        return
    if at_risk or starves:
        serving.try_place(state, claim, now)
    state.moved_up()


def _grow_due(state: Allocation, claim: Claim, mark: float, now: float) -> None:
    pool = state.pool_of(claim)
    for index in claim.given:
        state.touched[pool.nodes[index]] = None
    state.stirred = True


def _defragment_due(state: Allocation, claim: None, mark: float, now: float) -> None:
    later = [defrag.consolidate(state, pool, now) for pool in state.pools.values()]
    state.defragments = False
    if any(later):
        state.defragment_later(now + state.parameters.defrag_interval_s)


_TIMERS: dict[int, Callable[[Allocation, Any, float, float], None]] = {
    LEVEL: _level_due,
    IDLE: _idle_due,
    SERVE: _serve_due,
    RISK: _risk_due,
    GROW: _grow_due,
    DEFRAGMENT: _defragment_due,
    EVICT: _evict_due,
}

_HANDLERS: dict[type, Handler] = {
    ev.NodeUp: _node_up,
    ev.NodeLost: _node_lost,
    ev.Cordon: _cordon,
    ev.Uncordon: _uncordon,
    ev.Drain: _drain,
    ev.Submit: _submit,
    ev.Want: _want,
    ev.Idle: _idle,
    ev.Busy: _busy,
    ev.Release: _release,
    ev.Left: _left,
    ev.LeaveFailed: _leave_failed,
    ev.Changed: _changed,
    ev.ChangeFailed: _change_failed,
    ev.Finish: _finish,
    ev.Depart: _depart,
    ev.Quota: _quota,
    ev.Tick: _tick,
}
