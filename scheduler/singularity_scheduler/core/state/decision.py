"""What `decide` answers an event with."""

from __future__ import annotations

from dataclasses import dataclass

from singularity_scheduler.core.values.actions import Action
from singularity_scheduler.core.values.administration import (
    NodeMark,
    Order,
    Setting,
    Upgrade,
    VirtualCluster,
)
from singularity_scheduler.core.values.model import Abilities, Change, SessionView
from singularity_scheduler.core.values.requested import Tier

from .devices import DeviceMark, DeviceView
from .stored import CheckpointRef


@dataclass(frozen=True)
class Decision:
    """What `decide` found: nothing is changed until `ClusterState.apply` gets it, so the caller
    makes `sessions` and `history` durable first and then executes `actions`."""

    sessions: tuple[SessionView, ...] = ()
    history: tuple[Change, ...] = ()
    actions: tuple[Action, ...] = ()
    node: str | None = None
    """The node whose devices or connection changed with this decision (NodeJoined, NodeAway)."""
    node_devices: tuple[DeviceView, ...] | None = None
    node_connected: bool | None = None
    node_abilities: Abilities | None = None
    marks: tuple[DeviceMark, ...] = ()
    """Devices that were drained or returned."""
    stored: tuple[tuple[str, CheckpointRef], ...] = ()
    """(session, checkpoint): new ones, and those of which something changed."""
    gone: tuple[tuple[str, str], ...] = ()
    """(session, id of a checkpoint): deleted ones."""
    orders: tuple[Order, ...] = ()
    """What administrators changed."""
    settings: tuple[Setting, ...] = ()
    node_marks: tuple[NodeMark, ...] = ()
    upgrade: Upgrade | None = None
    clusters: tuple[tuple[str, VirtualCluster | None], ...] = ()
    """(name, virtual cluster): new, changed, or (None) gone."""
    user_tiers: tuple[tuple[str, tuple[Tier, ...] | None], ...] = ()
    """(user, tiers that are open to them); None: all."""
    counter: int = 0
    """Next value of the order counter."""

    @property
    def empty(self) -> bool:
        return not (
            self.sessions
            or self.actions
            or self.node
            or self.marks
            or self.stored
            or self.gone
            or self.administered
        )

    @property
    def administered(self) -> bool:
        """Whether it changes what administrators have said."""
        return bool(
            self.orders
            or self.settings
            or self.node_marks
            or self.upgrade
            or self.clusters
            or self.user_tiers
        )
