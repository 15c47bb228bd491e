"""Where sessions go: a new one, and one that comes back from the store. Pure.

A node has room for a session that comes back when it can bring processes back, has devices enough,
and, if the session's code waits for devices, can give them before anybody who waits there already.
"""

from __future__ import annotations

from singularity_proxy.errors import BadRequest, Conflict, NotFound, Unavailable

from . import queue, reasons
from .cluster import ClusterState, Draft, Node
from .events import Resume
from .model import SessionView
from .states import DeviceState, ProcessEvent


def choose_node(state: ClusterState, devices: int) -> str:
    """The node for a new session: connected, large enough (without its drained devices, if there
    is such a node), fewest sessions per device, then by name. A session's devices are all on its
    node, because its rings are in that node's memory."""
    connected = [n for n in state.nodes.values() if n.connected]
    if not connected:
        raise Unavailable(
            "no node agent is connected, so nothing can be started: try again in a few seconds"
        )
    fitting = [n for n in connected if len(n.devices) >= devices]
    if not fitting:
        largest = max(len(n.devices) for n in connected)
        raise BadRequest(
            f"{reasons.count(devices)} asked, but this cluster has "
            f"{'no device' if not largest else f'at most {largest} for one session'}"
            f"{f': ask for 1 to {largest}' if largest else ''}",
            devices=devices,
            largest=largest,
        )
    return min(fitting, key=lambda node: _load(node, devices)).id


def _load(node: Node, devices: int) -> tuple[bool, float, str]:
    usable = len(node.usable)
    return usable < devices, len(node.sessions) / max(usable, 0.5), node.id


def named(state: ClusterState, word: str) -> Node:
    """The node that somebody named; `NotFound` with those that there are."""
    if word not in state.nodes:
        shown = word if len(word) <= 60 else f"{word[:57]}..."
        raise NotFound(
            f"there is no node '{shown}': pick from {', '.join(sorted(state.nodes)) or 'none'}",
            node=word,
        )
    return state.nodes[word]


def barred(draft: Draft, view: SessionView, node_id: str) -> str:
    """Why the session cannot come back to this node at all as things are; "": it can."""
    node = draft.node(node_id)
    if not node.connected:
        return f"node {node_id} does not answer"
    if node.abilities.trouble:
        return f"node {node_id} cannot bring processes back ({node.abilities.trouble})"
    before = draft.state.nodes.get(view.node)
    here = before.abilities.store if before else ""
    if here and node.abilities.store and here != node.abilities.store:
        return f"node {node_id} uses another store than node {view.node}"
    usable = len(draft.usable(node_id))
    if usable < view.virtual_devices:
        has = reasons.count(usable, "usable device")
        return f"node {node_id} has {has} and it needs {view.virtual_devices}"
    return ""


def no_room(draft: Draft, view: SessionView, node_id: str) -> str:
    """Why the session cannot come back to this node now; "": it can."""
    if why := barred(draft, view, node_id):
        return why
    usable = draft.usable(node_id)
    if view.run is not None:
        rank = view.tier.rank
        used = sum(n for other, n in draft.admitted(node_id).items() if other >= rank)
        if used + view.virtual_devices > len(usable):
            return f"the runs of node {node_id} leave it no room"
    if not view.wants:
        return ""
    free = sum(
        holder is None or queue.parking(holder) or queue.may_preempt(view, holder, draft.now)
        for holder in usable.values()
    )
    before = sum(v.virtual_devices for v in draft.waiting(node_id) if v.queue_key < view.queue_key)
    if free - before < view.virtual_devices:
        return f"the devices of node {node_id} are in use by sessions that go before it"
    return ""


def candidates(draft: Draft, view: SessionView) -> list[str]:
    """Nodes in the order in which they are tried: the named one alone; else the one it was on,
    then the others, the least loaded first."""
    if view.target:
        return [view.target]
    others = [n for n in draft.state.nodes.values() if n.id != view.node]
    others.sort(key=lambda node: _load(node, view.virtual_devices))
    return [view.node, *(n.id for n in others)]


def bring_back(draft: Draft) -> None:
    """Start what waits to come back wherever there is room now; called with every decision."""
    for view in draft.returning():
        if view.held_back:
            return  # they are the last ones
        nodes = candidates(draft, view)
        found = next((n for n in nodes if not no_room(draft, view, n)), None)
        if found is not None:
            resume(draft, view, found)
        elif not view.reason.endswith(_QUEUED):
            reason = f"{view.reason}; {waits(draft, view)}"
            draft.note(view, f"{reason}; {_QUEUED}", "queue.return")


