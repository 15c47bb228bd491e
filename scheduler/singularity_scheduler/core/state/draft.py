"""`Draft`: a decision in the making, an overlay on `ClusterState`.

It leaves the state as it is; once the decision is durable, `ClusterState.apply` takes it over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import merge
from typing import Any

from singularity_proxy.errors import Unavailable

from singularity_scheduler.core.reasons.reason import Reason, Words, because
from singularity_scheduler.core.reasons.refusals import refuse
from singularity_scheduler.core.steps import groups
from singularity_scheduler.core.values.actions import Action
from singularity_scheduler.core.values.administration import (
    NodeMark,
    Order,
    Setting,
    Upgrade,
    VirtualCluster,
)
from singularity_scheduler.core.values.model import Abilities, Change, SessionView, changed
from singularity_scheduler.core.values.requested import Tier
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import (
    DeviceEvent,
    DeviceState,
    ProcessEvent,
    next_device,
    next_process,
)

from .cluster import ClusterState, Node, named
from .decision import Decision
from .devices import DeviceMark, DeviceView
from .stored import CheckpointRef

STORY_LENGTH = 8


def _fewer(view: SessionView) -> int | None:
    """How many physical devices it has, where they are not as many as its virtual ones."""
    if view.virtual_devices < 2 or not view.leased:
        return None
    count = len(view.leases)
    return None if count == view.virtual_devices else count


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
            raise refuse(
                Unavailable,
                because("no_answer_now", node=view.node, who=view.label),
                session=view.id,
            )
        return node

    def occupants(self, node_id: str) -> dict[str, SessionView | None]:
        """device id -> the session that holds it now, None for a free one; sorted by device."""
        leases = dict(self.state.nodes[node_id].leases) if node_id in self.state.nodes else {}
        leases = {device: sid for device, sid in leases.items() if sid not in self.changed}
        for view in self.changed.values():
            if view.node == node_id and not view.ended:
                leases.update(dict.fromkeys(view.leases, view.id))
        return {
            device: self.get(leases[device]) if device in leases else None
            for device in self.node(node_id).devices
        }

    def mark(self, node_id: str, device: str) -> DeviceMark:
        """Whether the device is drained, as this decision leaves it."""
        known = self.state.nodes.get(node_id)
        marks = known.marks if known else {}
        found = Node(node_id, self.node(node_id).devices, marks=marks).mark(device)
        return named(self.marks.get((node_id, found.uuid), found), node_id, device, found.uuid)

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
        """Whether nobody waits there, for devices, for more devices, or to be started."""
        node = self.state.nodes.get(node_id)
        wait = node is not None and (node.queue or node.pending or node.smaller)
        return not wait and not any(
            view.pending or view.device_state is DeviceState.WAITING or view.smaller
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

    def smaller(self, node_id: str) -> list[SessionView]:
        """The sessions of a node that run on fewer devices than they may have."""
        node = self.state.nodes.get(node_id)
        known = node.smaller if node else set()
        new = {v.id for v in self.changed.values() if v.smaller and v.node == node_id}
        views = (self.get(sid) for sid in sorted(known | new))
        return [view for view in views if view is not None and view.smaller]

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
        reason: Words,
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
        view = changed(view, updated_at=self.now, cluster=cluster)
        self.changed[view.id] = view
        return view

    def note(self, view: SessionView, reason: Reason, rule: str) -> SessionView:
        """Replace a session and write a line of history; the reason is shown to people, `rule` is
        one of `core.rules.RULES`."""
        return self.remark(changed(view, why=reason), reason, rule)

    def remark(self, view: SessionView, reason: Reason, rule: str) -> SessionView:
        """Replace a session and write a line of history that is not why it is in its state: its
        reason stays."""
        assert rule in RULES, f"{rule} is not in core.rules"
        view = self.put(view)
        self.history.append(
            Change(
                view.id,
                self.now,
                view.process_state,
                view.device_state,
                view.word,
                reason,
                rule,
                _fewer(view),
            )
        )
        return view

    def step(
        self,
        view: SessionView,
        event: ProcessEvent | DeviceEvent,
        reason: Reason,
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
        return changed(view, story=story, **fields)

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
