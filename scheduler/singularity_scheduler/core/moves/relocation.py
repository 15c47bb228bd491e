"""Sessions that wait for devices on a full node go where some are free. Part of `decide`.

The whole session moves, through the store, because its devices have to be on its node. That takes
seconds, so it waits a while first: most waits are over before.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.placement import routes
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from . import whole as moves

RULE = "place.elsewhere"

LOOKED_AT = 16
"""Most of those who wait on a node that are looked at in one go, and most nodes with free devices
of each cluster that are tried for one of them."""

LEAVE_RETRY_S = 60.0
"""Seconds before a session that could not be stored is asked again."""


def proceed(draft: Draft, node_id: str) -> None:
    """Let the first one that has waited on this node for long enough go; one at a time, for the
    disk and the network are shared. Called as time goes by."""
    if not may_send(draft, node_id):
        return
    room, looked = draft.state.geography.room, 0
    failed: set[tuple[object, ...]] = set()
    for view in draft.waiting(node_id):
        if view.held_back or looked == LOOKED_AT:
            return
        needs = (view.needs, view.locations, view.virtual_cluster, view.tier)
        if view.needs > room or needs in failed or not is_patient(draft, view):
            continue
        if not may_leave(draft, view):
            continue
        looked += 1
        target = free_node(draft, view)
        if target is not None:
            _go(draft, view, target)
            return
        failed.add(needs)


def may_send(draft: Draft, node_id: str) -> bool:
    """Whether sessions could leave this node for devices that are free on others."""
    parameters, node = draft.state.parameters, draft.node(node_id)
    if not parameters.relocate_after_s or not draft.state.geography.room:
        return False
    return node.connected and not node.abilities.trouble and not draft.duty(node_id).leaving


def is_patient(draft: Draft, view: SessionView) -> bool:
    """Whether one that waits for devices has done so for long enough."""
    since = view.waiting_since if view.waiting_since is not None else draft.now
    waited_s = draft.now - since
    return not view.held_back and waited_s >= draft.state.parameters.relocate_after_s


def may_leave(draft: Draft, view: SessionView) -> bool:
    failed = view.leave_failed
    rests = failed is not None and draft.now - failed[0] < LEAVE_RETRY_S
    there = view.process_state is ProcessState.LIVE and view.leaving is None and view.part is None
    # One that was told which devices to take, or that somebody moves just now, is let be.
    return there and not (rests or view.preferred or view.moving)


def free_node(draft: Draft, view: SessionView, promised: int = 0) -> str | None:
    """A node with free devices for it that nobody waits for or is on the way to, `promised` of them
    not counted; of its own cluster if there is one."""
    wants = replace(view, wants=True, target="")
    # Those that leave just now come first; those that are in the store already found no room.
    ahead = promised + sum(other.needs for other in draft.coming(""))
    for cluster in routes.order(draft.state, view):
        there = draft.state.geography.clusters[cluster].with_free(view.needs)
        for node_id in islice(there, LOOKED_AT):
            if node_id == view.node or next(draft.waiting(node_id), None) is not None:
                continue
            free = sum(holder is None for holder in draft.usable(node_id).values())
            free -= sum(other.needs for other in draft.coming(node_id))
            if free < view.needs or placement.no_room(draft, wants, node_id):
                continue
            if free - ahead >= view.needs:
                return node_id
            ahead = max(0, ahead - free)
    return None


def _go(draft: Draft, view: SessionView, node_id: str) -> None:
    assert view.device_state is DeviceState.WAITING
    view = replace(view, called=True, moving=True, unwind=True, target="", restore_from="")
    moves.leave(draft, view, reasons.goes_elsewhere(view, node_id), RULE)
