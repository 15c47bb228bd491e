"""What happens (events) and what is to be done (actions): the two ends of `decide`."""

from __future__ import annotations

from dataclasses import dataclass

from .model import (
    AgentFacts,
    Change,
    CheckpointRef,
    DeviceMark,
    DeviceView,
    SessionSpec,
    SessionView,
)

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
class ParkAsked(Asked):
    pass


@dataclass(frozen=True)
class PreemptAsked(Asked):
    """Its devices are to be taken, and it is to be held back until it is resumed."""


@dataclass(frozen=True)
class ResumeAsked(Asked):
    pass


@dataclass(frozen=True)
class MigrateAsked(Asked):
    """`devices`: the wanted ones, one per virtual device; (): any others."""

    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointAsked(Asked):
    name: str | None = None


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
    starting: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NodeAway(OfNode):
    pass


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
    """The agent confirmed that nothing of the session is left on its node."""

    exit_code: int | None = None


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
class Attached(OfLease):
    ms: float = 0.0


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


Event = (
    SessionCreated
    | ParkAsked
    | PreemptAsked
    | ResumeAsked
    | MigrateAsked
    | CheckpointAsked
    | SignalAsked
    | EndAsked
    | DrainAsked
    | ReturnAsked
    | DevicesLooked
    | NodeJoined
    | NodeAway
    | Tick
    | Started
    | StartFailed
    | ProcessExited
    | Ended
    | DeviceNeeded
    | DeviceWithdrawn
    | Activity
    | Attached
    | AttachFailed
    | Parked
    | ParkFailed
    | LeaseLapsed
    | LeaseReaped
    | ProxyRecovered
    | ProxyFailed
    | ProxyGaveUp
    | ProxySilent
    | ProxyAnswers
    | DeviceWorking
    | CheckpointTaken
)

# -- actions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """One command for a node's agent. `reason` is for people, `rule` names what decided it."""

    session: str
    node: str
    reason: str
    rule: str
    epoch: int
    seq: int


@dataclass(frozen=True)
class Start(Action):
    pass


@dataclass(frozen=True)
class Attach(Action):
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Park(Action):
    force: bool = False
    """Its device is broken: when the state cannot be saved, end the proxy; snapshot and journal
    rebuild the state elsewhere."""
    moving: bool = False
    """It goes on on other devices."""


@dataclass(frozen=True)
class TakeCheckpoint(Action):
    name: str | None = None


@dataclass(frozen=True)
class End(Action):
    grace_s: float = 5.0


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
    marks: tuple[DeviceMark, ...] = ()
    """Devices that were drained or returned."""
    counter: int = 0
    """Next value of the order counter."""

    @property
    def empty(self) -> bool:
        return not (self.sessions or self.actions or self.node or self.marks)
