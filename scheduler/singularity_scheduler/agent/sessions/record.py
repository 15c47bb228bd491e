"""One session as the node agent knows it: a small state machine without I/O.

The scheduler service owns the session's public states; the agent only distinguishes what it must
carry out. `SessionRecord` is the document in the ledger; `Phase` says where its devices stand.
"""

from __future__ import annotations

import enum
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import Conflict, StaleEpoch, Unsupported


class Phase(enum.Enum):
    """Device side of a session, as far as the agent carries it out."""

    NONE = "none"
    ATTACHING = "attaching"
    HELD = "held"
    PARKING = "parking"
    PARKED = "parked"
    RESIZING = "resizing"
    """Some of its virtual devices change the physical one behind them; the others are served."""


class Life(enum.Enum):
    """Process side: `ending` from the first step of the clean-up on, `ended` is a tombstone that
    the service has not asked for yet."""

    STARTING = "starting"
    LIVE = "live"
    ENDING = "ending"
    ENDED = "ended"


PHASE_MOVES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.NONE, Phase.ATTACHING),
        (Phase.PARKED, Phase.ATTACHING),
        (Phase.ATTACHING, Phase.HELD),
        (Phase.ATTACHING, Phase.NONE),  # nothing had run on a device yet
        (Phase.ATTACHING, Phase.PARKED),
        (Phase.HELD, Phase.PARKING),
        (Phase.PARKING, Phase.PARKED),
        (Phase.PARKING, Phase.HELD),  # the state could not be written: the device stays
        (Phase.HELD, Phase.RESIZING),
        (Phase.RESIZING, Phase.HELD),
        (Phase.RESIZING, Phase.PARKING),  # what was begun can neither be finished nor undone
    }
)


@dataclass(frozen=True)
class OffDevice:
    """A device proxy that the driver takes, or has taken, off its device; its process stays."""

    virtual_devices: list[int]
    """Whose rings it serves."""
    device_bytes: int = 0
    """What is in its host memory instead of the device's; 0: the park has just begun."""
    seconds: float = 0.0
    """How long the park took; 0: it is under way, or the agent that began it was killed."""


