"""Where sessions go: a new one, and one that comes back from the store. Pure.

A node has room for a session that comes back when it can bring processes back, has devices enough,
and, if the session's code waits for devices, can give them besides those who go before it there:
they wait there already, or are on their way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from singularity_proxy.capsule.images.machine import why_not
from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    NotFound,
    SingularityError,
    Unavailable,
)

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons import of_moves as move_reasons
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.reasons.refusals import choices, refuse
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.cluster import ClusterState, Load, Node
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values.actions import Resume
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import SessionSpec
from singularity_scheduler.core.values.states import DeviceState, ProcessEvent

from . import routes


def place(draft: Draft, session: str, spec: SessionSpec) -> str:
    """The node for a new session: inside the cluster that the levels above choose by sums."""
    state = draft.state
    if spec.owned and any(node.abilities.far for node in state.nodes.values()):
        return _choose_near(state, spec)
    cluster = routes.cluster_for(state, session, spec, draft.now)
    if cluster is not None:
        found = state.geography.clusters[cluster].least_loaded(spec.needs)
        return found or choose_node(state, spec.needs, among=routes.nodes_of(state, [cluster]))
    if not spec.locations:
        return choose_node(state, spec.needs)
    among = routes.nodes_of(state, routes.allowed(state, spec.locations))
    return choose_node(state, spec.needs, among=among, locations=spec.locations)


def _choose_near(state: ClusterState, spec: SessionSpec) -> str:
    """The node for a session that belongs to a process of the service's machine: one of that."""
    state.geography.check(spec.locations)
    among: Collection[str] = state.nodes
    if spec.locations:
        among = routes.nodes_of(state, routes.allowed(state, spec.locations))
    near = [name for name in among if not state.nodes[name].abilities.far]
    return choose_node(state, spec.needs, among=near, locations=spec.locations)


def place_parts(draft: Draft, spec: SessionSpec) -> list[str]:
    """A node for each part of a new gang: different ones of one cluster, because the parts talk to
    one another all the time; the least loaded ones."""
    state, needs = draft.state, spec.needs
    state.geography.check(spec.locations)
    clusters = routes.allowed(state, spec.locations)
    among = routes.nodes_of(state, clusters)
    choose_node(state, needs, among=among, locations=spec.locations)
    able: list[list[Node]] = []
    for cluster in clusters:
        nodes = [state.nodes[name] for name in routes.nodes_of(state, [cluster])]
        able.append([n for n in nodes if n.connected and len(n.devices) >= needs])
    most = max(map(len, able))
    if most < spec.nodes:
        raise refuse(
            BadRequest,
            because(
                "too_few_nodes",
                number=spec.nodes,
                needs=needs,
                locations=spec.locations,
                most=most,
            ),
            nodes=spec.nodes,
            largest=most,
        )
    found = []
    for nodes in able:
        open_ = [n for n in nodes if draft.duty(n.id).duty is NodeDuty.OPEN]
        if len(open_) >= spec.nodes:
            found.append(sorted(open_, key=lambda n: _load(n, needs))[: spec.nodes])
    if not found:
        raise refuse(Unavailable, because("too_few_open_nodes", number=spec.nodes, needs=needs))
    best = min(found, key=lambda chosen: _load(chosen[-1], needs))
    return sorted(node.id for node in best)


def choose_elsewhere(draft: Draft, view: SessionView) -> str | None:
    """Another node for a run that was not started yet: of its own cluster if one can take it, else
    of another one that its locations allow; None: no node can. A part of a gang stays in its
    cluster, and goes where no other part is."""
    there = {view.node, *gangs.elsewhere(draft, view)}
    for cluster in routes.order(draft.state, view):
        if view.part is not None and cluster != (view.cluster or draft.state.geography.home):
            continue
        nodes = [n for n in routes.nodes_of(draft.state, [cluster]) if n not in there]
        with contextlib.suppress(SingularityError):
            return choose_node(draft.state, view.needs, draft, among=nodes)
    return None


