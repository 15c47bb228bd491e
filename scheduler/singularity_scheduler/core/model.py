"""The values the policy works on: plain frozen data. No I/O, no SQL, no clock.

Times are UNIX seconds as the caller gives them; the policy only compares and copies them. Orders
(who queued first, who attached last) are counters, so a stepping clock changes no decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .states import FINAL, LEASED, DeviceState, ProcessState, word

PARK_RETRY_S = 10.0
"""Seconds before a session that could not be parked (disk full) is asked for its devices again."""


class Tier(str, Enum):
    """Service level. `rank` orders them: a higher rank is served first."""

    PREMIUM = "premium"
    STANDARD = "standard"
    BASIC = "basic"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {Tier.PREMIUM: 2, Tier.STANDARD: 1, Tier.BASIC: 0}


class Kind(str, Enum):
    """What a session is: a notebook with a person in front, or a run on its own."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True)
class NotebookRun:
    """What a batch session runs: a notebook, by papermill, in its own capsule. JSON texts and not
    objects where a value has an inside, so that the whole is a plain value."""

    notebook: str
    """Absolute path of the input."""
    output: str | None = None
    """Absolute path of the executed notebook; None only until the session has its id."""
    parameters: str = "{}"
    """JSON object: parameter name -> value."""
    kernel: str | None = None
    """Name of the kernelspec; None: the one the notebook names."""
    folder: str | None = None
    """Working folder; None: the notebook's."""
    python: str | None = None
    """Interpreter that runs papermill; None: the service's own."""
    variables: str = "{}"
    """JSON object: environment of the run. It is stored, so it is no place for secrets."""


@dataclass(frozen=True)
class SessionSpec:
    """What was asked for, validated by `core.spec`."""

    kind: Kind
    tier: Tier
    devices: int
    name: str = ""
    run: NotebookRun | None = None
    kernel_id: str = ""
    every_s: float | None = None
    every_steps: int | None = None


@dataclass(frozen=True)
class CheckpointRef:
    """One stored checkpoint of a session, as its agent reported it."""

    id: str
    at: float
    bytes: int
    """What it would take unshared and uncompressed."""
    level: str
    """"process": everything; "device": device state alone; "files": files alone."""
    name: str = ""
    """Given by a person; "": it is one of those that retention trims."""
    stored_bytes: int = 0
    """What it takes in the store, shared chunks included."""
    sent_bytes: int = 0
    """What had to be sent for it: chunks the store did not have yet."""
    incarnation: int = 1
    reason: str = ""
    """Why its level is not higher."""
    damaged: str = ""
    """What was found wrong with it; "": nothing."""
    dropped: bool = False
    """Nobody sees it any more; it is deleted from the store as soon as a node can do that."""

    @property
    def whole(self) -> bool:
        """Whether a session can come back from it."""
        return self.level == "process" and not self.damaged and not self.dropped


@dataclass(frozen=True)
class LossReport:
    """What a restore brought back and what it could not."""

    level: str
    back: tuple[str, ...]
    lost: tuple[str, ...]
    rolled_back: bool
    """Whether the session is older than it was: what it did since the checkpoint is undone."""
    hashes_checked: int
    checkpoint: str
    at: float = 0.0


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay. Those with a name stay until they are deleted or too old."""

    newest: int = 5
    """How many without a name are kept of a session."""
    days: float = 0.0
    """Those older than this go, named ones too; 0: never. What a session would come back from
    stays."""


@dataclass(frozen=True)
class Abilities:
    """What a node's agent says that it can do with whole sessions."""

    image_trouble: str = ""
    """Why it cannot put processes into the store and bring them back; "": it can."""
    store: str = ""
    """Where its checkpoints go; two nodes with the same store can exchange sessions."""
    store_trouble: str = ""
    """Why its store cannot be used now; "": it can."""
    stores: bool = True
    """Whether it knows the commands about stored checkpoints at all."""

    @property
    def trouble(self) -> str:
        """Why no whole session can leave it or come to it; "": it can."""
        return self.image_trouble or self.store_trouble


