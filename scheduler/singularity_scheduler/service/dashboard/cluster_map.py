"""The cluster map: what every device is used for, by cluster and node. Pure.

One walk over the devices counts everything; only the nodes of the page that is looked at become
squares, so that a page has the same size for 8 devices and for 100,000.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from singularity_scheduler.core.state.cluster import ClusterState, Node
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.text.reasons import render_duty

NODES_PER_PAGE = 60
FEW_NODES = NODES_PER_PAGE
"""So many nodes are shown at once, whichever clusters they are in."""

SQUARES_PER_NODE = 64
"""A node with more devices shows so many; its own page has all."""


class Use(Enum):
    """What a device is used for: a word, its letter, what it means. The order of the legend."""

    PREMIUM = ("premium", "P", "held by a premium session")
    STANDARD = ("standard", "S", "held by a standard session")
    BASIC = ("basic", "B", "held by a basic session")
    FREE = ("free", "·", "free")
    CLOSED = ("closed", "-", "free, and its node takes no new sessions")
    DRAINED = ("drained", "x", "drained: no session gets it")
    AWAY = ("away", "?", "its node does not answer")

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def letter(self) -> str:
        return self.value[1]

    @property
    def meaning(self) -> str:
        return self.value[2]


class Doing(Enum):
    """What its session does with a device that is held."""

    WORKING = ("working", "in use")
    IDLE = ("idle", "held and not used at the moment")
    MOVING = ("moving", "being attached or parked")

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def meaning(self) -> str:
        return self.value[1]


class Only(str, Enum):
    """Which nodes somebody wants to see."""

    ALL = "all"
    FREE = "free"
    TROUBLE = "trouble"


ONLY_WORDS = {
    Only.ALL: "all",
    Only.FREE: "with free devices",
    Only.TROUBLE: "that do not answer, are not open, or have drained devices",
}


@dataclass(frozen=True)
class Square:
    """One device."""

    use: Use
    doing: Doing | None
    title: str


@dataclass(frozen=True)
class Part:
    """So many devices of one use, and where their part of a bar begins and how long it is, in
    hundredths."""

    use: Use
    count: int
    begins: float
    length: float


@dataclass(frozen=True)
class NodeRow:
    """A node on the map."""

    id: str
    cluster: str
    duty: NodeDuty
    why: str
    """Of its duty, for people; "" when it is open."""
    connected: bool
    summary: str
    squares: tuple[Square, ...]
    more: int
    """Devices that are not among the squares."""


@dataclass(frozen=True)
class ClusterRow:
    """A cluster, summed up."""

    name: str
    region: str
    nodes: int
    connected: int
    devices: int
    parts: tuple[Part, ...]
    summary: str


@dataclass(frozen=True)
class Map:
    """What the page shows."""

    total: ClusterRow
    clusters: tuple[ClusterRow, ...]
    cluster: str | None
    """The one whose nodes are shown; "": of no cluster; None: those of all."""
    only: Only
    nodes: tuple[NodeRow, ...]
    found: int
    """How many nodes fit what is looked for."""
    page: int
    pages: int


def cluster_map(
    state: ClusterState, cluster: str | None = None, only: Only = Only.ALL, page: int = 1
) -> Map:
    """`cluster`: show the nodes of this one; None: of all if there are few, else none of them."""
    counts: dict[str, Counter[Use]] = {}
    nodes: dict[str, list[Node]] = {}
    of_node: dict[str, Counter[Use]] = {}
    for node in state.nodes.values():
        used = of_node[node.id] = _count(state, node)
        place = node.abilities.cluster
        counts.setdefault(place, Counter()).update(used)
        nodes.setdefault(place, []).append(node)
    rows = tuple(
        _cluster_row(name, state.geography.region(name), nodes[name], counts[name])
        for name in sorted(nodes, key=natural)
    )
    total = _cluster_row("", "", list(state.nodes.values()), sum(counts.values(), Counter[Use]()))
    if cluster is not None:
        looked_at = nodes.get(cluster, [])
    else:
        looked_at = list(state.nodes.values()) if total.nodes <= FEW_NODES else []
    fitting = [node for node in looked_at if _fits(node, of_node[node.id], only)]
    fitting.sort(key=lambda node: (natural(node.abilities.cluster), natural(node.id)))
    pages = max(1, -(-len(fitting) // NODES_PER_PAGE))
    page = min(max(page, 1), pages)
    shown = fitting[(page - 1) * NODES_PER_PAGE : page * NODES_PER_PAGE]
    return Map(
        total,
        rows,
        cluster,
        only,
        tuple(_node_row(state, node, of_node[node.id]) for node in shown),
        len(fitting),
        page,
        pages,
    )


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Sorts "node-2" before "node-10"."""
    parts = re.findall(r"(\d{1,15})|(\D+)", name)
    return tuple((bool(text), int(digits or 0), text) for digits, text in parts)


def square(state: ClusterState, node: Node, device: str) -> Square:
    """One device as the map shows it."""
    use, view = _use(state, node, device)
    doing = None if view is None else _doing(view)
    title = f"{device}: {use.meaning}"
    if view is not None and doing is not None:
        title = f"{device}: {view.tier.value}, {view.label}, {doing.meaning}"
    return Square(use, doing, title)


def _use(state: ClusterState, node: Node, device: str) -> tuple[Use, SessionView | None]:
    if not node.connected:
        return Use.AWAY, None
    view = state.sessions.get(node.leases.get(device, ""))
    if view is not None:
        return Use[view.tier.name], view
    if node.marks and node.mark(device).drained:
        return Use.DRAINED, None
    return (Use.FREE if node.duty.duty is NodeDuty.OPEN else Use.CLOSED), None


def _doing(view: SessionView) -> Doing:
    if view.device_state is not DeviceState.HELD:
        return Doing.MOVING
    return Doing.WORKING if view.quiet_since is None else Doing.IDLE


def _count(state: ClusterState, node: Node) -> Counter[Use]:
    return Counter(_use(state, node, device)[0] for device in node.devices)


def _fits(node: Node, used: Counter[Use], only: Only) -> bool:
    if only is Only.FREE:
        return used[Use.FREE] > 0
    if only is Only.TROUBLE:
        closed = node.duty.duty is not NodeDuty.OPEN
        return closed or not node.connected or used[Use.DRAINED] > 0
    return True


def _node_row(state: ClusterState, node: Node, used: Counter[Use]) -> NodeRow:
    devices = list(node.devices)
    return NodeRow(
        node.id,
        node.abilities.cluster,
        node.duty.duty,
        "" if node.duty.duty is NodeDuty.OPEN else render_duty(node.duty),
        node.connected,
        _summary(used),
        tuple(square(state, node, device) for device in devices[:SQUARES_PER_NODE]),
        max(0, len(devices) - SQUARES_PER_NODE),
    )


def _cluster_row(name: str, region: str, nodes: list[Node], used: Counter[Use]) -> ClusterRow:
    devices = used.total()
    parts: list[Part] = []
    begins = 0.0
    for use in Use:
        if count := used[use]:
            length = 100 * count / devices
            parts.append(Part(use, count, round(begins, 3), round(length, 3)))
            begins += length
    connected = sum(node.connected for node in nodes)
    return ClusterRow(name, region, len(nodes), connected, devices, tuple(parts), _summary(used))


def _summary(used: Counter[Use]) -> str:
    """ "8 devices: 3 premium, 5 free"."""
    count = used.total()
    said = ", ".join(f"{used[use]} {use.word}" for use in Use if used[use])
    return f"{count} device{'' if count == 1 else 's'}{f': {said}' if said else ''}"