_QUEUED = "it comes back by itself as soon as there is room"


def waits(draft: Draft, view: SessionView) -> str:
    """Why it does not come back yet."""
    nodes = candidates(draft, view)
    whys = [why for node in nodes if (why := no_room(draft, view, node))]
    return "; ".join(dict.fromkeys(whys)) or "no node is there"


def resume(draft: Draft, view: SessionView, node_id: str) -> SessionView:
    """Step to `resuming` on this node and command it, under the next epoch."""
    reference = view.restore_from
    if not reference:
        newest = view.newest_whole
        assert newest is not None, f"{view.id} returns without a checkpoint"
        reference = newest.id
    away = view.node != node_id
    reason, rule = reasons.coming_back(view, node_id), "queue.return"
    view = draft.step(
        view,
        ProcessEvent.RESUME,
        reason,
        rule,
        node=node_id,
        came_from=view.node if away else view.came_from,
        origin=view.origin or node_id,
        epoch=view.epoch + 1,
        seq=view.seq + 1,
        incarnation=view.incarnation + view.rollback,
        restore_from=reference,
        called=False,
        lost=False,
    )
    draft.actions.append(resume_action(view, rule))
    return view


def resume_action(view: SessionView, rule: str) -> Resume:
    """The command that a session in `resuming` waits for."""
    own = any(c.id == view.restore_from for c in view.checkpoints)
    return Resume(
        view.id,
        view.node,
        view.reason,
        rule,
        view.epoch,
        view.seq,
        checkpoint=view.restore_from,
        source=view.id if own or not view.source else view.source,
        incarnation=view.incarnation,
        undo=view.undo,
    )


def waiting_for_device(view: SessionView) -> bool:
    """Whether its code will ask for devices as soon as it is back."""
    if view.device_state is DeviceState.HELD:
        return not view.idle
    return view.wants or view.asked or view.device_state is DeviceState.WAITING


def targets(
    draft: Draft, view: SessionView, wanted: tuple[str, ...]
) -> tuple[tuple[str, ...], list[SessionView]]:
    """The devices a move goes to and who has to leave them; refuses what cannot be."""
    occupants = draft.usable(view.node)

    def obtainable(device: str) -> bool:
        holder = occupants[device]
        return holder is None or queue.parking(holder) or queue.may_preempt(view, holder, draft.now)

    if wanted:
        chosen = wanted
        for mark in (draft.mark(view.node, device) for device in chosen):
            if mark.drained:
                raise Conflict(
                    f"{mark.device} is drained ({mark.reason}): pick another device",
                    session=view.id,
                    device=mark.device,
                )
        unknown = [d for d in chosen if d not in occupants]
        if unknown:
            raise BadRequest(
                f"node {view.node} has no device {reasons.listed(tuple(unknown))}: pick from "
                f"{', '.join(occupants) or 'none'}",
                devices=list(occupants),
            )
        if len(set(chosen)) != view.virtual_devices or len(chosen) != view.virtual_devices:
            raise BadRequest(
                f"{view.label} has {reasons.count(view.virtual_devices, 'virtual device')}, so "
                f"name {view.virtual_devices} different "
                f"{'device' if view.virtual_devices == 1 else 'devices'} to move to",
                virtual_devices=view.virtual_devices,
            )
        if chosen == view.devices:
            raise Conflict(f"{view.label} is on {reasons.listed(chosen)} already", session=view.id)
    else:
        others = [d for d in occupants if d not in view.devices and obtainable(d)]
        others.sort(key=lambda d: occupants[d] is not None)
        chosen = tuple(others[: view.virtual_devices])
        if len(chosen) < view.virtual_devices:
            raise Conflict(
                f"{view.label} cannot be moved: fewer than "
                f"{reasons.count(view.virtual_devices, 'other device')} can be freed for it now",
                session=view.id,
            )
    victims: dict[str, SessionView] = {}
    for device in chosen:
        holder = occupants[device]
        if holder is None or holder.id == view.id or queue.parking(holder):
            continue
        if not queue.may_preempt(view, holder, draft.now):
            raise Conflict(
                f"{device} is used by {holder.label} ({holder.tier.value}), which may not be "
                f"paused for {view.tier.value}: pick another device or try later",
                session=view.id,
                device=device,
            )
        victims[holder.id] = holder
    return chosen, list(victims.values())
