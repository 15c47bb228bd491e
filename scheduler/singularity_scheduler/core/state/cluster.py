"""`ClusterState`: all active sessions with the indices the policy needs.

A decision is made on a `draft.Draft`, which leaves the state as it is; once it is durable,
`ClusterState.apply` takes it over. Costs: O(log n) search in the queue of one node, and the number
of devices of one node; never the number of sessions of the cluster.
"""

from __future__ import annotations

import copy
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from singularity_scheduler.core.placement.geography import Geography
from singularity_scheduler.core.steps import groups
from singularity_scheduler.core.steps.groups import Group
from singularity_scheduler.core.values.administration import Administration, NodeMark
from singularity_scheduler.core.values.model import Abilities, SessionView
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.core.values.states import DeviceState

from .decision import Decision
from .devices import DeviceHealth, DeviceMark, DeviceView
from .experience import Experience
from .stored import Retention

if TYPE_CHECKING:
    from singularity_scheduler.core.steps.turns import Place

QueueKey = tuple[bool, int, int, int, str]

Load = tuple[float, str]
"""Sessions for each device of a node that is not drained, and the node."""


@dataclass
class Node:
    """One node: its devices, who holds them, who waits for them."""

    id: str
    devices: dict[str, DeviceView] = field(default_factory=dict)
    connected: bool = False
    leases: dict[str, str] = field(default_factory=dict)
    """device id -> session id"""
    queue: list[QueueKey] = field(default_factory=list)
    """Sorted keys of the waiting sessions; the last part of a key is the session id."""
    pending: list[QueueKey] = field(default_factory=list)
    """Sorted keys of the runs that have not been started."""
    admitted_milli: dict[int, int] = field(default_factory=dict)
    """rank of a tier -> thousandths of devices that started runs of that tier count for"""
    sessions: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    """Started runs: those that `admitted_milli` counts."""
    marks: dict[str, DeviceMark] = field(default_factory=dict)
    """`DeviceView.key` -> whether it is drained, and why; devices nothing was ever said of are not
    in, and cards that are gone still are."""
    health: dict[str, DeviceHealth] = field(default_factory=dict)
    """device id -> its last report; only what was decided on it is durable."""
    abilities: Abilities = field(default_factory=Abilities)
    retry: set[str] = field(default_factory=set)
    """Sessions that want devices but do not wait: their last attach failed."""
    smaller: set[str] = field(default_factory=set)
    """Sessions that run on fewer devices than they may have."""
    kept: set[str] = field(default_factory=set)
    """Sessions that somebody keeps alive, or did until a moment ago."""
    parts: set[str] = field(default_factory=set)
    """Parts of gangs that have not ended."""
    duty: NodeMark = field(default_factory=lambda: NodeMark(""))
    """What it is used for."""

    @property
    def usable(self) -> list[str]:
        """Its devices without the drained ones."""
        if not any(mark.drained for mark in self.marks.values()):
            return list(self.devices)
        return [device for device in self.devices if not self.mark(device).drained]

    @property
    def load(self) -> Load:
        """Sorts nodes, the least loaded first."""
        return len(self.sessions) / max(len(self.usable), 0.5), self.id

    def mark(self, device: str) -> DeviceMark:
        """Whether the device of this number is drained; of one that is gone: the card that had the
        number last."""
        view = self.devices.get(device)
        if view is not None:
            return named(self.marks.get(view.key), self.id, device, view.key)
        last = (m for m in self.marks.values() if m.device == device)
        return named(next(last, None), self.id, device, device)


def _discard(index: dict[str, set[str]], key: str, session: str) -> None:
    index[key].discard(session)
    if not index[key]:
        del index[key]


def named(mark: DeviceMark | None, node: str, device: str, key: str) -> DeviceMark:
    """`mark` under the number that its card has now; an empty one when there is none."""
    if mark is None:
        return DeviceMark(node, device, key)
    return mark if mark.device == device else replace(mark, device=device)