def choose_node(
    state: ClusterState,
    devices: int,
    draft: Draft | None = None,
    *,
    among: Collection[str] | None = None,
    locations: tuple[str, ...] = (),
) -> str:
    """The node for a new session: connected, open, large enough (without its drained devices, if
    there is such a node), fewest sessions per device, then by name. A session's devices are all on
    its node, because its rings are in that node's memory. `draft`: as it leaves the nodes; `among`:
    only of these nodes; `locations`: where those are."""
    nodes = state.nodes.values() if among is None else [state.nodes[n] for n in among]
    there = [n for n in nodes if n.connected]
    if not there:
        raise refuse(Unavailable, because("no_agent_is_connected", locations=locations))
    duties = {n.id: draft.duty(n.id) if draft else n.duty for n in there}
    connected = [n for n in there if duties[n.id].duty is NodeDuty.OPEN]
    if not connected:
        each = tuple(obstacles.not_open(duties[n.id]) for n in there)
        raise refuse(Unavailable, because("no_node_is_open", locations=locations, each=each))
    fitting = [n for n in connected if len(n.devices) >= devices]
    if not fitting:
        largest = max(len(n.devices) for n in connected)
        raise refuse(
            BadRequest,
            because("too_many_devices", number=devices, locations=locations, largest=largest),
            devices=devices,
            largest=largest,
        )
    return min(fitting, key=lambda node: _load(node, devices)).id


def _load(node: Node, devices: int) -> tuple[bool, Load]:
    return len(node.usable) < devices, node.load


def named(state: ClusterState, word: str) -> Node:
    """The node that somebody named; `NotFound` with the nearest name or those that there are."""
    if word not in state.nodes:
        raise refuse(
            NotFound, because("no_such_node", **choices(word, sorted(state.nodes))), node=word
        )
    return state.nodes[word]


def barred(draft: Draft, view: SessionView, node_id: str) -> Reason | None:
    """Why the session cannot come back to this node at all as things are; None: it can."""
    node = draft.node(node_id)
    if not node.connected:
        return obstacles.no_answer(node_id)
    if why := routes.forbidden(draft, view, node_id):
        return why
    duty = draft.duty(node_id)
    # What was on a cordoned node is nothing new there; a drained one takes nothing at all.
    if duty.leaving or (duty.duty is NodeDuty.CORDONED and view.node != node_id):
        return obstacles.not_open(duty)
    if node.abilities.trouble:
        return obstacles.no_images(node_id, node.abilities.trouble)
    before = draft.state.nodes.get(view.node)
    if before and node.abilities.has_other_store(before.abilities):
        return obstacles.other_store(node_id, view.node)
    machine = before.abilities.machine if before else None
    if difference := why_not(machine, node.abilities.machine):
        return obstacles.other_machine(node_id, difference)
    usable = len(draft.usable(node_id))
    if usable < view.needs:
        return obstacles.too_few_devices(node_id, usable, view.needs)
    return None


def no_room(draft: Draft, view: SessionView, node_id: str) -> Reason | None:
    """Why the session cannot come back to this node now; None: it can."""
    if why := barred(draft, view, node_id):
        return why
    usable = draft.usable(node_id)
    if view.run is not None:
        rank = view.tier.rank
        used = sum(n for other, n in draft.admitted_milli(node_id).items() if other >= rank)
        if used + view.wanted_milli > 1000 * len(usable):
            return obstacles.full_of_runs(node_id)
    if not view.wants:
        return None
    if why := quotas.barred(draft, view):
        return why
    others = (*draft.waiting(node_id), *draft.coming(node_id))
    before = sum(v.needs for v in others if v.queue_key < view.queue_key)
    missing = before + view.needs
    missing -= sum(holder is None or queue.parking(holder) for holder in usable.values())
    if missing > 0:  # asking the engine costs more than counting
        given_up = turns.gives_up(draft, view, node_id)
        missing -= sum(holder is not None and holder.id in given_up for holder in usable.values())
    if missing > 0:
        return obstacles.in_use(node_id)
    return None


