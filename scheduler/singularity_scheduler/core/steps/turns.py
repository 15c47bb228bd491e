"""A node's turn: who waits there gets devices, and who has some gives them up, as the engine that
the simulator replays traces through decides it (`core.allocation`). Pure.

A session's devices are all on its node, because its rings are in that node's memory. So the engine
gets that node alone, with its holders and those who wait there as claims, and what it decides is
carried out as steps of sessions. Devices that their holders are just leaving count as free, and are
given out when they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import elastic, serving
from singularity_scheduler.core.allocation.claims import Claim, Stage
from singularity_scheduler.core.allocation.harm import SLOTS, slot
from singularity_scheduler.core.allocation.pool import Pool
from singularity_scheduler.core.allocation.queue import key_of
from singularity_scheduler.core.allocation.sla import Account
from singularity_scheduler.core.allocation.state import NEVER, Allocation, VirtualCluster
from singularity_scheduler.core.allocation.victims import protected_until
from singularity_scheduler.core.moves import scaling
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.state import queue, shares
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.layout import kept
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from . import keeping

LOOKED_AT = 64
"""Most of those who wait on one node that one turn looks at, those of higher tiers first."""

LineKey = tuple[float, ...]


class Place(NamedTuple):
    """Of one that waits for devices of a node."""

    number: int
    """1 for who is served next."""
    key: LineKey
    """By which they are sorted; `precedence` names its parts."""


UNKNOWN = -1e18
"""A time so long ago that nothing depends on it."""


class Turn:
    """One node as the engine sees it."""

    def __init__(
        self,
        draft: Draft,
        node_id: str,
        visitor: SessionView | None = None,
        without: Collection[str] = (),
        taken: Collection[str] = (),
    ) -> None:
        """`visitor`: one more that would wait there. `without`: those who wait and are not looked
        at; `taken`: devices that are kept for one of them."""
        self.draft = draft
        self.found: dict[str, tuple[str, ...]] = {}
        """Who waits and finds free devices -> which."""
        self.kept: dict[str, list[str]] = {}
        """Who waits and has a turn, and finds them or not -> what is there for it already."""
        self.allocation = Allocation(_of_one_node(draft.state.parameters), node_id)
        occupants = {d: view for d, view in draft.usable(node_id).items() if d not in taken}
        self.free = [d for d, view in occupants.items() if view is None]
        self.coming = [d for d, view in occupants.items() if view and _leaves(view, d)]
        self.pool = self.allocation.pools[""] = Pool()
        self.pool.add(node_id, len(occupants))
        holders: dict[str, int] = {}
        for device, view in occupants.items():
            if view is not None and not _leaves(view, device):
                holders[view.id] = holders.get(view.id, 0) + 1
        self.claims: dict[str, Claim] = {}
        self.resting: dict[str, float] = {}
        """Who could not be parked -> until when it is left alone."""
        for sid, count in holders.items():
            view = draft.get(sid)
            assert view is not None
            self._holds(view, count)
        self.waiting = [
            view
            for view in islice(draft.waiting(node_id), LOOKED_AT)
            if not (view.held_back or view.id in without)
        ]
        for view in self.waiting:
            self._waits(view)
        if visitor is not None and visitor.id not in self.claims:
            self._waits(visitor)
        self._quotas()

    @property
    def account(self) -> Account:
        return self.allocation.account

    def _holds(self, view: SessionView, count: int) -> None:
        claim = self.claims[view.id] = holder_claim(self.draft, view, self.account)
        if view.scale is None and not view.wish and not view.smaller:
            claim.devices = claim.minimum = count
        else:
            claim.devices = max(claim.devices, count)
            claim.minimum = min(claim.minimum, count)
        if view.device_state is not DeviceState.HELD or not view.here:
            claim.stage = Stage.LEAVING
        elif self.draft.now < view.rests_until:
            claim.stage = Stage.LEAVING
            self.resting[view.id] = view.rests_until
        else:
            claim.stage = Stage.HELD
        claim.count = count
        self.allocation.claims[claim.id] = claim
        if shares.wants(view):
            self.account.wanted[claim.tier] += claim.share_milli * count

    def _waits(self, view: SessionView) -> None:
        claim = self.claims[view.id] = waiter_claim(self.draft, view, self.account)
        claim.stage = Stage.WAITING
        self.allocation.claims[claim.id] = claim
        self.account.wanted[claim.tier] += claim.wanted_milli

    def _quotas(self) -> None:
        """What virtual clusters have on all nodes counts; those that got devices last have
        borrowed them."""
        for name in dict.fromkeys(claim.virtual_cluster for claim in self.claims.values()):
            cluster = self.draft.cluster(name)
            if cluster is not None:
                self.allocation.quotas[name] = VirtualCluster(
                    cluster.quota_devices, cluster.may_borrow
                )
        beyond = {name: quotas.borrowed(self.draft, name) for name in self.allocation.quotas}
        held = [c for c in self.claims.values() if c.stage is not Stage.WAITING]
        for claim in sorted(held, key=lambda c: -c.order):
            if claim.stage is Stage.HELD and beyond.get(claim.virtual_cluster, 0) > 0:
                beyond[claim.virtual_cluster] -= claim.count
                claim.borrowed = True
        for claim in held:
            claim.given = self.allocation.take(self.pool, claim, {0: claim.count})
            self.allocation.recount(self.pool, claim)
        for name, quota in self.allocation.quotas.items():
            quota.own = self.draft.held_of(name)

    def enter(self) -> None:
        """Put those who wait into the queue."""
        for view in self.waiting:
            claim = self.claims[view.id]
            self.judge(claim)
            self.allocation.line_up(claim)

    def judge(self, claim: Claim) -> None:
        """Whether the guarantee of one that waits is at risk, and whether it waits for too long."""
        since = claim.waiting_since
        waited_s = 0.0 if since is None else self.draft.now - since
        patience_s = self.allocation.parameters.starve_s
        claim.starves = bool(patience_s) and waited_s >= patience_s
        claim.at_risk = (
            waited_s >= self.account.patience_s(claim.tier)
            and self.account.behind(claim)
            and self.account.feasible(self.pool.capacity)
        )

    def reserve(self, view: SessionView, count: int) -> list[str]:
        """`count` devices for it: those that it prefers or had, if it can have them; free ones
        before those that are about to be."""
        there = [*self.free, *self.coming]
        if view.preferred and set(view.preferred) <= set(there):
            taken = list(view.preferred)
        elif view.home and len(view.home) == count and set(view.home) <= set(self.free):
            taken = list(view.home)
        else:
            taken = there[:count]
        return taken

    def others(self, count: int) -> list[str]:
        """`count` devices for one that has some already, as `reserve`."""
        return [*self.free, *self.coming][:count]

    def remove(self, taken: list[str]) -> None:
        self.free = [d for d in self.free if d not in taken]
        self.coming = [d for d in self.coming if d not in taken]


@lru_cache(maxsize=8)
def _of_one_node(parameters: Parameters) -> Parameters:
    """Those of a whole cluster without what is none of one node's business. What is kept free for
    premium sessions would be a share of each node, and those who wait elsewhere would come for
    it."""
    return parameters.changed(headroom_fraction=0.0)


def _leaves(view: SessionView, device: str) -> bool:
    """Whether its holder is just leaving this device."""
    return queue.parking(view) or bool(view.resizing and device not in view.resizing)


def holder_claim(draft: Draft, view: SessionView, account: Account) -> Claim:
    """One that has devices."""
    before = draft.state.sessions.get(view.id, view)
    claim = shares.claim_of(view, before, draft.now, account)
    claim.level = _level(draft, view, claim.attained)
    rests = _rests(view) and not keeping.kept(view, draft.state.parameters, draft.now)
    claim.busy = not rests
    claim.idle_since = _known(view.quiet_since) if rests else None
    claim.since = _known(view.held_since)
    claim.order = view.attach_order
    claim.scaled_at, claim.woken_at = _known(view.scaled_at), _known(view.woken_at)
    claim.interval_s = draft.state.parameters.scale_interval_s
    if view.scale is not None:
        if view.scale.interval_s is not None:
            claim.interval_s = view.scale.interval_s
        claim.counts = _counts(view)
    return claim


def _counts(view: SessionView) -> tuple[int, ...]:
    """The numbers of devices that its policy allows, as far as it may go now."""
    assert view.scale is not None
    if not view.scale.counts:
        return ()
    return tuple(sorted({*(c for c in view.scale.counts if c < view.most), view.most}))


def _rests(view: SessionView) -> bool:
    """Whether it is idle, and no calls reach its devices all the same."""
    return view.idle and view.unused_since != 0.0


def waiter_claim(draft: Draft, view: SessionView, account: Account) -> Claim:
    """One that waits for some."""
    before = draft.state.sessions.get(view.id, view)
    claim = shares.claim_of(view, before, draft.now, account)
    claim.level = _level(draft, view, claim.attained)
    claim.order = claim.turn = view.queue_order
    claim.waiting_since = view.waiting_since
    # What it is granted in this turn it has not got yet: nobody gets any of it in the same turn.
    claim.interval_s = NEVER
    if view.scale is not None:
        claim.counts = _counts(view)
    return claim


def _level(draft: Draft, view: SessionView, attained: float) -> int:
    """The level of what it attained; of one in a group: of what its started members did."""
    state = draft.state
    if view.member is not None and (group := state.groups.get(view.member.group)):
        others = (state.sessions[sid] for sid in group.started if sid != view.id)
        for other in others:
            attained += shares.accounted(other, draft.now, state.parameters).attained_device_s
    return state.parameters.level(attained)


def _known(at: float | None) -> float:
    return UNKNOWN if at is None else at


# -- a turn ---------------------------------------------------------------------------------


def serve(
    draft: Draft, node_id: str, without: Collection[str] = (), taken: Collection[str] = ()
) -> None:
    """Give out the devices of one node; called at the end of each decision that touches it.
    `without` and `taken`: as of `Turn`, for parts of gangs (`turns`)."""
    turn = decided(draft, node_id, without, taken)
    if turn is None:
        return
    carry_out(turn)
    for view in turn.waiting:
        if turn.claims[view.id].stage is Stage.WAITING and (why := quotas.barred(draft, view)):
            queue.wait_for_quota(draft, view, why)


def decided(
    draft: Draft, node_id: str, without: Collection[str] = (), taken: Collection[str] = ()
) -> Turn | None:
    """The turn with what the engine decided; None: there is nothing to decide."""
    if not draft.node(node_id).connected or draft.duty(node_id).leaving:
        return None
    smaller = draft.smaller(node_id)
    if not smaller and next(draft.waiting(node_id), None) is None:
        return None
    turn = Turn(draft, node_id, None, without, taken)
    if not turn.pool.capacity:
        return None
    turn.enter()
    if turn.waiting:
        serving.serve(turn.allocation, draft.now)
    if smaller:
        turn.allocation.touched = dict.fromkeys(turn.pool.nodes)
        elastic.grow(turn.allocation, draft.now)
    return turn


def carry_out(turn: Turn, only_look: bool = False, keep_for: str = "") -> None:
    """Make steps of sessions of what the engine decided. `only_look`: none, only find out who has
    a turn (`Turn.kept`, `Turn.found`); `keep_for`: this one gets nothing, its devices are kept."""
    gathering: set[str] = set()
    for action in turn.allocation.actions:
        if isinstance(action, do.Grant):
            sid = str(action.claim.id)
            _grant(turn, sid, action.claim.count, only_look or sid == keep_for)
        elif isinstance(action, do.Preempt) and action.cause is not None:
            sid, waiter = str(action.claim.id), str(action.cause.id)
            if waiter not in gathering:  # what is free already is kept for it
                gathering.add(waiter)
                _keep(turn, waiter, action.cause.given)
            if only_look:
                continue
            victim, cause = turn.draft.get(sid), turn.draft.get(waiter)
            assert victim is not None
            assert cause is not None
            preempt(turn.draft, victim, cause, action.rule)
        elif isinstance(action, do.Resize):
            _resize(turn, action, gathering, only_look)


def _resize(turn: Turn, action: do.Resize, gathering: set[str], only_look: bool) -> None:
    draft, count = turn.draft, action.claim.count
    view = draft.get(str(action.claim.id))
    assert view is not None
    has = view.physical
    if action.cause is None:
        # A drained device that it still holds is none of the turn's: it may need no other one.
        more = turn.others(max(0, count - len(has)))
        if more and set(more) <= set(turn.free) and not only_look:
            reason = reasons.grown(view, count)
            scaling.begin(draft, view, (*has, *more), reason, action.rule)
        turn.remove(more)
        return
    waiter = draft.get(str(action.cause.id))
    assert waiter is not None
    if waiter.id not in gathering:
        gathering.add(waiter.id)
        _keep(turn, waiter.id, action.cause.given)
    if only_look:
        return
    reason = reasons.shrunk(view, count, waiter)
    scaling.begin(draft, view, kept(view.devices, count), reason, action.rule)


def _grant(turn: Turn, sid: str, count: int, only_look: bool) -> None:
    view = turn.draft.get(sid)
    assert view is not None
    taken = turn.reserve(view, count)
    turn.kept[sid] = taken
    if set(taken) <= set(turn.free):
        turn.found[sid] = tuple(taken)
        if not only_look and view.part is None:  # parts get theirs together, see `turns`
            queue.grant(turn.draft, view, tuple(taken))
    turn.remove(taken)


def _keep(turn: Turn, sid: str, given: dict[int, int]) -> None:
    view = turn.draft.get(sid)
    assert view is not None
    taken = turn.kept[sid] = turn.reserve(view, sum(mask.bit_count() for mask in given.values()))
    turn.remove(taken)


_REASONS = {
    "preempt.idle": lambda victim, waiter: reasons.paused_idle(waiter),
    "preempt.tier": reasons.paused_lower,
    "preempt.borrowed": reasons.paused_borrower,
    "preempt.slice": reasons.paused_for_slice,
    "preempt.service": reasons.paused_for_turn,
    "preempt.starves": reasons.paused_for_long_wait,
    "preempt.guarantee": reasons.paused_for_guarantee,
}


def preempt(draft: Draft, victim: SessionView, waiter: SessionView, rule: str) -> None:
    """Park `victim` for `waiter`; both reasons name the other."""
    queue.park(draft, victim, _REASONS[rule](victim, waiter), rule)


# -- questions ------------------------------------------------------------------------------


def gives_up(draft: Draft, waiter: SessionView, node_id: str) -> dict[str, str]:
    """Who on the node has to give its devices up for `waiter` now: session -> by which rule."""
    found = will_give_up(draft, waiter, node_id)
    return {sid: rule for sid, (rule, at) in found.items() if at <= draft.now}


def will_give_up(draft: Draft, waiter: SessionView, node_id: str) -> dict[str, tuple[str, float]]:
    """Who on the node has to give its devices up for `waiter` as things are: session -> (by which
    rule, from when on)."""
    turn = Turn(draft, node_id, waiter)
    mine = turn.claims[waiter.id]
    if mine.stage is not Stage.WAITING:  # it has devices there and wants others
        mine = waiter_claim(draft, waiter, turn.account)
    turn.judge(mine)
    borrows = turn.allocation.borrows(mine, mine.minimum)
    if borrows and not turn.allocation.quotas[mine.virtual_cluster].may_borrow:
        return {}
    reach, parameters = SLOTS[slot(mine, borrows)], draft.state.parameters
    return {
        str(claim.id): (
            serving.rule_of(claim, mine),
            max(
                protected_until(claim, mine, draft.now, parameters),
                turn.resting.get(str(claim.id), UNKNOWN),
            ),
        )
        for claim in turn.claims.values()
        if (claim.stage is Stage.HELD or claim.id in turn.resting)
        and claim.id != waiter.id
        and claim.harm < reach
    }


def released_at(state: ClusterState, holder: SessionView) -> float | None:
    """When anybody of its tier may take the devices of an idle holder; None: it is not idle."""
    if not _rests(holder) or holder.process_state is not ProcessState.LIVE:
        return None
    parameters = state.parameters
    claim = Claim(holder.id, holder.virtual_devices, tier=holder.tier.rank)
    claim.busy, claim.idle_since = False, _known(holder.quiet_since)
    claim.since = _known(holder.held_since)
    free_at = protected_until(claim, claim, state.latest, parameters)
    return max(free_at, holder.rests_until, keeping.end_of(holder, parameters) or 0.0)


def line(state: ClusterState, node_id: str) -> dict[str, Place]:
    """Who waits on a node for devices, in the order in which they are served, as of when something
    was decided last. Behind those that a turn looks at come the others, and last those that
    somebody holds back."""
    kept = state.lines.get(node_id)
    if kept is not None and kept[0] == state.latest:
        return kept[1]
    turn = Turn(Draft(state, state.latest), node_id)
    turn.enter()
    keys = {view.id: _key(turn, view) for view in state.waiting(node_id)}
    ordered = sorted(keys.items(), key=lambda item: item[1])
    found = {sid: Place(number, key) for number, (sid, key) in enumerate(ordered, 1)}
    state.lines[node_id] = state.latest, found
    return found


def _key(turn: Turn, view: SessionView) -> LineKey:
    claim = turn.claims.get(view.id)
    if claim is None or claim.stage is not Stage.WAITING:
        order = (-view.tier.rank, False, False, False, False, False, 0, -view.priority.rank)
        return (view.held_back, True, *order, view.queue_order)
    borrows = turn.allocation.borrows(claim, claim.minimum)
    return (False, False, -claim.tier, borrows, *key_of(claim))


def place(state: ClusterState, view: SessionView) -> int:
    """1 for who is served next; only for a session that waits for devices, to be started or to come
    back."""
    if view.returning:
        return bisect_left(state.returning, view.queue_key) + 1
    if view.pending:
        return bisect_left(state.nodes[view.node].pending, view.queue_key) + 1
    return line(state, view.node)[view.id].number