class ClusterState:
    """The active sessions (an ended one leaves when its agent confirmed the end)."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionView] = {}
        self.nodes: dict[str, Node] = {}
        self.returning: list[QueueKey] = []
        """Sorted keys of the suspended sessions that wait for a node to come back to."""
        self.coming: dict[str, set[str]] = {}
        """`SessionView.bound_for` -> those that are on their way there"""
        self.forks: dict[str, set[str]] = {}
        """session -> those that were forked from it"""
        self.retention = Retention()
        self.groups: dict[str, Group] = {}
        """Groups with members that have not ended."""
        self.held_of: dict[str, int] = {}
        """virtual cluster -> devices that its sessions hold"""
        self.admitted_milli_of: dict[str, int] = {}
        """virtual cluster -> devices that its started runs count for"""
        self.admin = Administration()
        self.parameters = Parameters()
        """What `admin` makes of them: kept, because each decision reads them."""
        self.experience = Experience()
        """What waits have taken so far; only shown, and one for all copies of a state."""
        self.progress: dict[str, dict[str, Any]] = {}
        """session -> how far its transfer is; only shown, nothing is decided on it."""
        self.counter = 1
        self.geography = Geography()
        """Which clusters there are, and the sums of each."""
        self.latest = 0.0
        """When something was decided last, whether it changed anything or not."""
        self.lines: dict[str, tuple[float, dict[str, Place]]] = {}
        """node -> (`latest` when somebody asked for it, who waits there in the order in which they
        are served); see `turns.line`. Forgotten with each decision that changes anything: what is
        decided of one node can move who waits on another one, by the quotas."""

    def node(self, node_id: str) -> Node:
        if node_id not in self.nodes:
            self.nodes[node_id] = Node(node_id, duty=NodeMark(node_id))
        return self.nodes[node_id]

    def govern(self, admin: Administration, marks: Iterable[NodeMark] = ()) -> None:
        """Take over what administrators have said; from the ledger, before `load`."""
        self.admin = admin
        self.parameters = admin.defaults.changed(**admin.settings)
        for mark in marks:
            self.node(mark.node).duty = mark

    def load(self, sessions: list[SessionView], marks: Iterable[DeviceMark] = ()) -> None:
        """Fill an empty state from the ledger; no node is connected yet."""
        for mark in marks:
            self.node(mark.node).marks[mark.uuid] = mark
        for view in sessions:
            self._replace(view)
            self.geography.count(view)
            self.counter = max(self.counter, view.queue_order + 1, view.attach_order + 1)

    def copy(self) -> ClusterState:
        """One that can be changed without changing this one; what never changes is shared."""
        # The places are replaced and never changed; compiled, they could not be copied either.
        places = self.geography.places
        frozen: list[Any] = [self.experience, places, *self.sessions.values()]
        for node in self.nodes.values():
            frozen += [node.abilities, *node.devices.values(), *node.marks.values()]
            frozen += node.health.values()
        return copy.deepcopy(self, {id(value): value for value in frozen})

    def observe(self, node_id: str, reports: Iterable[DeviceHealth]) -> None:
        """Remember what a node reported of its devices; `DevicesLooked` decides on it."""
        node = self.node(node_id)
        node.health = {report.id: report for report in reports}

    def apply(self, decision: Decision) -> None:
        """Take over a decision that is durable."""
        self.lines.clear()
        touched = self.geography.before(self, decision)
        for mark in decision.marks:
            self.node(mark.node).marks[mark.uuid] = mark
        if decision.node is not None:
            node = self.node(decision.node)
            if decision.node_devices is not None:
                node.devices = {
                    d.id: d for d in sorted(decision.node_devices, key=lambda d: d.sort_key)
                }
            if decision.node_connected is not None:
                node.connected = decision.node_connected
            if decision.node_abilities is not None:
                node.abilities = decision.node_abilities
        if decision.administered:
            self._administer(decision)
        for view in decision.sessions:
            self._replace(view)
            self.latest = max(self.latest, view.updated_at)
        for node_id in touched:
            self.geography.look(self, self.node(node_id))
        self.counter = max(self.counter, decision.counter)

    def _administer(self, decision: Decision) -> None:
        for setting in decision.settings:
            if setting.value is None:
                self.admin.settings.pop(setting.name, None)
            else:
                self.admin.settings[setting.name] = setting.value
        if decision.settings:
            self.parameters = self.admin.defaults.changed(**self.admin.settings)
        for mark in decision.node_marks:
            self.node(mark.node).duty = mark
        if decision.upgrade is not None:
            self.admin.upgrade = decision.upgrade
        for name, cluster in decision.clusters:
            if cluster is None:
                self.admin.clusters.pop(name, None)
            else:
                self.admin.clusters[name] = cluster
        for user, tiers in decision.user_tiers:
            if tiers is None:
                self.admin.tiers.pop(user, None)
            else:
                self.admin.tiers[user] = tiers

    def _replace(self, view: SessionView) -> None:
        if old := self.sessions.pop(view.id, None):
            self._remove(old)
        if view.ended:
            self.progress.pop(view.id, None)
            return
        node = self.node(view.node)
        self.sessions[view.id] = view
        self._count(view, 1)
        node.sessions.add(view.id)
        for device in view.leases:
            node.leases[device] = view.id
        if view.smaller:
            node.smaller.add(view.id)
        if view.admitted_milli:
            rank = view.tier.rank
            node.admitted_milli[rank] = node.admitted_milli.get(rank, 0) + view.admitted_milli
            node.runs.add(view.id)
        if view.pending:
            insort(node.pending, view.queue_key)
        elif view.device_state is DeviceState.WAITING:
            insort(node.queue, view.queue_key)
        elif view.wants and not view.leased and view.here:
            node.retry.add(view.id)
        if view.keep_until is not None:
            node.kept.add(view.id)
        if view.part is not None and not view.final:
            node.parts.add(view.id)
        if view.returning:
            insort(self.returning, view.queue_key)
        if view.bound_for is not None:
            self.coming.setdefault(view.bound_for, set()).add(view.id)
        if view.source:
            self.forks.setdefault(view.source, set()).add(view.id)
        if view.member is not None and not view.final:
            groups.enter(self.groups, view)

    def _remove(self, old: SessionView) -> None:
        """Out of every index; it may come back on another node."""
        node = self.node(old.node)
        self._count(old, -1)
        node.sessions.discard(old.id)
        for device in old.leases:
            if node.leases.get(device) == old.id:
                del node.leases[device]
        if old.device_state is DeviceState.WAITING:
            del node.queue[bisect_left(node.queue, old.queue_key)]
        if old.pending:
            del node.pending[bisect_left(node.pending, old.queue_key)]
        if old.admitted_milli:
            node.admitted_milli[old.tier.rank] -= old.admitted_milli
            node.runs.discard(old.id)
        if old.returning:
            del self.returning[bisect_left(self.returning, old.queue_key)]
        node.retry.discard(old.id)
        node.smaller.discard(old.id)
        node.kept.discard(old.id)
        node.parts.discard(old.id)
        if old.bound_for is not None:
            _discard(self.coming, old.bound_for, old.id)
        if old.source:
            _discard(self.forks, old.source, old.id)
        if old.member is not None and not old.final:
            groups.leave(self.groups, old)

    def _count(self, view: SessionView, sign: int) -> None:
        if name := view.virtual_cluster:
            self.held_of[name] = self.held_of.get(name, 0) + sign * view.holding
            self.admitted_milli_of[name] = (
                self.admitted_milli_of.get(name, 0) + sign * view.admitted_milli
            )

    def waiting(self, node_id: str) -> Iterator[SessionView]:
        """Who waits for devices of one node, by tier and priority; `turns.line` has the order in
        which they are served."""
        node = self.nodes.get(node_id)
        for key in node.queue if node else ():
            yield self.sessions[key[-1]]

    def queued(self, node_id: str) -> Iterator[SessionView]:
        """The runs of one node that have not been started, in order."""
        node = self.nodes.get(node_id)
        for key in node.pending if node else ():
            yield self.sessions[key[-1]]
