"""What a session claims of a cluster's devices, and what it has been given."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

Kind = Literal["batch", "interactive"]

PREMIUM: Final = 2
STANDARD: Final = 1
BASIC: Final = 0
TIERS = ("basic", "standard", "premium")
"""By rank."""

PRIORITIES = ("low", "medium", "high")
"""By rank."""


class Stage(IntEnum):
    """Where a claim is."""

    AWAY = 0
    """It neither has devices nor wants any."""
    WAITING = 1
    GATHERING = 2
    """Others are leaving the devices that it will have; what is free of them is kept for it."""
    HELD = 3
    LEAVING = 4
    """It still has its devices, and is being parked or suspended."""
    RESIZING = 5
    MOVING = 6
    """It has its old devices and its new ones."""


class Claim:
    """One session's claim. `devices` is its world size; fewer are given only to elastic ones.

    Times are seconds on the clock of the caller. `costs`: seconds that its park takes, the way back
    on the node where it was, and the way back on another one, measured where they are known.
    """

    __slots__ = (
        "at_risk",
        "attained",
        "before",
        "borrowed",
        "busy",
        "cause",
        "costs",
        "count",
        "counts",
        "devices",
        "entries",
        "epoch",
        "given",
        "grows_at",
        "harm",
        "home",
        "id",
        "idle_since",
        "interval_s",
        "kind",
        "lacks",
        "leaves",
        "level",
        "mark",
        "minimum",
        "moved_at",
        "old",
        "order",
        "plan",
        "pool",
        "preempted",
        "priority",
        "rule",
        "scaled_at",
        "serves_from",
        "share_milli",
        "since",
        "sla_got",
        "sla_on",
        "sla_wanted",
        "sla_window",
        "stage",
        "started",
        "starves",
        "tier",
        "token",
        "turn",
        "virtual_cluster",
        "waiting_since",
        "wants",
        "woken_at",
    )

    def __init__(
        self,
        id: str | int,
        devices: int,
        *,
        tier: int = STANDARD,
        priority: int = 1,
        kind: Kind = "batch",
        minimum: int = 0,
        counts: tuple[int, ...] = (),
        interval_s: float = 0.0,
        virtual_cluster: str = "",
        pool: str = "",
        costs: tuple[float, float, float] = (0.0, 0.0, 0.0),
        share_milli: int = 1000,
    ) -> None:
        self.id = id
        self.devices = devices
        self.tier = tier
        self.priority = priority
        self.kind = kind
        self.minimum = minimum or devices
        self.counts = counts
        """Allowed numbers of devices, ascending; (): every one from `minimum` to `devices`."""
        self.interval_s = interval_s
        """Least time between two changes of its number of devices."""
        self.virtual_cluster = virtual_cluster
        self.pool = pool
        """Device type; "": the cluster's only or first one."""
        self.costs = costs
        self.share_milli = share_milli
        """Thousandths of the time of its device that it asks for; below 1000 it takes turns on it
        with others that share."""
        self.turn = 0
        """Place in time among those that share: smaller has waited longer for its turn."""
        self.stage = Stage.AWAY
        self.order = 0
        """Place in time among all claims; smaller came first."""
        self.epoch = 0
        """+1 with every grant, preemption, resize and move, and when it loses its devices."""
        self.given: dict[int, int] = {}
        """node -> bit mask of its devices there."""
        self.count = 0
        """Devices in `given`."""
        self.entries: tuple[tuple[int, int, int], ...] = ()
        """(node, harm class, devices) as the pool counts them; see `harm`."""
        self.harm = 0
        self.old: dict[int, int] = {}
        """What it leaves when its move or resize is done."""
        self.before: dict[int, int] = {}
        """What it had when its move or resize began."""
        self.home: tuple[int, ...] = ()
        """Nodes where it was last: coming back there is cheaper."""
        self.busy = True
        self.idle_since: float | None = None
        self.since = 0.0
        """When it got its devices last."""
        self.serves_from = 0.0
        """From when on its devices are of use to it: it has to come back first."""
        self.scaled_at = -1e18
        self.woken_at = -1e18
        """When it began to work again after a rest."""
        self.grows_at = -1e18
        """When it is seen next whether it may have more devices."""
        self.waiting_since: float | None = None
        self.attained = 0.0
        """Device-seconds it has been served."""
        self.level = 0
        """Of attained service: 0 for those that had little."""
        self.mark = 0.0
        """Until when its service is accounted."""
        self.moved_at = -1e18
        self.borrowed = False
        self.at_risk = False
        """Its guarantee is about to be missed in this window: it may take more from others."""
        self.starves = False
        """It has waited too long: it is served before others of its tier."""
        self.token = 0
        """+1 whenever its timers and its place in the queue lose their meaning."""
        self.plan: dict[int, int] = {}
        """While gathering: node -> devices it will have there."""
        self.lacks: dict[str | int, None] = {}
        """While gathering: whose devices it waits for."""
        self.leaves: Claim | None = None
        """While leaving: who gets what it had."""
        self.wants = False
        """While leaving: it wants devices again at once."""
        self.cause: str | int | None = None
        """For whom it was preempted last."""
        self.rule = ""
        self.preempted = False
        """It has no devices because they were taken from it."""
        self.started = False
        self.sla_on = False
        """It has work, so what it gets counts; see `sla`."""
        self.sla_window = -1
        self.sla_wanted = 0.0
        self.sla_got = 0.0

    @property
    def shares(self) -> bool:
        """Whether it asks for a part of a device only."""
        return self.share_milli < 1000

    @property
    def wanted_milli(self) -> int:
        """Thousandths of devices that it asks for."""
        return self.devices * self.share_milli

    @property
    def elastic(self) -> bool:
        return self.minimum < self.devices

    def largest(self, room: int) -> int:
        """The largest number of devices that it may have and that is at most `room`; 0: none."""
        if room >= self.devices:
            return self.devices
        if not self.counts:
            return room if room >= self.minimum else 0
        for count in reversed(self.counts):
            if self.minimum <= count <= room:
                return count
        return 0

    def next_larger(self) -> int:
        """The next allowed number of devices above what it has; 0: it has all."""
        if self.count >= self.devices:
            return 0
        if not self.counts:
            return self.count + 1
        return next((c for c in self.counts if c > self.count), self.devices)
