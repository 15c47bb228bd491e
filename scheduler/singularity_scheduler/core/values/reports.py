"""Events: what nodes report, and what is noticed about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from singularity_scheduler.core.state.devices import DeviceView
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport

from .model import Abilities, AgentFacts
from .subjects import OfLease, OfNode, OfSession


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
class GroupLate:
    """The time limit of a group is over, see `endings.late_groups`."""

    group: str


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
    """`damaged`: the checkpoint that it was to go back to is not what was stored."""

    seq: int
    sentence: str
    damaged: bool = False


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
    """`damaged`: the checkpoint itself is not what was stored; `passing`: what was in the way says
    nothing of the session, its checkpoint or its node (the store was away)."""

    seq: int
    sentence: str
    damaged: bool = False
    passing: bool = False


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
    """`least`: on how many physical devices its ranks can be at least; 0: that was not why."""

    sentence: str
    least: int = 0


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
    """It goes on with the devices it had. `least` as of `AttachFailed`."""

    sentence: str
    least: int = 0


@dataclass(frozen=True)
class LeaseLapsed(OfSession):
    """The connected agent gave a session's devices back by itself; make sure that it is parked.
    `why`: no device proxy could serve it; "": its lease ran out by the agent's own clock."""

    why: str = ""


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
class SquashingOff(OfSession):
    """Ranks that share a device compute everything themselves from here on: `why`, a sentence."""

    why: str


@dataclass(frozen=True)
class CheckpointTaken(OfSession):
    checkpoint: CheckpointRef


@dataclass(frozen=True)
class SetStored:
    """The parts of a gang were stored at one place: what each of `checkpoints` (session, stored)
    holds. `whole`: every part was; else nobody goes back to those that were."""

    set_id: str
    checkpoints: tuple[tuple[str, CheckpointRef], ...]
    whole: bool


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


@dataclass(frozen=True)
class CheckpointProved(OfSession):
    """It was tried whether it comes back. `fault`: why it did not; "": it did."""

    checkpoint: str
    fault: str


Report = (
    DevicesLooked
    | NodeJoined
    | NodeAway
    | NodeLost
    | Tick
    | GroupLate
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
    | SquashingOff
    | CheckpointTaken
    | SetStored
    | ContentsBack
    | CheckpointsFound
    | CheckpointGone
    | CheckpointProved
)
