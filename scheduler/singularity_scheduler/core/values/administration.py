"""What administrators have told the scheduler: values that are in the ledger. Pure.

`ClusterState.admin` holds them; the events that change them are at the end. What a node is used for
is a table, as the states of sessions are: (duty, event) -> next duty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.reasons.reason import Words, because
from singularity_scheduler.core.reasons.refusals import refuse

from .parameters import Parameters
from .requested import Tier


class NodeDuty(str, Enum):
    """What a node is used for."""

    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"


class DutyEvent(str, Enum):
    """What changes the duty of a node."""

    CORDON = "cordon"
    DRAIN = "drain"
    EMPTY = "empty"
    FILLED = "filled"
    UNCORDON = "uncordon"
    UNDRAIN = "undrain"


_D, _E = NodeDuty, DutyEvent

DUTY_TRANSITIONS: dict[tuple[NodeDuty, DutyEvent], NodeDuty] = {
    (_D.OPEN, _E.CORDON): _D.CORDONED,
    (_D.CORDONED, _E.CORDON): _D.CORDONED,
    **{(duty, _E.DRAIN): _D.DRAINING for duty in _D},
    (_D.DRAINING, _E.EMPTY): _D.DRAINED,
    # A session came back with its node, which had been given up.
    (_D.DRAINED, _E.FILLED): _D.DRAINING,
    (_D.CORDONED, _E.UNCORDON): _D.OPEN,
    **{(duty, _E.UNDRAIN): _D.OPEN for duty in (_D.DRAINING, _D.DRAINED)},
}


def next_duty(duty: NodeDuty, event: DutyEvent, node: str) -> NodeDuty:
    """The duty after `event`; `Conflict` when there is no such step."""
    try:
        return DUTY_TRANSITIONS[duty, event]
    except KeyError:
        raise refuse(
            Conflict,
            because("no_such_duty_step", node=node, state=duty.value, verb=event.value),
            node=node,
            duty=duty.value,
        ) from None


@dataclass(frozen=True)
class NodeMark:
    """What a node is used for, who said so and why. A restart does not forget it."""

    node: str
    duty: NodeDuty = NodeDuty.OPEN
    by: str = ""
    reason: Words = ""
    at: float = 0.0
    deadline: float | None = None
    """When a drain is to be over; None: whenever."""
    notice: bool = False
    """Its machine goes away at the deadline, whatever is still there."""
    force: bool = False
    """What can neither move nor be stored is ended, and told so."""
    instance: str = ""
    """Of its agent when it was told to leave: another one means that it was started anew."""

    @property
    def leaving(self) -> bool:
        """Whether what is there is to go away."""
        return self.duty in (NodeDuty.DRAINING, NodeDuty.DRAINED)

    @property
    def rule(self) -> str:
        """By which rule sessions leave it."""
        return "node.notice" if self.notice else "node.drain"


class UpgradeState(str, Enum):
    """How far an upgrade of nodes is."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    """It cannot go on by itself; `Upgrade.why` says what is missing."""
    DONE = "done"
    CANCELLED = "cancelled"


class StepState(str, Enum):
    """How far one node of an upgrade is."""

    WAITING = "waiting"
    DRAINING = "draining"
    OUT = "out"
    """Empty: whoever upgrades it can begin."""
    BACK = "back"


@dataclass(frozen=True)
class UpgradeStep:
    """One node of an upgrade."""

    node: str
    state: StepState = StepState.WAITING
    version: str = ""
    """Of its agent before."""


@dataclass(frozen=True)
class Upgrade:
    """Nodes that are emptied a few at a time, so that each can be upgraded; the newest one."""

    by: str
    reason: str
    at: float
    at_once: int
    steps: tuple[UpgradeStep, ...]
    state: UpgradeState = UpgradeState.RUNNING
    why: Words = ""
    """Of one that stopped; a sentence alone in ledgers from before there were codes."""
    wait: bool = False
    """Sessions without room elsewhere may wait in the store; False: it stops instead."""

    @property
    def over(self) -> bool:
        return self.state in (UpgradeState.DONE, UpgradeState.CANCELLED)


@dataclass(frozen=True)
class VirtualCluster:
    """A share of the devices that belongs to somebody."""

    name: str
    quota_devices: int
    may_borrow: bool = True
    """Whether its sessions may have more than that while nobody else needs it."""


@dataclass(frozen=True)
class Setting:
    """One parameter of the policy that an administrator has set; `value` None: it is the default
    again."""

    name: str
    value: object


@dataclass(frozen=True)
class Order:
    """One line of the log of what administrators changed. `before` and `after` are JSON."""

    at: float
    by: str
    verb: str
    subject: str
    """The parameter, node or virtual cluster."""
    before: str
    after: str
    reason: Words
    rule: str


@dataclass
class Administration:
    """All of it; part of `ClusterState`."""

    defaults: Parameters = field(default_factory=Parameters)
    """As the service is configured."""
    settings: dict[str, object] = field(default_factory=dict)
    """What administrators set over them."""
    clusters: dict[str, VirtualCluster] = field(default_factory=dict)
    tiers: dict[str, tuple[Tier, ...]] = field(default_factory=dict)
    """user -> the tiers that are open to them; who is not in it may have all."""
    upgrade: Upgrade | None = None


# -- events ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByAdmin:
    """Somebody with the right to do so asks for a change."""

    by: str


@dataclass(frozen=True)
class ParametersAsked(ByAdmin):
    """These parameters are to have these values, from the next decision on; a value None: its
    default."""

    changes: tuple[tuple[str, object], ...]
    reason: str = ""


@dataclass(frozen=True)
class DutyAsked(ByAdmin):
    """A node is to be cordoned, drained or opened."""

    node: str
    event: DutyEvent
    reason: str = ""
    deadline: float | None = None
    notice: bool = False
    force: bool = False
    store: bool = False
    """Sessions that no other node can take may wait in the store; False: such a drain is
    refused."""


@dataclass(frozen=True)
class NoticeGiven:
    """The machine of a node says that it goes away at this time."""

    node: str
    deadline: float


@dataclass(frozen=True)
class UpgradeAsked(ByAdmin):
    """These nodes are to be emptied for an upgrade, at most `at_once` at a time."""

    nodes: tuple[str, ...]
    at_once: int = 1
    reason: str = ""
    wait: bool = False


@dataclass(frozen=True)
class UpgradeChange(ByAdmin):
    """The upgrade is to be paused, resumed or cancelled."""

    state: UpgradeState
    wait: bool | None = None
    """As `Upgrade.wait`; None: as it was."""


@dataclass(frozen=True)
class UpgradedAsked(ByAdmin):
    """A node of the upgrade is back."""

    node: str


@dataclass(frozen=True)
class QuotaAsked(ByAdmin):
    """There is to be this virtual cluster."""

    cluster: VirtualCluster
    reason: str = ""


@dataclass(frozen=True)
class QuotaGone(ByAdmin):
    """There is to be no such virtual cluster any more."""

    name: str


@dataclass(frozen=True)
class TiersAsked(ByAdmin):
    """These tiers are to be open to a user's sessions; None: all."""

    user: str
    tiers: tuple[Tier, ...] | None


AdminEvent = (
    ParametersAsked
    | DutyAsked
    | NoticeGiven
    | UpgradeAsked
    | UpgradeChange
    | UpgradedAsked
    | QuotaAsked
    | QuotaGone
    | TiersAsked
)