@dataclass
class ProxyRecord:
    """A device proxy of this session: process, control socket, physical device."""

    name: str
    socket: str
    device: str
    process: ProcessIdentity
    off: OffDevice | None = None
    """Set before a park by the driver begins, so that a restarted agent knows of it; it is only
    begun when snapshot and journal can rebuild everything."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "process": self.process.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ProxyRecord:
        process = ProcessIdentity.from_json(data["process"])
        assert process is not None
        off = data.get("off")
        record = cls(data["name"], data["socket"], data["device"], process)
        record.off = OffDevice(**off) if off else None
        return record


@dataclass
class RingRecord:
    """A ring of this session and the worker process it belongs to."""

    ring_id: str
    path: str
    virtual_device: int
    worker: ProcessIdentity
    last_death: int = 0
    """The record of this ring at which a proxy ended last; 0: none."""
    deaths: int = 0
    """How many ended at that record."""

    @property
    def prefix(self) -> str:
        """State files of the ring: `<prefix>.snap` and `<prefix>.journal`."""
        return self.path.removesuffix(".ring")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "worker": self.worker.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RingRecord:
        worker = ProcessIdentity.from_json(data["worker"])
        assert worker is not None
        return cls(
            data["ring_id"],
            data["path"],
            data["virtual_device"],
            worker,
            max(0, data["last_death"]),
            data.get("deaths", 0),
        )


@dataclass
class GangPart:
    """Which part of which gang a session is, and the bridge to the others; see `bridges`."""

    gang: str
    number: int
    """0 to `parts` - 1: what torch calls the rank of the node."""
    parts: int
    key: str = field(repr=False)
    """What lets bridges of the gang in at each other, in hexadecimal digits."""
    process: ProcessIdentity | None = None
    port: int = 0
    """Where the bridge listens for the other parts; 0: it was not started yet."""
    master_port: int = 0
    """Where ranks of this part find the rendezvous."""
    address: str = ""
    """HOST:PORT of the bridge, as other nodes reach it."""
    begun: bool = False
    """Its processes have run here: when they end, the part is over."""
    peers: dict[str, str] = field(default_factory=dict)
    """Addresses of the other parts' bridges, by number, as far as they are known."""

    @property
    def why_it_stays(self) -> str:
        return (
            f"it is part {self.number} of a gang on {self.parts} nodes, which is stored only as a "
            "whole: suspend the run, park it, or let it end"
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "process": self.process and self.process.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GangPart:
        return cls(**{**data, "process": ProcessIdentity.from_json(data["process"])})


@dataclass
class SessionRecord:
    """Everything about a session that must survive the agent."""

    session: str
    user: str
    kind: str
    tier: str
    name: str
    mode: str
    virtual_devices: int
    uid: int
    gid: int
    life: Life = Life.STARTING
    phase: Phase = Phase.NONE
    epoch: int = 0
    devices: list[str] = field(default_factory=list)
    """Physical device of each virtual device, while attaching, held, resizing or parking: of a
    resize, those from before."""
    resizing: list[str] | None = None
    """Those that a resize under way leads to."""
    sets: list[list[int]] = field(default_factory=list)
    """Virtual devices that may share a physical one, as its process groups were last; []: all."""
    process: ProcessIdentity | None = None
    relay: ProcessIdentity | None = None
    owner: ProcessIdentity | None = None
    exit_code: int | None = None
    reason: str = ""
    busy: bool | None = None
    recorded: dict[str, Any] = field(default_factory=dict)
    """What its processes recorded here, name -> last value."""
    proxies: dict[str, ProxyRecord] = field(default_factory=dict)
    rings: dict[str, RingRecord] = field(default_factory=dict)
    rings_made: int = 0
    """How many rings the session ever had; names of rings are never used twice."""
    last_checkpoint: dict[str, Any] | None = None
    log_cut: int = 0
    """Bytes that were cut off the beginning of its log."""
    incarnation: int = 1
    """Counts how often the session went back to an older checkpoint."""
    connected: bool = False
    """Whether Jupyter is connected to it, through a relay."""
    tunnel: str = ""
    """HOST:PORT of that relay, as the session's processes see it."""
    part: GangPart | None = None
    """None: it is no part of a gang."""
    cwd: str = "/"
    kept: list[str] | None = field(default_factory=list)
    """Folders that its capsule shares with the machine at their path; None: /tmp as a whole."""
    places: dict[str, str] = field(default_factory=dict)
    """Paths inside of the folders "folder" and "shm", where they are not those outside: those of
    the node on which it was started."""
    saving: dict[str, Any] | None = None
    """The checkpoint that is being taken. An agent that finds it thaws the session; or, when it was
    a suspend that is published, finishes that."""
    elsewhere: bool = False
    """It goes on from the store, here or on another node: what is here of it ends, but for the
    relay, and is not told as the session's end."""

    restartable: bool = False
    """There is, or may be, a checkpoint from which it could be started elsewhere."""
    frozen: dict[str, Any] | None = None
    """Why its processes do not run: "reason" for people; "stopped": what the user had stopped when
    the agent stopped the others, None when pid 1 of the capsule did. See `node_lease`."""

    def move(self, phase: Phase) -> None:
        """Go to `phase`; a move that is not in the table is a fault of the caller."""
        if (self.phase, phase) not in PHASE_MOVES:
            raise Conflict(
                f"session {self.session} cannot go from '{self.phase.value}' to '{phase.value}'",
                session=self.session,
            )
        self.phase = phase
        if phase in (Phase.NONE, Phase.PARKED):
            self.devices = []

    def check_epoch(self, epoch: int) -> None:
        """Refuse a command of an older lease; called before anything is changed."""
        if epoch < self.epoch:
            raise StaleEpoch(
                f"session {self.session} already obeys lease {self.epoch}; "
                f"a command of lease {epoch} was refused and changed nothing",
                session=self.session,
                epoch=epoch,
                newest=self.epoch,
            )

    def check_live(self) -> None:
        """Refuse a command to a session that is ending or has ended."""
        if self.life in (Life.ENDING, Life.ENDED):
            raise Conflict(
                f"session {self.session} has ended ({self.reason or 'its process exited'})",
                session=self.session,
            )

    def check_storable(self) -> None:
        """Refuse to store or move a part of a gang: the others would wait for what is in no
        image."""
        if self.part is not None:
            raise Unsupported(
                f"session {self.session} goes on as it is: {self.part.why_it_stays}",
                session=self.session,
            )

    @property
    def alive(self) -> bool:
        return self.life in (Life.STARTING, Life.LIVE)

    @property
    def published(self) -> bool:
        """It is suspended: what is here of it only has to be removed."""
        return "published" in (self.saving or {})

    @property
    def saved(self) -> bool:
        """Device state exists somewhere: in a proxy, a snapshot or a journal."""
        return self.alive and self.phase is not Phase.NONE

    def inside(self, path: str) -> str:
        """The path that the session's processes know a file of its ring folder by."""
        place = self.places.get("shm")
        return path if place is None else os.path.join(place, os.path.basename(path))

    def device_of(self, virtual_device: int) -> str:
        """The physical device behind `virtual_device` (in every phase with devices)."""
        return self.devices[virtual_device]

    def rings_of(self, device: str) -> list[RingRecord]:
        """The rings that the proxy of physical `device` serves, oldest first."""
        return [r for r in self.rings.values() if self.device_of(r.virtual_device) == device]

    def to_json(self) -> dict[str, Any]:
        """The ledger's document."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["life"], data["phase"] = self.life.value, self.phase.value
        for name in ("process", "relay", "owner"):
            data[name] = data[name] and data[name].to_json()
        data["proxies"] = {k: v.to_json() for k, v in self.proxies.items()}
        data["rings"] = {k: v.to_json() for k, v in self.rings.items()}
        data["part"] = self.part and self.part.to_json()
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SessionRecord:
        data = dict(data)
        data["life"], data["phase"] = Life(data["life"]), Phase(data["phase"])
        for name in ("process", "relay", "owner"):
            data[name] = ProcessIdentity.from_json(data[name])
        data["proxies"] = {k: ProxyRecord.from_json(v) for k, v in data["proxies"].items()}
        data["rings"] = {k: RingRecord.from_json(v) for k, v in data["rings"].items()}
        data["part"] = GangPart.from_json(data["part"]) if data.get("part") else None
        return cls(**data)

    def report(self, waiting: bool) -> dict[str, Any]:
        """The session in `hello` (`service.ports.AgentSession`)."""
        held = self.phase not in (Phase.NONE, Phase.PARKED)
        return {
            "session": self.session,
            "user": self.user,
            "kind": self.kind,
            "tier": self.tier,
            "name": self.name,
            "virtual_devices": self.virtual_devices,
            "alive": self.alive,
            "pid": self.process.pid if self.process else None,
            "exit_code": self.exit_code,
            "epoch": self.epoch,
            "devices": list(self.devices) if held and self.alive else [],
            "saved": self.saved,
            "waiting": waiting and self.alive,
            "busy": self.busy,
            "recorded": self.recorded,
            "reason": self.reason,
            "incarnation": self.incarnation,
            **({"bridge": self.part.address} if self.part else {}),
        }
