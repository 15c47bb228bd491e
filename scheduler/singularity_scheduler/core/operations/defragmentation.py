"""Busy sessions leave a node so that one which waits there for more devices than are free gets them
all. Part of `decide`.

As `allocation.defrag` does it in one step for claims, but through the store: those who go are away
for seconds, so it happens only for who waited a while, where nothing else made room, and when the
devices that get to work are worth it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from singularity_scheduler.core.allocation.defrag import SETTLES_S
from singularity_scheduler.core.moves import relocation
from singularity_scheduler.core.moves import whole as moves
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState

from . import quotas

RULE = "place.defragment"

UNMEASURED_S = 10.0
"""What a way into the store is taken to last before one was seen; the way back takes no longer."""


def proceed(draft: Draft, node_id: str) -> None:
    """Make room for who is first in line on this node; called as time goes by."""
    parameters = draft.state.parameters
    if not parameters.defrag_interval_s or not relocation.may_send(draft, node_id):
        return
    waiter = _first(draft, node_id)
    if waiter is None or quotas.barred(draft, waiter):
        return  # it is not devices that it lacks
    holders = draft.usable(node_id)
    need = waiter.needs - sum(view is None for view in holders.values())
    others = {view.id: view for view in holders.values() if view is not None}
    if need <= 0 or waiter.needs > len(holders):
        return
    if not all(map(_stays, others.values())):
        return  # what they leave is to be given out first
    worth = waiter.needs * parameters.defrag_interval_s / parameters.defrag_gain
    for view in _leavers(draft, waiter, list(others.values()), need, worth):
        _go(draft, view, waiter)


def _first(draft: Draft, node_id: str) -> SessionView | None:
    """Who is served first there, if it has waited for long enough."""
    if not any(relocation.is_patient(draft, view) for view in draft.waiting(node_id)):
        return None
    first = next(iter(turns.line(draft.state, node_id)), None)
    view = draft.get(first) if first else None
    waits = view is not None and view.device_state is DeviceState.WAITING
    return view if waits and view and relocation.is_patient(draft, view) else None


def _stays(view: SessionView) -> bool:
    return view.here and view.leaving is None and view.device_state is DeviceState.HELD


def cost_s(view: SessionView) -> float:
    """Device-seconds that moving it costs, by how long it took last time."""
    return len(view.physical) * 2 * (view.suspend_s or UNMEASURED_S)


def _leavers(
    draft: Draft, waiter: SessionView, holders: list[SessionView], need: int, worth: float
) -> list[SessionView]:
    """Who leaves so that `need` more devices are free; []: nobody, it cannot be done or does not
    pay. Others that wait would take what the first one leaves, so then only one may go."""
    movable = [view for view in holders if _movable(draft, view, waiter)]
    alone = sum(1 for _ in draft.waiting(waiter.node)) == 1
    for chosen in _choices(movable, need, several=alone):
        if sum(map(cost_s, chosen)) <= worth and _all_find_places(draft, chosen):
            return chosen
    return []


def _choices(movable: list[SessionView], need: int, several: bool) -> Iterator[list[SessionView]]:
    """Sets of sessions that free enough: each one that does alone, the cheapest first; then
    some together, with as few devices as possible."""
    for view in sorted(movable, key=cost_s):
        if len(view.physical) >= need:
            yield [view]
    if not several:
        return
    together: list[SessionView] = []
    smaller = [v for v in movable if len(v.physical) < need]
    smaller.sort(key=lambda v: -len(v.physical))
    while need > 0 and smaller:  # the largest that is not too large, or else the smallest
        view = next((v for v in smaller if len(v.physical) <= need), smaller[-1])
        smaller.remove(view)
        together.append(view)
        need -= len(view.physical)
    if need <= 0:
        yield together


def _all_find_places(draft: Draft, chosen: list[SessionView]) -> bool:
    promised = 0
    for view in chosen:
        if relocation.free_node(draft, view, promised) is None:
            return False
        promised += len(view.physical)
    return True


def _movable(draft: Draft, view: SessionView, waiter: SessionView) -> bool:
    """Nobody goes for one of a lower tier or priority, and nobody twice in a short time. Those that
    are idle or share a device give way by themselves."""
    settled = view.held_since is not None and draft.now - view.held_since >= SETTLES_S
    whole = view.share_milli == 1000 and view.quiet_since is None
    rank, other = (view.tier.rank, view.priority.rank), (waiter.tier.rank, waiter.priority.rank)
    return settled and whole and rank <= other and relocation.may_leave(draft, view)


def _go(draft: Draft, view: SessionView, waiter: SessionView) -> None:
    view = replace(view, called=True, moving=True, unwind=True, target="", restore_from="")
    view = moves.leave(draft, view, reasons.makes_room(view, waiter), RULE)
    draft.put(replace(view, wants=True))  # it computes, so it goes where devices are free
