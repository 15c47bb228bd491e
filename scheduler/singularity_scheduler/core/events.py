"""What happens (events) and what is to be done (`actions`): the two ends of `decide`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import actions
from .administration import (
    AdminEvent,
    NodeMark,
    Order,
    Setting,
    Upgrade,
    VirtualCluster,
)
from .devices import DeviceMark, DeviceView
from .model import Abilities, AgentFacts, Change, SessionView
from .requested import Priority, SessionSpec, Tier
from .stored import CheckpointRef, LossReport

Action = actions.Action
Attach = actions.Attach
Resize = actions.Resize
End = actions.End
Fence = actions.Fence
Park = actions.Park
PutBack = actions.PutBack
Resume = actions.Resume
Start = actions.Start
Suspend = actions.Suspend
TakeCheckpoint = actions.TakeCheckpoint

# -- events: what people ask ----------------------------------------------------------------


@dataclass(frozen=True)
class OfSession:
    """What happens to, or is asked for, one session."""

    session: str


@dataclass(frozen=True)
class Asked(OfSession):
    """Somebody asks for something to be done with a session."""

    by: str


@dataclass(frozen=True)
class OfLease(OfSession):
    """What concerns the lease `epoch` of a session, and no other one."""

    epoch: int


@dataclass(frozen=True)
class OfDevice:
    """Somebody asks for something to be done with a device."""

    node: str
    device: str
    by: str


@dataclass(frozen=True)
class OfNode:
    """What concerns a whole node."""

    node: str


@dataclass(frozen=True)
class SessionCreated:
    """A validated request for a new session; its id is chosen by the caller."""

    session: str
    user: str
    spec: SessionSpec
    server: str | None = None


@dataclass(frozen=True)
class GroupCreated:
    """A validated request for a group of runs, by their new ids; all of them or none."""

    group: str
    user: str
    members: tuple[tuple[str, SessionSpec], ...]
    server: str | None = None


@dataclass(frozen=True)
class GroupEndAsked:
    """All members of a group that have not ended are to end."""

    group: str
    by: str
    reason: str = ""
    grace_s: float = 5.0


@dataclass(frozen=True)
class ParkAsked(Asked):
    pass


@dataclass(frozen=True)
class PreemptAsked(Asked):
    """Its devices are to be taken, and it is to be held back until it is resumed."""


@dataclass(frozen=True)
class KeepAsked(Asked):
    """It is to be kept alive for so many seconds from now on, whether it works or rests; 0: no
    longer."""

    for_s: float


@dataclass(frozen=True)
class TierAsked(Asked):
    """It is to have another tier, priority, or both; None: as it is."""

    tier: Tier | None = None
    priority: Priority | None = None


@dataclass(frozen=True)
class ResumeAsked(Asked):
    """Its devices are wanted now; a suspended one is to come back, from `checkpoint` (its id or
    name; None: the newest) and to `node` (None: the one it was on, else any) or `cluster`."""

    checkpoint: str | None = None
    node: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class MigrateAsked(Asked):
    """`devices`: the wanted ones, one per virtual device; (): any others. `node`: to that node
    instead; `cluster`: to whichever node of it is the best."""

    devices: tuple[str, ...] = ()
    node: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class ResizeAsked(Asked):
    """It is to run on so many physical devices."""

    devices: int


@dataclass(frozen=True)
class CheckpointAsked(Asked):
    """`level`: "device" or "process"; None: the best that its node can do. `periodic`: why it is
    made by itself; "": a person asks."""

    name: str | None = None
    level: str | None = None
    periodic: str = ""


@dataclass(frozen=True)
class SuspendAsked(Asked):
    """Everything of it is to go to the store. `why`: what follows the name of who asked."""

    name: str = ""
    why: str = ""


@dataclass(frozen=True)
class RestoreAsked(Asked):
    """It is to go on from an older `checkpoint` (id or name) of its own. Its present state is put
    into the store first, unless it is to be `discard`ed."""

    checkpoint: str
    discard: bool = False


@dataclass(frozen=True)
class ForkAsked:
    """A second session, with the id `session`, is to begin where `checkpoint` of `source` is."""

    session: str
    source: SessionView
    checkpoint: str | None
    by: str
    name: str = ""
    server: str | None = None


@dataclass(frozen=True)
class DropAsked(Asked):
    """A checkpoint (id or name) is to be deleted."""

    checkpoint: str


@dataclass(frozen=True)
class SignalAsked(Asked):
    """A signal is about to be sent to the session's main process."""

    signum: int


