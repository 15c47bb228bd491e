"""What must hold after every decision; tests call it, and so can a running service (cheap)."""

from __future__ import annotations

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.gangs import sets as gang_sets
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.operations.drains import is_there
from singularity_scheduler.core.placement.geography import Cluster, Geography
from singularity_scheduler.core.reasons.reason import NONE
from singularity_scheduler.core.steps import groups
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Part, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from . import queue
from .cluster import ClusterState, Node
from .draft import Draft


class InvariantBroken(AssertionError):
    """A promise of the policy is broken: a bug in `core`."""


def check(state: ClusterState) -> None:
    """Raise `InvariantBroken` when a device is leased twice, a session has only some of its
    devices, or an index disagrees with the sessions."""
    holders: dict[tuple[str, str], str] = {}
    for view in state.sessions.values():
        _check_session(view)
        for device in view.leases:
            other = holders.setdefault((view.node, device), view.id)
            _hold(other == view.id, f"{view.node}/{device} is leased to {other} and {view.id}")
    for node in state.nodes.values():
        leases = {d: sid for (n, d), sid in holders.items() if n == node.id}
        _hold(node.leases == leases, f"leases of {node.id}: {node.leases} is not {leases}")
        queue = sorted(
            v.queue_key
            for v in state.sessions.values()
            if v.node == node.id and v.device_state is DeviceState.WAITING
        )
        _hold(node.queue == queue, f"queue of {node.id}: {node.queue} is not {queue}")
        _check_runs(state, node)
        _check_duty(state, node)
        members = {v.id for v in state.sessions.values() if v.node == node.id}
        _hold(node.sessions == members, f"sessions of {node.id} are not {members}")
        retry = {
            v.id
            for v in state.sessions.values()
            if v.node == node.id
            and v.wants
            and v.here
            and v.device_state in (DeviceState.NONE, DeviceState.PARKED)
        }
        smaller = {v.id for v in state.sessions.values() if v.node == node.id and v.smaller}
        _hold(node.smaller == smaller, f"smaller ones of {node.id}: not {smaller}")
        parts = {v.id for v in state.sessions.values() if v.node == node.id and v.part}
        parts = {sid for sid in parts if not state.sessions[sid].final}
        _hold(node.parts == parts, f"parts on {node.id}: {node.parts} is not {parts}")
        kept = {v.id for v in state.sessions.values() if v.node == node.id and v.keep_until}
        _hold(node.kept == kept, f"kept sessions of {node.id}: {node.kept} is not {kept}")
        _hold(node.retry == retry, f"retries of {node.id}: {node.retry} is not {retry}")
    for name in {*state.held_of, *(v.virtual_cluster for v in state.sessions.values())} - {""}:
        of = [v for v in state.sessions.values() if v.virtual_cluster == name]
        held, admitted = sum(v.holding for v in of), sum(v.admitted_milli for v in of)
        counted = (state.held_of.get(name, 0), state.admitted_milli_of.get(name, 0))
        _hold(counted == (held, admitted), f"{name} uses {(held, admitted)}, not {counted}")
    _check_groups(state)
    _check_gangs(state)
    forks: dict[str, set[str]] = {}
    coming: dict[str, set[str]] = {}
    for view in state.sessions.values():
        if view.source:
            forks.setdefault(view.source, set()).add(view.id)
        if view.bound_for is not None:
            coming.setdefault(view.bound_for, set()).add(view.id)
    _hold(state.coming == coming, f"coming: {state.coming} is not {coming}")
    _hold(state.forks == forks, f"forks: {state.forks} is not {forks}")
    _check_geography(state)
    returning = sorted(v.queue_key for v in state.sessions.values() if v.returning)
    _hold(state.returning == returning, f"returning: {state.returning} is not {returning}")


def _check_groups(state: ClusterState) -> None:
    anew: dict[str, groups.Group] = {}
    for view in state.sessions.values():
        if view.member is not None and not view.final:
            groups.enter(anew, view)
    _hold(state.groups == anew, f"groups: {state.groups} is not {anew}")
    for name, group in anew.items():
        views = [state.sessions[sid] for sid in group.members]
        most = views[0].member.max_parallel if views[0].member else None
        _hold(most is None or len(group.started) <= most, f"too many of group {name} are started")
        ready = [view for view in views if view.pending and not view.held_back]
        lined_up = not ready or any(not view.behind for view in ready)
        _hold(lined_up, f"no member of group {name} has a place in the queue")


