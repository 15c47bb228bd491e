"""`ClusterState`: all active sessions with the indices the policy needs; `Draft`: an overlay on it.

A decision is made on a `Draft`, which leaves the state as it is; once the decision is durable,
`ClusterState.apply` takes it over. Costs: O(log n) search in the queue of one node, and the number
of devices of one node; never the number of sessions of the cluster.
"""

from __future__ import annotations

import copy
import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import Unavailable

from . import groups
from .administration import (
    Administration,
    NodeMark,
    Order,
    Setting,
    Upgrade,
    VirtualCluster,
)
from .events import Action, Decision
from .experience import Experience
from .geography import Geography
from .groups import Group
from .model import (
    Abilities,
    Change,
    CheckpointRef,
    DeviceHealth,
    DeviceMark,
    DeviceView,
    Retention,
    SessionView,
    Tier,
)
from .parameters import Parameters
from .rules import RULES
from .states import DeviceEvent, DeviceState, ProcessEvent, next_device, next_process

if TYPE_CHECKING:
    from .turns import Place

STORY_LENGTH = 8

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
    kept: set[str] = field(default_factory=set)
    """Sessions that somebody keeps alive, or did until a moment ago."""
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
            return _named(self.marks.get(view.key), self.id, device, view.key)
        last = (m for m in self.marks.values() if m.device == device)
        return _named(next(last, None), self.id, device, device)


def _discard(index: dict[str, set[str]], key: str, session: str) -> None:
    index[key].discard(session)
    if not index[key]:
        del index[key]


def _named(mark: DeviceMark | None, node: str, device: str, key: str) -> DeviceMark:
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
        frozen: list[Any] = [self.experience, *self.sessions.values()]
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
        for device in view.devices:
            node.leases[device] = view.id
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
        for device in old.devices:
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
        node.kept.discard(old.id)
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