@dataclass(frozen=True)
class EndAsked(Asked):
    reason: str = ""
    grace_s: float = 5.0


@dataclass(frozen=True)
class DrainAsked(OfDevice):
    """No session is to get this device any more."""

    reason: str = ""


@dataclass(frozen=True)
class ReturnAsked(OfDevice):
    """A drained device is to be used again; its faults are acknowledged."""


# -- events: what nodes report --------------------------------------------------------------


@dataclass(frozen=True)
class DevicesLooked(OfNode):
    """The node reported its devices' health; `ClusterState.observe` has it already."""


@dataclass(frozen=True)
class NodeJoined(OfNode):
    """A node's agent is connected; `sessions` is the truth about what runs there.

    `starting`: sessions whose start command is being sent now; they may be missing in `sessions`.
    """

    devices: tuple[DeviceView, ...]
    sessions: tuple[AgentFacts, ...] = ()
    abilities: Abilities = field(default_factory=Abilities)
    starting: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NodeAway(OfNode):
    pass


@dataclass(frozen=True)
class NodeLost(OfNode):
    """Nothing was heard of the node for longer than its leases last, so it has fenced itself:
    what it ran may be started elsewhere. `hopeless`: what cannot be is not waited for either.
    `stopped`: by now it has stopped what could be; before, nothing of it is started elsewhere."""

    silent_s: float
    hopeless: bool = True
    stopped: bool = True


@dataclass(frozen=True)
class Tick(OfNode):
    """Time went by on this node: try again what failed. Sent every few seconds."""


@dataclass(frozen=True)
class Started(OfSession):
    pass


@dataclass(frozen=True)
class StartFailed(OfSession):
    sentence: str


@dataclass(frozen=True)
class ProcessExited(OfSession):
    exit_code: int | None
    sentence: str = ""


@dataclass(frozen=True)
class Ended(OfSession):
    """The agent confirmed that nothing of the session is left on its node (`node`, when it is
    not the one that the session is on)."""

    exit_code: int | None = None
    node: str = ""


@dataclass(frozen=True)
class Suspended(OfLease):
    """Everything of it is in the store; its node is free. `seq`: of the command."""

    seq: int
    checkpoint: CheckpointRef
    ms: float = 0.0


@dataclass(frozen=True)
class SuspendFailed(OfLease):
    seq: int
    sentence: str


@dataclass(frozen=True)
class Fenced(OfLease):
    """Its processes on `node` are ended; what is in the store is as it was."""

    seq: int
    node: str


@dataclass(frozen=True)
class Resumed(OfLease):
    """`relay`: its kernel connection is on its node now."""

    seq: int
    loss: LossReport
    relay: bool = False


@dataclass(frozen=True)
class ResumeFailed(OfLease):
    """`damaged`: the checkpoint itself is not what was stored."""

    seq: int
    sentence: str
    damaged: bool = False


@dataclass(frozen=True)
class Wanted(OfSession):
    """A user's request reached the kernel connection of a session that is away."""


@dataclass(frozen=True)
class Orphaned(OfSession):
    """The Jupyter server that it belongs to is gone."""

    sentence: str = ""


@dataclass(frozen=True)
class DeviceNeeded(OfSession):
    pass


@dataclass(frozen=True)
class DeviceWithdrawn(OfSession):
    pass


@dataclass(frozen=True)
class Activity(OfSession):
    busy: bool
    at: float