@dataclass(frozen=True)
class SessionView:
    """Everything the scheduler knows of one session; replaced, never changed."""

    id: str
    user: str
    kind: Kind
    name: str
    tier: Tier
    virtual_devices: int
    node: str
    created_at: float
    updated_at: float
    process_state: ProcessState = ProcessState.QUEUED
    device_state: DeviceState = DeviceState.NONE
    reason: str = ""
    devices: tuple[str, ...] = ()
    """Physical devices under its lease, one per virtual device; () when it has none."""
    epoch: int = 0
    """Lease epoch: +1 with every grant."""
    seq: int = 0
    """Number of its last command to the agent; with `epoch` it makes commands idempotent."""
    busy: bool | None = None
    """Last report of its kernel; None: it never reported and counts as busy."""
    idle_since: float | None = None
    waiting_since: float | None = None
    queue_order: int = 0
    """Place in time among the waiting; smaller came first."""
    attach_order: int = 0
    """Larger: its devices were granted later."""
    saved: bool = False
    """Device state of it exists: in a proxy, a snapshot or a journal."""
    wants: bool = False
    """Its worker called a device while it was being parked, or its attach failed: queue it when
    the park is done, or at the next `Tick`."""
    park_failed_at: float | None = None
    """When it could not be parked last; it is left alone for `PARK_RETRY_S`."""
    asked: bool = False
    """A person asked for the devices (resume, migrate): it waits on even while the kernel idles."""
    moving: bool = False
    """It is on its way to other devices."""
    preferred: tuple[str, ...] = ()
    """Devices to take at the next grant when they can be had."""
    stopped_by: str | None = None
    """Who sent its process a signal that ends it; its end by a signal is then no failure."""
    exit_code: int | None = None
    ended: bool = False
    """Final, and its agent has confirmed that nothing of it is left."""
    server: str | None = None
    """Name of the user's notebook server it was started from ("" is the default one)."""
    grace_s: float = 5.0
    """Seconds its process gets after SIGTERM when it is ended."""
    checkpoints: tuple[CheckpointRef, ...] = ()
    """Oldest first; those in the store that somebody may still come back to."""
    incarnation: int = 1
    """+1 each time it goes on from something older than what it was."""
    loss: LossReport | None = None
    """Of its last return from the store."""
    origin: str = ""
    """The node where its kernel connection (relay) stays while it moves; "": none yet."""
    called: bool = False
    """Suspended, or about to be, and to come back as soon as a node has room."""
    target: str = ""
    """The only node it may come back to; "": any."""
    came_from: str = ""
    """The node it was on before the one it is coming to; "": the same."""
    restore_from: str = ""
    """Id of the checkpoint it comes back from; "": the newest that is whole."""
    rollback: bool = False
    """Its next return is an older state than it had: it starts a new incarnation."""
    undo: bool = False
    """Somebody wants that older state: what was asked of the session since is not done again."""
    unwind: bool = False
    """If its return fails, it comes back where and as it was before it was asked for."""
    lost: bool = False
    """Its node went away with it; until it is started elsewhere that node may still bring it."""
    leaving: str | None = None
    """Name of the checkpoint with which it is suspended as soon as its devices stand still
    ("" for one without a name); None: it stays."""
    source: str = ""
    """The session it was forked from."""
    kernel_id: str = ""
    """Jupyter's id of its kernel, so that a restarted server finds it again."""
    every_s: float | None = None
    """Seconds between checkpoints that are made by themselves; 0: none; None: as configured."""
    every_steps: int | None = None
    """Optimizer steps between them; 0: none; None: as configured."""
    run: NotebookRun | None = None
    """What it runs; None for kernels and for commands that joined."""
    held_by: str | None = None
    """Who preempted it: it gets no devices, and a queued run does not start, until it is
    resumed."""
    home: tuple[str, ...] = field(default=(), compare=False)
    """Devices it comes back to faster than to others, since its last park; not stored."""
    exit: tuple[int | None, str] | None = field(default=None, compare=False)
    """How its process ended while it was leaving or coming: counts if that fails; not stored."""
    story: tuple[str, ...] = field(default=(), compare=False)
    """Its last steps, for error messages; not stored."""

    @property
    def word(self) -> str:
        return word(self.process_state, self.device_state, self.moving)

    @property
    def label(self) -> str:
        """How people know it: user/name."""
        return f"{self.user}/{self.name or self.id}"

    @property
    def final(self) -> bool:
        return self.process_state in FINAL

    @property
    def leased(self) -> bool:
        return self.device_state in LEASED

    @property
    def idle(self) -> bool:
        """True only for a notebook whose kernel said so."""
        return self.kind is Kind.INTERACTIVE and self.busy is False

    @property
    def last_checkpoint(self) -> CheckpointRef | None:
        """The newest one."""
        return next((c for c in reversed(self.checkpoints) if not c.dropped), None)

    @property
    def newest_whole(self) -> CheckpointRef | None:
        """The newest one it can come back from."""
        return next((c for c in reversed(self.checkpoints) if c.whole), None)

    @property
    def here(self) -> bool:
        """Whether its process is on its node and stays there for now."""
        return self.process_state in (ProcessState.STARTING, ProcessState.LIVE)

    @property
    def returning(self) -> bool:
        """Whether it waits for a node to come back to."""
        return self.process_state is ProcessState.SUSPENDED and self.called

    @property
    def in_flight(self) -> bool:
        """Whether it is on its way into or out of the store."""
        return self.process_state in (ProcessState.SUSPENDING, ProcessState.RESUMING)

    @property
    def held_back(self) -> bool:
        return self.held_by is not None

    @property
    def queue_key(self) -> tuple[bool, int, int, str]:
        """Sorts the waiting: those held back last, then by tier, then first come."""
        return (self.held_back, -self.tier.rank, self.queue_order, self.id)

    @property
    def pending(self) -> bool:
        """A run that has not been started yet."""
        return self.process_state is ProcessState.QUEUED

    @property
    def admitted(self) -> int:
        """Devices that a started run counts for when the next one asks to be started."""
        away = self.pending or self.final or self.process_state is ProcessState.SUSPENDED
        counts = self.run is not None and not (away or self.held_back)
        return self.virtual_devices if counts else 0


