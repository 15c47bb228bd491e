"""Turns of nodes on which parts of gangs wait: all of a gang get devices in one decision, or none
of them does. Pure.

Gangs are taken in the order of the queue. One whose parts all find free devices gets them. Of the
others those *lead* that share no node with one before them: for a part of theirs devices are kept,
and others are paused, as for anybody who waits alone. Nothing is kept for those behind; so no two
gangs wait for what the other one has gathered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from . import gangs, queue, quotas, turns
from .draft import Draft
from .model import SessionView
from .states import DeviceState

LOOKED_AT = 16
"""Most gangs that one decision looks at; those behind get nothing in it."""


def serve(draft: Draft, nodes: Collection[str]) -> set[str]:
    """Give out the devices of those of these nodes, and of all that have parts of the same gangs,
    on which parts wait; which these are. The others are left to `turns.serve`."""
    found = _found(draft, nodes)
    if not found:
        return set()
    there = {view.node for views in found for view in views if _waits(view)}
    able = [views for views in found if _may_have_devices(draft, views)]
    open_ = [list(filter(_waits, views)) for views in sorted(able, key=_key)[:LOOKED_AT]]
    out = {view.id for views in found for view in views if _waits(view)}
    out -= {view.id for views in open_ for view in views}
    while open_:
        plans = {node: turns.planned(draft, node, out) for node in sorted(there)}
        ready = next((g for g in open_ if all(v.id in plans[v.node] for v in g)), None)
        if ready is not None:
            for view in ready:
                queue.grant(draft, draft.get(view.id) or view, plans[view.node][view.id])
            open_.remove(ready)
            continue
        leading = _leading(draft, open_)
        last = next((g for g in reversed(open_) if g not in leading), None)
        if last is None:
            break
        out |= {view.id for view in last}
        open_.remove(last)
    kept = {view.id for views in open_ for view in views}
    for node in sorted(there):
        turns.serve(draft, node, without=out, kept=kept)
    return there


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
    for view in waiting if why else ():
        queue.wait_for_quota(draft, view, why)
    return not why


def _leading(draft: Draft, waiting: list[list[SessionView]]) -> list[list[SessionView]]:
    """Those for which devices are kept."""
    found, taken = [], set[str]()
    for views in waiting:
        if not gangs.may_gather(draft, views):
            continue
        if taken.isdisjoint(view.node for view in views):
            found.append(views)
        taken |= {view.node for view in views}
    return found