@dataclass(frozen=True)
class Recorded(OfSession):
    """A run recorded values; see `recorded`."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class DeviceUse(OfSession):
    """Calls stopped to reach its devices at `quiet_since`; 0.0: they come again."""

    quiet_since: float


@dataclass(frozen=True)
class Attached(OfLease):
    """`devices`: which is behind which virtual device, where its node chose another order."""

    ms: float = 0.0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttachFailed(OfLease):
    sentence: str


@dataclass(frozen=True)
class Parked(OfLease):
    bytes: int = 0
    ms: float = 0.0
    stays: bool = False
    """It comes back faster to the devices that it had."""


@dataclass(frozen=True)
class ParkFailed(OfLease):
    sentence: str


@dataclass(frozen=True)
class Resized(OfLease):
    """`devices` as of `Attached`."""

    ms: float = 0.0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResizeFailed(OfLease):
    """It goes on with the devices it had."""

    sentence: str


@dataclass(frozen=True)
class LeaseLapsed(OfSession):
    """The connected agent lapsed a lease by its own clock: it parks the session; make sure."""


@dataclass(frozen=True)
class LeaseReaped(OfLease):
    """No renewal for TTL + margin: the agent has fenced itself, the devices are free."""

    sentence: str


@dataclass(frozen=True)
class ProxyRecovered(OfSession):
    """`why`: what was wrong with the proxy that lived and was replaced; "": it had ended."""

    records: int
    ms: float
    why: str = ""


@dataclass(frozen=True)
class ProxyFailed(OfSession):
    """`left`: how many other rings (worker processes' devices) of the session go on."""

    sentence: str
    left: int = 0


@dataclass(frozen=True)
class ProxyGaveUp(OfSession):
    """A call that ended one proxy after another was made to fail; everything else is kept."""

    operation: str
    deaths: int


@dataclass(frozen=True)
class ProxySilent(OfSession):
    """A device proxy lives and does not answer; it is replaced after `limit_s` (0: never)."""

    limit_s: float


@dataclass(frozen=True)
class ProxyAnswers(OfSession):
    """A silent proxy answers again."""


@dataclass(frozen=True)
class DeviceWorking(OfSession):
    """One operation takes long; `seconds` 0: the one that was told is over."""

    operation: str
    seconds: float


@dataclass(frozen=True)
class CheckpointTaken(OfSession):
    checkpoint: CheckpointRef


@dataclass(frozen=True)
class ContentsBack(OfSession):
    """The contents of device state are again what they were at a checkpoint; or why not."""

    loss: LossReport | None
    sentence: str = ""


@dataclass(frozen=True)
class CheckpointsFound(OfSession):
    """What the store has of the session: a node may have died before it could tell."""

    checkpoints: tuple[CheckpointRef, ...]


@dataclass(frozen=True)
class CheckpointGone(OfSession):
    """It was deleted from the store."""

    checkpoint: str


Event = (
    SessionCreated
    | GroupCreated
    | GroupEndAsked
    | ParkAsked
    | PreemptAsked
    | KeepAsked
    | TierAsked
    | ResumeAsked
    | MigrateAsked
    | ResizeAsked
    | CheckpointAsked
    | SuspendAsked
    | RestoreAsked
    | ForkAsked
    | DropAsked
    | SignalAsked
    | EndAsked
    | DrainAsked
    | ReturnAsked
    | DevicesLooked
    | NodeJoined
    | NodeAway
    | NodeLost
    | Tick
    | Started
    | StartFailed
    | ProcessExited
    | Ended
    | Suspended
    | SuspendFailed
    | Fenced
    | Resumed
    | ResumeFailed
    | Wanted
    | Orphaned
    | DeviceNeeded
    | DeviceWithdrawn
    | Activity
    | Recorded
    | DeviceUse
    | Attached
    | AttachFailed
    | Parked
    | ParkFailed
    | Resized
    | ResizeFailed
    | LeaseLapsed
    | LeaseReaped
    | ProxyRecovered
    | ProxyFailed
    | ProxyGaveUp
    | ProxySilent
    | ProxyAnswers
    | DeviceWorking
    | CheckpointTaken
    | ContentsBack
    | CheckpointsFound
    | CheckpointGone
    | AdminEvent
)


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