@dataclass(frozen=True)
class DeviceView:
    """One physical device of a node. Who holds it is the business of `ClusterState`."""

    id: str
    node: str
    type: str
    capacity_bytes: int
    name: str = ""
    uuid: str = ""
    """Of the card: it keeps it when it gets another number, and no other card has it."""

    @property
    def key(self) -> str:
        """What is remembered of a device belongs to this: its UUID; its id where it has none."""
        return self.uuid or self.id

    @property
    def sort_key(self) -> tuple[str, int, str]:
        """ "cpu:2" before "cpu:10"."""
        kind, _, index = self.id.partition(":")
        return (kind, int(index), "") if index.isdigit() else (kind, -1, index)


@dataclass(frozen=True)
class DeviceHealth:
    """What a node reports of one device. None: the device does not tell."""

    id: str
    uuid: str = ""
    present: bool = True
    """False: its driver says that it is gone."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    temperature_limit_c: float | None = None
    """Where it slows itself down."""
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_corrected: int | None = None
    """Memory errors since its driver was loaded."""
    ecc_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    clock_limits: tuple[str, ...] = ()
    """What keeps its clocks down now, in words."""
    xids: tuple[tuple[int, float], ...] = ()
    """Newest driver errors: Xid code and UNIX time, oldest first."""
    silent_s: float = 0.0
    """How long its driver has not answered; the figures are as old."""
    trouble: str = ""
    """Why there are no figures, in one sentence."""
    hot_since: float | None = None
    """Since when it is at its limit of temperature; see `health.observed`."""


@dataclass(frozen=True)
class DeviceMark:
    """Whether a device is drained, why, and which of its faults are acknowledged. It is in the
    ledger: a restart does not forget it. It belongs to the card, not to its number."""

    node: str
    device: str
    """The number that the card has now, or had last."""
    uuid: str
    """`DeviceView.key` of the card."""
    drained: bool = False
    by: str = ""
    """Who drained or returned it; "": the scheduler, for what the device reported."""
    reason: str = ""
    at: float = 0.0
    faults: tuple[str, ...] = ()
    """Keys of the faults it is drained for, or has since somebody drained it."""
    ignored: tuple[str, ...] = ()
    """Keys of faults that an administrator has acknowledged."""
    lasting: bool = False
    """Only an administrator returns it."""

    @property
    def by_itself(self) -> bool:
        """Drained by the scheduler."""
        return self.drained and not self.by

    @property
    def broken(self) -> bool:
        """Drained, by whomever, and it has a fault other than heat: its driver may never answer."""
        return self.drained and any(key != "hot" for key in self.faults)


@dataclass(frozen=True)
class AgentFacts:
    """What a node agent says about one session when it (re)connects."""

    id: str
    alive: bool
    epoch: int
    devices: tuple[str, ...]
    saved: bool
    waiting: bool
    busy: bool | None
    exit_code: int | None = None
    reason: str = ""
    user: str = ""
    kind: str = ""
    tier: str = ""
    virtual_devices: int = 0
    name: str = ""
    suspended: bool = False
    """The node has nothing of it but its kernel connection."""
    incarnation: int = 1


@dataclass(frozen=True)
class Change:
    """One line of a session's history."""

    session: str
    at: float
    process_state: ProcessState
    device_state: DeviceState
    word: str
    reason: str
    rule: str
