"""What a cluster's allocation is told."""

from __future__ import annotations

from dataclasses import dataclass

from .claims import Claim

Id = str | int


@dataclass(slots=True)
class NodeUp:
    """A node is there, new or again, with nothing on it. `islands`: masks of devices with a fast
    link among them."""

    node: str
    devices: int
    rack: str = ""
    islands: tuple[int, ...] = ()
    pool: str = ""


@dataclass(slots=True)
class NodeLost:
    """It is gone with all that was on it; its leases are over."""

    node: str


@dataclass(slots=True)
class Cordon:
    """Nothing new is placed on the node."""

    node: str


@dataclass(slots=True)
class Uncordon:
    node: str


@dataclass(slots=True)
class Drain:
    """All that is on the node goes elsewhere; what finds no place is preempted."""

    node: str
    why: str = "maintenance"


@dataclass(slots=True)
class Submit:
    """A new claim that wants its devices now."""

    claim: Claim


@dataclass(slots=True)
class Want:
    """A session that is away calls a device."""

    id: Id


@dataclass(slots=True)
class Idle:
    """Its device calls have stopped."""

    id: Id


@dataclass(slots=True)
class Busy:
    id: Id


@dataclass(slots=True)
class Release:
    """It gives its devices back, or wants none any more."""

    id: Id


@dataclass(slots=True)
class Left:
    """Its devices are free: it was parked or suspended."""

    id: Id
    epoch: int


@dataclass(slots=True)
class LeaveFailed:
    """It could not be parked and keeps its devices."""

    id: Id
    epoch: int


@dataclass(slots=True)
class Changed:
    """Its resize or move is done: what it had besides is free."""

    id: Id
    epoch: int


@dataclass(slots=True)
class ChangeFailed:
    """It goes on with what it had before."""

    id: Id
    epoch: int


@dataclass(slots=True)
class Finish:
    """It has ended, wherever it was."""

    id: Id


@dataclass(slots=True)
class Depart:
    """It waits in another cluster from now on, which is told by `Submit` with the same claim."""

    id: Id


@dataclass(slots=True)
class Quota:
    """A virtual cluster's quota; `devices` None: it has none any more."""

    virtual_cluster: str
    devices: int | None
    may_borrow: bool = True


@dataclass(slots=True)
class Tick:
    """Time has come (`Allocation.due`)."""


Event = (
    NodeUp
    | NodeLost
    | Cordon
    | Uncordon
    | Drain
    | Submit
    | Want
    | Idle
    | Busy
    | Release
    | Left
    | LeaveFailed
    | Changed
    | ChangeFailed
    | Finish
    | Depart
    | Quota
    | Tick
)