def candidates(draft: Draft, view: SessionView) -> Iterator[str]:
    """Nodes in the order in which they are tried: the named one alone; else the one it was on (if
    it is open), then the others of its cluster, the least loaded first, then those of the other
    clusters that it may be in. One that was to leave its node tries those first that have its
    devices free, and that node last."""
    if view.target:
        yield view.target
        return
    state = draft.state
    clusters = [view.target_cluster] if view.target_cluster else routes.order(state, view)
    of_node = state.geography.of_node
    own = of_node.get(view.node)
    if own not in clusters:
        own = None
    if own is not None and view.moving:
        own = ""  # of no cluster until all were tried
        for cluster in clusters:
            free = state.geography.clusters[cluster].with_free(view.needs)
            yield from (name for name in free if name != view.node)
    own_first = draft.duty(view.node).duty is NodeDuty.OPEN
    for cluster in clusters:
        if cluster == own and own_first:
            yield view.node
        others = [state.nodes[n] for n in routes.nodes_of(state, [cluster]) if n != view.node]
        yield from (n.id for n in sorted(others, key=lambda n: _load(n, view.needs)))
        if cluster == own and not own_first:
            yield view.node
    if own == "":
        yield view.node
    if not view.target_cluster:  # of which cluster they are is not known before they answer
        yield from (name for name in state.nodes if name not in of_node)


def waits(draft: Draft, view: SessionView) -> Reason:
    """Why it does not come back yet."""
    nodes = candidates(draft, view)
    whys = [why for node in nodes if (why := no_room(draft, view, node))]
    return obstacles.several(whys) or obstacles.no_node(view.locations)


def resume(draft: Draft, view: SessionView, node_id: str) -> SessionView:
    """Step to `resuming` on this node and command it, under the next epoch."""
    reference = view.restore_from
    if not reference:
        newest = view.newest_whole
        assert newest is not None, f"{view.id} returns without a checkpoint"
        reference = newest.id
    away = view.node != node_id
    reason, rule = move_reasons.coming_back(view, node_id), "queue.return"
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
        view.why,
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
) -> tuple[tuple[str, ...], list[tuple[SessionView, str]]]:
    """The devices a move goes to, and who has to leave them by which rule; refuses what cannot
    be."""
    occupants = draft.usable(view.node)
    given_up = turns.gives_up(draft, view, view.node)

    def obtainable(device: str) -> bool:
        holder = occupants[device]
        return holder is None or queue.parking(holder) or holder.id in given_up

    if wanted:
        chosen = wanted
        for mark in (draft.mark(view.node, device) for device in chosen):
            if mark.drained:
                raise refuse(
                    Conflict,
                    because("device_is_drained", device=mark.device, why=mark.reason),
                    session=view.id,
                    device=mark.device,
                )
        unknown = tuple(d for d in chosen if d not in occupants)
        if unknown:
            raise refuse(
                BadRequest,
                because(
                    "node_has_no_device", node=view.node, devices=unknown, there=tuple(occupants)
                ),
                devices=list(occupants),
            )
        if len(set(chosen)) != len(chosen) or not view.needs <= len(chosen) <= view.most:
            raise refuse(
                BadRequest,
                because(
                    "other_number_of_devices",
                    who=view.label,
                    virtual=view.virtual_devices,
                    least=view.needs,
                    most=view.most,
                ),
                virtual_devices=view.virtual_devices,
            )
        if chosen == view.physical:
            raise refuse(
                Conflict,
                because("on_devices_already", who=view.label, devices=chosen),
                session=view.id,
            )
    else:
        others = [d for d in occupants if d not in view.devices and obtainable(d)]
        others.sort(key=lambda d: occupants[d] is not None)
        count = len(view.physical) or view.most
        chosen = tuple(others[:count])
        if len(chosen) < count:
            raise refuse(
                Conflict,
                because("too_few_can_be_freed", who=view.label, number=count),
                session=view.id,
            )
    victims: dict[str, SessionView] = {}
    for device in chosen:
        holder = occupants[device]
        if holder is None or holder.id == view.id or queue.parking(holder):
            continue
        if holder.id not in given_up:
            raise refuse(
                Conflict,
                because(
                    "device_in_use",
                    device=device,
                    holder=holder.label,
                    holder_tier=holder.tier.value,
                    tier=view.tier.value,
                ),
                session=view.id,
                device=device,
            )
        victims[holder.id] = holder
    return chosen, [(victim, given_up[sid]) for sid, victim in victims.items()]
