"""Turns of nodes on which parts of gangs wait: all of a gang get devices in one decision, or none
of them does. Pure.

Gangs are taken in the order of the queue. One whose parts all find free devices gets them. Of the
others those *gather* that have a turn on each of their nodes now, if only higher tiers went before
them there: enough is free, or just becomes so, or others have to give way. For these devices are
kept and others are paused, and those of their tier who come meanwhile do not get them: until the
last one is there, and all parts get theirs. One that is behind gathers of what those before it
leave; so no two wait for what the other one has gathered. Nothing is kept for the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState

from . import members as gangs

LOOKED_AT = 16
"""Most gangs that one decision looks at; those behind get nothing in it."""

Parts = list[SessionView]
"""Those of a gang that wait."""


def serve(draft: Draft, nodes: Collection[str]) -> set[str]:
    """Give out the devices of those of these nodes, and of all that have parts of the same gangs,
    on which parts wait; which these are. The others are left to `turns.serve`."""
    found = _found(draft, nodes)
    if not found:
        return set()
    waiting = [list(filter(_waits, views)) for views in found]
    there = sorted({view.node for views in waiting for view in views})
    out = {view.id for views in waiting for view in views}
    able = [views for views in found if _may_have_devices(draft, views)]
    line = [list(filter(_waits, views)) for views in sorted(able, key=_key)[:LOOKED_AT]]
    line = _grant_those_who_find(draft, line, there, out)
    taken: dict[str, set[str]] = {node: set() for node in there}
    for views in line:
        for node, devices in _gather(draft, views, taken).items():
            taken[node].update(devices)
    for node in there:
        turns.serve(draft, node, out, taken[node])
    return {*there}


def _grant_those_who_find(
    draft: Draft, line: list[Parts], there: list[str], out: set[str]
) -> list[Parts]:
    """Give devices to the gangs all parts of which find free ones when it is their turn; the
    others. Nobody has to go for a gang that does not get all."""
    left = list(line)
    while left:
        looked_at = {view.id for views in left for view in views}
        plans = {node: _planned(draft, node, out - looked_at) for node in there}
        ready = next((g for g in left if all(v.id in plans[v.node] for v in g)), None)
        if ready is None:
            left.pop()  # without it there may be more for those before it
            continue
        for view in ready:
            queue.grant(draft, view, plans[view.node][view.id])
        line = [views for views in line if views is not ready]
        left = list(line)
    return line


def _planned(draft: Draft, node_id: str, without: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Who would be given free devices of this node now, and which."""
    turn = turns.decided(draft, node_id, without)
    if turn is None:
        return {}
    turns.carry_out(turn, only_look=True)
    return turn.found


def _gather(
    draft: Draft, views: Parts, taken: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Keep devices for these parts, and have others leave theirs, if each part has a turn without
    what is `taken`; node -> what is there already. If all is there they get it."""
    found: dict[str, tuple[str, ...]] = {}
    for view in views:
        turn = turns.decided(draft, view.node, _behind(draft, view), taken[view.node])
        if turn is None:
            return {}
        turns.carry_out(turn, only_look=True)
        if view.id not in turn.kept:
            return {}
        found |= turn.found
    if found.keys() >= {view.id for view in views}:
        for view in views:
            queue.grant(draft, view, found[view.id])
        return {}
    kept: dict[str, list[str]] = {}
    for view in views:
        turn = turns.decided(draft, view.node, _behind(draft, view), taken[view.node])
        assert turn is not None
        turns.carry_out(turn, keep_for=view.id)
        kept[view.node] = turn.kept.get(view.id, [])
    return kept


def _behind(draft: Draft, view: SessionView) -> set[str]:
    """Who waits on its node and does not go before a part that gathers: all but higher tiers."""
    rank = view.tier.rank
    behind = {other.id for other in draft.waiting(view.node) if other.tier.rank <= rank}
    return behind - {view.id}


def _found(draft: Draft, nodes: Iterable[str]) -> list[list[SessionView]]:
    """The gangs with parts that wait on these nodes, or on others where gangs of these do."""
    found: dict[str, list[SessionView]] = {}
    todo, seen = list(nodes), set(nodes)
    while todo:
        for view in _parts_on(draft, todo.pop()):
            assert view.part is not None
            if view.part.gang in found:
                continue
            views = found[view.part.gang] = gangs.parts(draft, view.part)
            new = {other.node for other in views} - seen
            seen |= new
            todo += new
    return list(found.values())


def _parts_on(draft: Draft, node_id: str) -> list[SessionView]:
    known = draft.state.nodes.get(node_id)
    ids = {*(known.parts if known else ()), *(v.id for v in draft.changed.values() if v.part)}
    views = (draft.get(sid) for sid in sorted(ids))
    return [view for view in views if view is not None and view.node == node_id and _waits(view)]


def _waits(view: SessionView) -> bool:
    return view.device_state is DeviceState.WAITING


def _key(views: list[SessionView]) -> tuple[bool, int, int, int, str]:
    return min(view.queue_key for view in views)


def _may_have_devices(draft: Draft, views: list[SessionView]) -> bool:
    if not gangs.may_have_devices(draft, views):
        return False
    waiting = list(filter(_waits, views))
    why = quotas.barred(draft, waiting[0], len(waiting))
    if why is None:
        return True
    for view in waiting:
        queue.wait_for_quota(draft, view, why)
    return False