def _check_gangs(state: ClusterState) -> None:
    """Parts are on different nodes; they start, have devices and make attempts together."""
    draft = Draft(state, 0.0)
    for part in {v.part.gang: v.part for v in state.sessions.values() if v.part}.values():
        views = gangs.parts(draft, part)
        who = f"gang {part.gang}"
        nodes = [view.node for view in views]
        _hold(len(set(nodes)) == len(nodes), f"{who} has two parts on one node: {nodes}")
        _hold(len({v.attempt for v in views}) < 2, f"the parts of {who} make different attempts")
        eras = {v.incarnation for v in views}
        _hold(len(eras) < 2, f"the parts of {who} are of different incarnations")
        _check_sets(draft, part, views, who)
        if any(view.pending for view in views):
            alone = [v.id for v in views if not (v.pending or v.retrying)]
            _hold(not alone, f"{alone} of {who} are started, and others are not")
        if any(view.device_state not in gangs.HAS for view in views):
            kept = [
                view.id
                for view in views
                if view.device_state is DeviceState.HELD
                and view.process_state is ProcessState.LIVE
                and view.leaving is None
                and view.park_failed_at is None
            ]
            _hold(not kept, f"{kept} of {who} hold devices, and others have none")
        waiting = {v.queue_order for v in views if v.device_state is DeviceState.WAITING}
        _hold(len(waiting) < 2, f"the parts of {who} wait at different places")


def _check_sets(draft: Draft, part: Part, views: list[SessionView], who: str) -> None:
    """Parts that go back, or are in the store, have one place to come back from."""
    whole = {one.id for one in gang_sets.whole(draft, part)}
    to: set[str] = set()
    for view in views:
        reference = next((c for c in view.checkpoints if c.id == view.restore_from), None)
        if gangs.goes_back(view) and reference is not None and view.called:
            to.add(reference.set_id)
    _hold(len(to) < 2, f"the parts of {who} go back to different sets: {to}")
    _hold(to <= whole, f"the parts of {who} go back to {to}, which is not whole")


def _check_geography(state: ClusterState) -> None:
    kept, anew = state.geography, Geography(state.geography.home)
    for view in state.sessions.values():
        anew.count(view)
        of_node = kept.of_node.get(view.node, view.cluster)
        _hold(view.cluster == of_node, f"{view.id} is said to be in {view.cluster}, not {of_node}")
    for node in state.nodes.values():
        anew.look(state, node)
    for name, cluster in kept.clusters.items():
        counted = anew.clusters.get(name, Cluster(name))
        _hold(cluster == counted, f"the sums of {name} are {cluster}, not {counted}")


def _check_duty(state: ClusterState, node: Node) -> None:
    there = sorted(sid for sid in node.sessions if is_there(state.sessions[sid]))
    duty = node.duty.duty
    _hold(duty is not NodeDuty.DRAINED or not there, f"{node.id} is drained and has {there}")
    _hold(duty is not NodeDuty.DRAINING or bool(there), f"{node.id} is empty and still drained")


def _check_runs(state: ClusterState, node: Node) -> None:
    views = [v for v in state.sessions.values() if v.node == node.id]
    pending = sorted(v.queue_key for v in views if v.pending)
    _hold(node.pending == pending, f"pending of {node.id}: {node.pending} is not {pending}")
    for tier in Tier:
        admitted = sum(v.admitted_milli for v in views if v.tier is tier)
        counted = node.admitted_milli.get(tier.rank, 0)
        _hold(counted == admitted, f"admitted {tier.value} of {node.id}: {counted}, not {admitted}")
    open_ = node.duty.duty is NodeDuty.OPEN
    if node.connected and open_ and not any(v.admitted_milli for v in views):
        fits = [v.id for v in views if v.pending and v.needs <= len(node.usable)]
        draft = Draft(state, 0.0)
        ready = [
            sid
            for sid in fits
            if not state.sessions[sid].held_back
            and not quotas.run_barred(draft, state.sessions[sid])
        ]
        if any(state.sessions[sid].part for sid in ready):  # those behind a gang wait with it
            ready = [sid for sid in ready if queue.may_start(draft, state.sessions[sid])]
        _hold(not ready, f"{ready} are queued although no run was started on {node.id}")