class Draft:
    """A decision in the making: reads through to the state, collects what changes."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self.state = state
        self.now = now
        self.changed: dict[str, SessionView] = {}
        self.history: list[Change] = []
        self.actions: list[Action] = []
        self._counter = state.counter
        self._node: Node | None = None
        self.marks: dict[tuple[str, str], DeviceMark] = {}
        self.stored: dict[tuple[str, str], CheckpointRef] = {}
        self.gone: list[tuple[str, str]] = []
        self.orders: list[Order] = []
        self.settings: dict[str, Setting] = {}
        self.duties: dict[str, NodeMark] = {}
        self.upgrade: Upgrade | None = None
        self.clusters: dict[str, VirtualCluster | None] = {}
        self.user_tiers: dict[str, tuple[Tier, ...] | None] = {}

    # -- reading --------------------------------------------------------------------------

    def get(self, session: str) -> SessionView | None:
        return self.changed.get(session) or self.state.sessions.get(session)

    def node(self, node_id: str) -> Node:
        """The node as this decision leaves it (devices and connection; not the indices)."""
        if self._node is not None and self._node.id == node_id:
            return self._node
        return self.state.nodes.get(node_id) or Node(node_id)

    def answering(self, view: SessionView) -> Node:
        """The node that a session is on; raises `Unavailable` while it cannot be asked for
        anything."""
        node = self.node(view.node)
        if not node.connected:
            raise Unavailable(
                f"node {view.node} of {view.label} does not answer at the moment; nothing was "
                "changed: try again in a moment",
                session=view.id,
            )
        return node

    def occupants(self, node_id: str) -> dict[str, SessionView | None]:
        """device id -> the session that holds it now, None for a free one; sorted by device."""
        leases = dict(self.state.nodes[node_id].leases) if node_id in self.state.nodes else {}
        leases = {device: sid for device, sid in leases.items() if sid not in self.changed}
        for view in self.changed.values():
            if view.node == node_id and not view.ended:
                leases.update(dict.fromkeys(view.devices, view.id))
        return {
            device: self.get(leases[device]) if device in leases else None
            for device in self.node(node_id).devices
        }

    def mark(self, node_id: str, device: str) -> DeviceMark:
        """Whether the device is drained, as this decision leaves it."""
        known = self.state.nodes.get(node_id)
        marks = known.marks if known else {}
        found = Node(node_id, self.node(node_id).devices, marks=marks).mark(device)
        return _named(self.marks.get((node_id, found.uuid), found), node_id, device, found.uuid)

    def duty(self, node_id: str) -> NodeMark:
        """What the node is used for, as this decision leaves it."""
        known = self.duties.get(node_id)
        if known is not None:
            return known
        node = self.state.nodes.get(node_id)
        return node.duty if node else NodeMark(node_id)

    def usable(self, node_id: str) -> dict[str, SessionView | None]:
        """`occupants` of the devices that are not drained: what there is to give out."""
        node = self.state.nodes.get(node_id)
        if not self.marks and not (node and node.marks):
            return self.occupants(node_id)
        return {
            device: view
            for device, view in self.occupants(node_id).items()
            if not self.mark(node_id, device).drained
        }

    def idle(self, node_id: str) -> bool:
        """Whether nobody waits there, for devices or to be started."""
        node = self.state.nodes.get(node_id)
        wait = node is not None and (node.queue or node.pending)
        return not wait and not any(
            view.pending or view.device_state is DeviceState.WAITING
            for view in self.changed.values()
        )

    def waiting(self, node_id: str) -> Iterator[SessionView]:
        """The waiting sessions of a node in order, as of the first `next()`; sessions already
        yielded may be changed while iterating."""
        drafted = dict(self.changed)
        node = self.state.nodes.get(node_id)
        base = (key for key in (node.queue if node else ()) if key[-1] not in drafted)
        mine = sorted(
            view.queue_key
            for view in drafted.values()
            if view.node == node_id and view.device_state is DeviceState.WAITING
        )
        for key in merge(base, mine):
            view = self.get(key[-1])
            if view is not None and view.device_state is DeviceState.WAITING:
                yield view

    def coming(self, bound_for: str) -> Iterator[SessionView]:
        """Those that are on their way to this node and will want devices there; "": those that go
        wherever there is room."""
        there = self.state.coming.get(bound_for, ())
        kept = (self.state.sessions[sid] for sid in there if sid not in self.changed)
        for view in (*kept, *self.changed.values()):
            if view.bound_for == bound_for and view.wants and not view.held_back:
                yield view

    def pending(self, node_id: str) -> Iterator[SessionView]:
        """The runs of a node that have not been started, in order; as `waiting`."""
        drafted = dict(self.changed)
        node = self.state.nodes.get(node_id)
        base = (key for key in (node.pending if node else ()) if key[-1] not in drafted)
        mine = sorted(
            view.queue_key for view in drafted.values() if view.node == node_id and view.pending
        )
        for key in merge(base, mine):
            view = self.get(key[-1])
            if view is not None and view.pending:
                yield view

    def admitted_milli(self, node_id: str) -> dict[int, int]:
        """rank of a tier -> devices that started runs of the node count for, as it is now."""
        node = self.state.nodes.get(node_id)
        found = dict(node.admitted_milli) if node else {}
        for view in self.changed.values():
            old = self.state.sessions.get(view.id)
            if old and old.node == node_id:
                found[old.tier.rank] = found.get(old.tier.rank, 0) - old.admitted_milli
            if view.node == node_id:
                found[view.tier.rank] = found.get(view.tier.rank, 0) + view.admitted_milli
        return found

    def cluster(self, name: str) -> VirtualCluster | None:
        """A virtual cluster, as this decision leaves it."""
        if name in self.clusters:
            return self.clusters[name]
        return self.state.admin.clusters.get(name)

    def held_of(self, name: str) -> int:
        """Devices that the sessions of a virtual cluster hold, as it is now."""
        return self.state.held_of.get(name, 0) + self._change_of(name, "holding")

    def admitted_milli_of(self, name: str) -> int:
        """Devices that the started runs of a virtual cluster count for, as it is now."""
        return self.state.admitted_milli_of.get(name, 0) + self._change_of(name, "admitted_milli")

    def _change_of(self, name: str, what: str) -> int:
        change = 0
        for view in self.changed.values():
            if view.virtual_cluster == name:
                old = self.state.sessions.get(view.id)
                change += getattr(view, what) - (getattr(old, what) if old else 0)
        return change

    def queued_nodes(self) -> set[str]:
        """The nodes with sessions that wait, when this decision changes what quotas and groups
        leave them."""
        returned = any(
            (old := self.state.sessions.get(view.id)) is not None
            and (old.holding > view.holding or old.admitted_milli > view.admitted_milli)
            for view in self.changed.values()
            if self.cluster(view.virtual_cluster) is not None
        )
        if not (returned or self.clusters or groups.left(self)):
            return set()
        return {node.id for node in self.state.nodes.values() if node.queue or node.pending}

    def returning(self) -> list[SessionView]:
        """The suspended sessions that wait for a node, in the order in which they get one."""
        kept = (key[-1] for key in self.state.returning if key[-1] not in self.changed)
        views = [self.state.sessions[sid] for sid in kept]
        views += [view for view in self.changed.values() if view.returning]
        return sorted(views, key=lambda view: view.queue_key)

    def touched(self) -> set[str]:
        """The nodes that this decision changes something of so far."""
        before = (self.state.sessions.get(sid) for sid in self.changed)
        return {
            *(view.node for view in self.changed.values()),
            *(old.node for old in before if old),
            *(mark.node for mark in self.marks.values()),
            *self.duties,
        }

    def next_order(self) -> int:
        self._counter += 1
        return self._counter - 1

    # -- changing -------------------------------------------------------------------------

    def set_node(
        self,
        node_id: str,
        *,
        connected: bool,
        devices: tuple[DeviceView, ...] | None = None,
        abilities: Abilities | None = None,
    ) -> None:
        old = self.node(node_id)
        ordered = (
            old.devices
            if devices is None
            else {d.id: d for d in sorted(devices, key=lambda d: d.sort_key)}
        )
        self._node = Node(node_id, ordered, connected, abilities=abilities or old.abilities)

    def put_mark(self, mark: DeviceMark) -> DeviceMark:
        self.marks[mark.node, mark.uuid] = mark
        return mark

    def order(
        self,
        by: str,
        verb: str,
        subject: str,
        before: Any,
        after: Any,
        reason: str,
        rule: str,
    ) -> None:
        """Write a line of the log of what administrators changed."""
        assert rule in RULES, f"{rule} is not in core.rules"
        old, new = (json.dumps(value, sort_keys=True) for value in (before, after))
        self.orders.append(Order(self.now, by, verb, subject, old, new, reason, rule))

    def store(self, session: str, reference: CheckpointRef) -> None:
        """Write one checkpoint of a session down."""
        self.stored[session, reference.id] = reference

    def put(self, view: SessionView) -> SessionView:
        """Replace a session without a line in its history."""
        cluster = self.node(view.node).abilities.cluster or view.cluster
        view = replace(view, updated_at=self.now, cluster=cluster)
        self.changed[view.id] = view
        return view

    def note(self, view: SessionView, reason: str, rule: str) -> SessionView:
        """Replace a session and write a line of history; the reason is shown to people, `rule` is
        one of `core.rules.RULES`."""
        return self.remark(replace(view, reason=reason), reason, rule)

    def remark(self, view: SessionView, text: str, rule: str) -> SessionView:
        """Replace a session and write a line of history that is not why it is in its state: its
        reason stays."""
        assert rule in RULES, f"{rule} is not in core.rules"
        view = self.put(view)
        self.history.append(
            Change(view.id, self.now, view.process_state, view.device_state, view.word, text, rule)
        )
        return view

    def step(
        self,
        view: SessionView,
        event: ProcessEvent | DeviceEvent,
        reason: str,
        rule: str,
        **fields: Any,
    ) -> SessionView:
        """Take one step of the state table, with other `fields` of the session changed along, and
        write its line of history."""
        return self.note(self.quiet_step(view, event, **fields), reason, rule)

    def quiet_step(
        self, view: SessionView, event: ProcessEvent | DeviceEvent, **fields: Any
    ) -> SessionView:
        """A step that is part of another one, which tells it; the result is not in the draft."""
        if isinstance(event, ProcessEvent):
            process = next_process(view.process_state, event, view.id, view.story)
            line = f"{view.process_state.value} --{event.value}--> {process.value}"
            fields["process_state"] = process
        else:
            device = next_device(view.device_state, event, view.id, view.story)
            line = f"{view.device_state.value} --{event.value}--> {device.value}"
            fields["device_state"] = device
        story = (*view.story, line)[-STORY_LENGTH:]
        return replace(view, story=story, **fields)

    def decision(self) -> Decision:
        return Decision(
            sessions=tuple(self.changed.values()),
            history=tuple(self.history),
            actions=tuple(self.actions),
            node=self._node.id if self._node else None,
            node_devices=tuple(self._node.devices.values()) if self._node else None,
            node_connected=self._node.connected if self._node else None,
            node_abilities=self._node.abilities if self._node else None,
            marks=tuple(self.marks.values()),
            stored=tuple((session, ref) for (session, _), ref in self.stored.items()),
            gone=tuple(self.gone),
            orders=tuple(self.orders),
            settings=tuple(self.settings.values()),
            node_marks=tuple(self.duties.values()),
            upgrade=self.upgrade,
            clusters=tuple(self.clusters.items()),
            user_tiers=tuple(self.user_tiers.items()),
            counter=self._counter,
        )
