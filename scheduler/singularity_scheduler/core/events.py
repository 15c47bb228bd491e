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
class SessionCreated:
    """A validated request for a new session; its id is chosen by the caller."""

    session: str
    user: str
    spec: SessionSpec
    server: str | None = None


@dataclass(frozen=True)
class ParkAsked:
    session: str
    by: str


@dataclass(frozen=True)
class PreemptAsked:
    """Its devices are to be taken, and it is to be held back until it is resumed."""

    session: str
    by: str


@dataclass(frozen=True)
class ResumeAsked:
    session: str
    by: str


@dataclass(frozen=True)
class MigrateAsked:
    """`devices`: the wanted ones, one per virtual device; (): any others."""

    session: str
    by: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointAsked:
    session: str
    by: str
    name: str | None = None


@dataclass(frozen=True)
class SignalAsked:
    """A signal is about to be sent to the session's main process."""

    session: str
    by: str
    signum: int


@dataclass(frozen=True)
class EndAsked:
    session: str
    by: str
    reason: str = ""
    grace_s: float = 5.0


@dataclass(frozen=True)
class DrainAsked:
    """No session is to get this device any more."""

    node: str
    device: str
    by: str
    reason: str = ""


@dataclass(frozen=True)
class ReturnAsked:
    """A drained device is to be used again; its faults are acknowledged."""

    node: str
    device: str
    by: str


# -- events: what nodes report --------------------------------------------------------------


@dataclass(frozen=True)
class DevicesLooked:
    """The node reported its devices' health; `ClusterState.observe` has it already."""

    node: str


@dataclass(frozen=True)
class NodeJoined:
    """A node's agent is connected; `sessions` is the truth about what runs there.

    `starting`: sessions whose start command is being sent now; they may be missing in `sessions`.
    """

    node: str
    devices: tuple[DeviceView, ...]
    sessions: tuple[AgentFacts, ...] = ()
    starting: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NodeAway:
    node: str


@dataclass(frozen=True)
class Tick:
    """Time went by on this node: try again what failed. Sent every few seconds."""

    node: str


@dataclass(frozen=True)
class Started:
    session: str


@dataclass(frozen=True)
class StartFailed:
    session: str
    sentence: str


@dataclass(frozen=True)
class ProcessExited:
    session: str
    exit_code: int | None
    sentence: str = ""


@dataclass(frozen=True)
class Ended:
    """The agent confirmed that nothing of the session is left on its node."""

    session: str
    exit_code: int | None = None


@dataclass(frozen=True)
class DeviceNeeded:
    session: str


@dataclass(frozen=True)
class DeviceWithdrawn:
    session: str


@dataclass(frozen=True)
class Activity:
    session: str
    busy: bool
    at: float


@dataclass(frozen=True)
class Attached:
    session: str
    epoch: int
    ms: float = 0.0


@dataclass(frozen=True)
class AttachFailed:
    session: str
    epoch: int
    sentence: str


@dataclass(frozen=True)
class Parked:
    session: str
    epoch: int
    bytes: int = 0
    ms: float = 0.0
    stays: bool = False
    """It comes back faster to the devices that it had."""


@dataclass(frozen=True)
class ParkFailed:
    session: str
    epoch: int
    sentence: str


@dataclass(frozen=True)
class LeaseLapsed:
    """The connected agent lapsed a lease by its own clock: it parks the session; make sure."""

    session: str


@dataclass(frozen=True)
class LeaseReaped:
    """No renewal for TTL + margin: the agent has fenced itself, the devices are free."""

    session: str
    epoch: int
    sentence: str


@dataclass(frozen=True)
class ProxyRecovered:
    """`why`: what was wrong with the proxy that lived and was replaced; "": it had ended."""

    session: str
    records: int
    ms: float
    why: str = ""


@dataclass(frozen=True)
class ProxyFailed:
    """`left`: how many other rings (worker processes' devices) of the session go on."""

    session: str
    sentence: str
    left: int = 0


@dataclass(frozen=True)
class ProxyGaveUp:
    """A call that ended one proxy after another was made to fail; everything else is kept."""

    session: str
    operation: str
    deaths: int


@dataclass(frozen=True)
class ProxySilent:
    """A device proxy lives and does not answer; it is replaced after `limit_s` (0: never)."""

    session: str
    limit_s: float


@dataclass(frozen=True)
class ProxyAnswers:
    """A silent proxy answers again."""

    session: str


@dataclass(frozen=True)
class DeviceWorking:
    """One operation takes long; `seconds` 0: the one that was told is over."""

    session: str
    operation: str
    seconds: float


@dataclass(frozen=True)
class CheckpointTaken:
    session: str
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
