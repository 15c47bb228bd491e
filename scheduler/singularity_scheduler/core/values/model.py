"""The values the policy works on: plain frozen data. No I/O, no SQL, no clock.

Times are UNIX seconds as the caller gives them; the policy only compares and copies them. Orders
(who queued first, who attached last) are counters, so a stepping clock changes no decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from singularity_proxy.capsule.images.machine import Machine

from singularity_scheduler.core.reasons.reason import NONE, Reason
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.model.session import KeptFacts, Wishes

from .requested import BEHIND, BatchRun, Kind, Member, Part, ScalePolicy, Tier
from .states import FINAL, LEASED, DeviceState, ProcessState, word

_V = TypeVar("_V")

PARK_RETRY_S = 10.0
"""Seconds before a session that could not be parked (disk full) is asked for its devices again."""


def changed(view: _V, **fields: Any) -> _V:
    """`dataclasses.replace` for the values of this module, which only hold their fields, in a tenth
    of the time: each decision makes several new views of each session that it changes. Raises
    `TypeError` for a field that there is not."""
    values = vars(view)
    if unknown := fields.keys() - values.keys():
        raise TypeError(f"{type(view).__name__} has no field {', '.join(sorted(unknown))}")
    copy = object.__new__(type(view))
    vars(copy).update(values, **fields)
    return copy


@dataclass(frozen=True)
class Abilities:
    """What a node's agent says of itself, and that it can do with whole sessions."""

    image_trouble: str = ""
    """Why it cannot put processes into the store and bring them back; "": it can."""
    store: str = ""
    """Where its checkpoints go; two nodes with the same store can exchange sessions."""
    store_trouble: str = ""
    """Why its store cannot be used now; "": it can."""
    stores: bool = True
    """Whether it knows the commands about stored checkpoints at all."""
    machine: Machine | None = None
    """What process images that are taken there depend on."""
    instance: str = ""
    """Another one whenever the agent was started anew."""
    version: str = ""
    """Of the agent's software."""
    spot: bool = False
    """Its machine may be taken back with a notice."""
    cluster: str = ""
    """The cluster that it belongs to; "": the embedded one, or it never told."""
    store_id: str = ""
    """Of the store that is there; "": it does not say. The same place with another id is another
    store: a folder that is not mounted on one of the nodes."""
    far: bool = False
    """It is on another machine than the service and the Jupyter servers."""

    @property
    def trouble(self) -> str:
        """Why no whole session can leave it or come to it; "": it can."""
        return self.image_trouble or self.store_trouble

    def has_other_store(self, than: Abilities) -> bool:
        """Whether what `than` stores is not to be found here, as far as both say."""
        places = self.store and than.store and self.store != than.store
        ids = self.store_id and than.store_id and self.store_id != than.store_id
        return bool(places or ids)


@dataclass(frozen=True)
class Share:
    """What a session got of the service that its tier promises, in windows of time; see `shares`.
    Accounted up to `at`, and further when somebody looks."""

    at: float = 0.0
    attained_device_s: float = 0.0
    """Device-seconds it was served in all."""
    window: int = -1
    """Number of the window in progress: UNIX time by the length of windows."""
    wanted_s: float = 0.0
    """In the window in progress: how long it had work for devices."""
    got_s: float = 0.0
    """In the window in progress: how long it was served of that."""
    windows: int = 0
    """Completed ones in which it wanted service, since it has its tier."""
    kept: int = 0
    """Those in which it got at least what its tier promises."""