def check_succession(before: SessionView | None, after: SessionView) -> None:
    """Raise when an epoch goes back, or a grant does not raise it by exactly one."""
    old = before.epoch if before else 0
    granted = after.device_state is DeviceState.ATTACHING and (
        before is None or before.device_state is not DeviceState.ATTACHING
    )
    if granted:
        _hold(after.epoch == old + 1, f"{after.id}: epoch {old} -> {after.epoch} at a grant")
    resizing = after.device_state is DeviceState.RESIZING and (
        before is None or before.device_state is not DeviceState.RESIZING
    )
    if resizing:
        _hold(after.epoch == old + 1, f"{after.id}: epoch {old} -> {after.epoch} at a resize")
    resuming = after.process_state is ProcessState.RESUMING and (
        before is None
        or before.process_state is not ProcessState.RESUMING
        or before.epoch != after.epoch  # its node was lost, or another checkpoint is tried
    )
    if resuming:
        _hold(after.epoch == old + 1, f"{after.id}: epoch {old} -> {after.epoch} at a return")
    if before is not None:
        went = f"{after.id}: incarnation {before.incarnation} -> {after.incarnation}"
        raised = after.incarnation - before.incarnation
        _hold(raised == 0 or (raised == 1 and resuming), went)
        _hold(
            after.node == before.node
            or not before.here
            or before.pending
            or after.attempt > before.attempt  # its node was lost, and it begins again
            or resuming,
            f"{after.id} went from {before.node} to {after.node} while it was there",
        )
    _hold(after.epoch >= old, f"{after.id}: epoch went back from {old} to {after.epoch}")


def _check_session(view: SessionView) -> None:
    who = f"{view.id} ({view.process_state.value}, {view.device_state.value})"
    expected = view.virtual_devices if view.leased else 0
    _hold(len(view.devices) == expected, f"{who} has {view.devices}, not {expected} devices")
    if view.devices:
        _check_layout(view, who)
    resizing = view.device_state is DeviceState.RESIZING or view.final
    _hold(not view.resizing or resizing, f"{who} is to go on with {view.resizing}")
    named = view.device_state is not DeviceState.RESIZING or bool(view.resizing)
    _hold(named, f"{who} is being resized to nothing")
    _hold(view.why != NONE, f"{who} has no reason")
    _hold(
        (view.waiting_since is not None) == (view.device_state is DeviceState.WAITING),
        f"{who} waits since {view.waiting_since}",
    )
    if view.final:
        _hold(view.device_state in (DeviceState.NONE, DeviceState.PARKING), f"{who} is final")
    _hold(not view.pending or view.run is not None, f"{who} is queued and has nothing to run")
    begun = view.epoch == 0 or view.attempt > 1 or view.incarnation > 1
    _hold(
        not view.pending or (view.device_state is DeviceState.NONE and begun),
        f"{who} has had devices before it was started",
    )
    stays = view.process_state is not ProcessState.SUSPENDING
    _hold(
        not view.held_back or not (view.final or (view.device_state is DeviceState.HELD and stays)),
        f"{who} is held back by {view.held_by}",
    )
    if view.process_state in (ProcessState.SUSPENDED, ProcessState.RESUMING):
        _hold(view.device_state in (DeviceState.NONE, DeviceState.PARKED), f"{who} is away")
    if view.process_state is ProcessState.SUSPENDING:
        _hold(
            view.device_state in (DeviceState.NONE, DeviceState.PARKED, DeviceState.HELD),
            f"{who} leaves while its devices change",
        )
    away = view.process_state in (ProcessState.SUSPENDING, ProcessState.SUSPENDED)
    _hold(not view.called or away or view.leaving is not None, f"{who} is called back and is here")
    _hold(
        not view.returning or bool(view.restore_from) or view.newest_whole is not None,
        f"{who} is called back and has no checkpoint",
    )
    _hold(view.leaving is None or not view.final, f"{who} is final and leaving")
    _hold(not view.ended or view.final, f"{who} ended but is not final")


def _check_layout(view: SessionView, who: str) -> None:
    """Each virtual device has one, and there are not fewer than its policy allows."""
    for devices in filter(None, (view.devices, view.resizing)):
        _hold(len(devices) == view.virtual_devices, f"{who} has {devices}")
    count = len(view.physical)
    if view.scale is not None:
        _hold(count >= view.scale.least, f"{who} has {count} devices, less than it needs")


def _hold(condition: bool, sentence: str) -> None:
    if not condition:
        raise InvariantBroken(sentence)