@dataclass(frozen=True)
class SessionView(Wishes, KeptFacts):
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
    why: Reason = NONE
    """Why it is in its state."""
    devices: tuple[str, ...] = ()
    """The physical device behind each virtual one, under its lease; () when it has none."""
    resizing: tuple[str, ...] = ()
    """Those that a resize under way leads to: until it is done both belong to it; () else."""
    scale: ScalePolicy | None = None
    """On how many physical devices it may run; None: on as many as it has virtual ones."""
    wish: int = 0
    """The most physical devices that somebody wants it to have; 0: nobody said."""
    scaled_at: float | None = None
    """When their number was changed last."""
    seq: int = 0
    """Number of its last command to the agent; with `epoch` it makes commands idempotent."""
    busy: bool | None = None
    """Last report of its kernel; None: it never reported and counts as busy."""
    idle_since: float | None = None
    held_since: float | None = None
    """When it got the devices that it holds."""
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
    ended: bool = False
    """Final, and its agent has confirmed that nothing of it is left."""
    server: str | None = None
    """Name of the user's notebook server it was started from ("" is the default one)."""
    grace_s: float = 5.0
    """Seconds its process gets after SIGTERM when it is ended."""
    checkpoints: tuple[CheckpointRef, ...] = ()
    """Oldest first; those in the store that somebody may still come back to."""
    loss: LossReport | None = None
    """Of its last return from the store."""
    origin: str = ""
    """The node where its kernel connection (relay) stays while it moves; "": none yet."""
    target: str = ""
    """The only node it may come back to; "": any."""
    target_cluster: str = ""
    """The only cluster it may come back to; "": any."""
    cluster: str = ""
    """The cluster that its node belongs to, as far as that is known; kept by `Draft.put`."""
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
    """Its node went away with it; until it is started elsewhere, or for ever when it cannot be,
    that node may still bring it."""
    leaving: str | None = None
    """Name of the checkpoint with which it is suspended as soon as its devices stand still
    ("" for one without a name); None: it stays."""
    run: BatchRun | None = None
    """What it runs; None for kernels and for commands that joined."""
    retrying: bool = False
    """Its attempt before was killed, and the next one has not begun to run."""
    started_at: float | None = None
    """When its process ran for the first time; its time limit counts from there."""
    member: Member | None = None
    """Its part in a group; None: it was submitted alone."""
    part: Part | None = None
    """Its part in a gang; None: it runs on its own."""
    recorded: str = "{}"
    """JSON object: what it recorded, name -> last value; see `recorded`."""
    held_by: str | None = None
    """Who preempted it: it gets no devices, and a queued run does not start, until it is
    resumed."""
    keep_until: float | None = None
    """Until when somebody keeps it alive; None: nobody. See `keeping`."""
    keep_from: float | None = None
    """Since when it has been kept, with what was asked for again in between; it stays when that is
    over."""
    home: tuple[str, ...] = field(default=(), compare=False)
    """Devices it comes back to faster than to others, since its last park; not stored."""
    unused_since: float | None = field(default=None, compare=False)
    """Since when no call has reached its devices, as its node tells; 0.0: calls come; None: nobody
    told; not stored."""
    woken_at: float | None = field(default=None, compare=False)
    """When its kernel began to work again after a rest of `idle_grace_s`; not stored."""
    leave_failed: tuple[float, str] | None = field(default=None, compare=False)
    """When and why it could not be put into the store last; not stored."""
    exit: tuple[int | None, str] | None = field(default=None, compare=False)
    """How its process ended while it was leaving or coming: counts if that fails; not stored."""
    share: Share = Share()
    park_s: float = field(default=0.0, compare=False)
    """How long its last park took; 0.0: not known; not stored."""
    attach_s: float = field(default=0.0, compare=False)
    """How long its last attach took; as `park_s`."""
    suspend_s: float = field(default=0.0, compare=False)
    """How long its last way into the store took; as `park_s`."""
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
    def quiet_since(self) -> float | None:
        """Since when its devices do nothing; None: they work. By the calls that reach them; of a
        node that does not tell: since its kernel has nothing to do."""
        if self.unused_since == 0.0:
            return None
        since = self.unused_since
        if since is None:
            since = self.idle_since if self.idle else None
        return None if since is None else max(since, self.held_since or 0.0)

    @property
    def rests_until(self) -> float:
        """Until when it is left alone because it could not be parked; 0.0: it could."""
        return 0.0 if self.park_failed_at is None else self.park_failed_at + PARK_RETRY_S

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
    def bound_for(self) -> str | None:
        """The node that it is on its way to; "": whichever has room when it is in the store; None:
        it is not on its way to any."""
        if self.process_state is ProcessState.RESUMING:
            return self.node
        if self.process_state is ProcessState.SUSPENDING and self.called:
            return self.target
        return None

    @property
    def held_back(self) -> bool:
        return self.held_by is not None

    @property
    def queue_key(self) -> tuple[bool, int, int, int, str]:
        """Sorts the waiting: those held back last, then by tier, priority, first come. Members of
        a group that have no place yet stand behind those of their tier and priority."""
        order = self.queue_order
        if self.member is not None and self.behind:
            order = BEHIND + self.member.number
        return (self.held_back, -self.tier.rank, -self.priority.rank, order, self.id)

    @property
    def behind(self) -> bool:
        """Not started, and it stands for its group's turn and has no place of its own."""
        return self.member is not None and self.pending and not self.queue_order

    @property
    def holding(self) -> int:
        """Devices that count for the quota of its virtual cluster."""
        stays = not self.final and self.process_state is not ProcessState.SUSPENDING
        has = self.leased and self.device_state is not DeviceState.PARKING
        return len(self.leases) if has and stays else 0

    @property
    def physical(self) -> tuple[str, ...]:
        """The physical devices that serve it, each once."""
        devices = self.devices
        return devices if len(devices) < 2 else tuple(dict.fromkeys(devices))

    @property
    def leases(self) -> tuple[str, ...]:
        """The physical devices that nobody else may have: `physical`, and those that it gets."""
        return (
            tuple(dict.fromkeys((*self.devices, *self.resizing)))
            if self.resizing
            else (self.physical)
        )

    @property
    def most(self) -> int:
        """The most physical devices that it gets."""
        most = self.virtual_devices if self.scale is None else self.scale.most
        return min(self.wish, most) if self.wish else most

    @property
    def needs(self) -> int:
        """The least number of physical devices that it can run on."""
        most = self.most
        return most if self.scale is None else min(self.scale.least, most)

    @property
    def smaller(self) -> bool:
        """Whether it holds fewer physical devices than it may have."""
        if self.virtual_devices < 2 or self.device_state is not DeviceState.HELD:
            return False
        return len(self.physical) < self.most

    @property
    def pending(self) -> bool:
        """A run that has not been started yet."""
        return self.process_state is ProcessState.QUEUED

    @property
    def wanted_milli(self) -> int:
        """Thousandths of devices that it needs at least."""
        return self.needs * self.share_milli

    @property
    def admitted_milli(self) -> int:
        """Thousandths of devices that a started run counts for when the next one asks to be
        started."""
        away = self.pending or self.final or self.process_state is ProcessState.SUSPENDED
        counts = self.run is not None and not (away or self.held_back)
        return self.wanted_milli if counts else 0


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
    quiet_since: float | None = None
    """As `SessionView.unused_since`."""
    recorded: str = "{}"
    """As `SessionView.recorded`."""


@dataclass(frozen=True)
class Change:
    """One line of a session's history."""

    session: str
    at: float
    process_state: ProcessState
    device_state: DeviceState
    word: str
    why: Reason
    rule: str
    devices: int | None = None
    """How many physical devices it had, where that is not the number of its virtual ones."""
    text: str = ""
    """What people were told at that time, where that is more than the sentence of `why`: see
    `text.reasons.render_change`."""
