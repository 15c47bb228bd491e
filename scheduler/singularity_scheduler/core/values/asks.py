"""Events: what people ask of sessions and devices; administrators' are in `administration`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from singularity_scheduler.core.reasons.reason import Reason

from .model import SessionView
from .requested import Priority, SessionSpec, Tier
from .subjects import Asked, OfDevice


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
class GangCreated:
    """A validated request for a run on several nodes: its parts by their new ids and numbers; all
    of them or none."""

    gang: str
    user: str
    parts: tuple[tuple[str, SessionSpec], ...]
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
    """`level`: "device" or "process"; None: the best that its node can do. `due`: why it is made
    by itself; None: a person asks."""

    name: str | None = None
    level: str | None = None
    due: Reason | None = None


@dataclass(frozen=True)
class SuspendAsked(Asked):
    """Everything of it is to go to the store. `why`: what follows the name of who asked."""

    name: str = ""
    why: str = ""
    urgent: bool = False
    """Its server or platform stops: what is not stored is lost."""


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
class ReopenAsked:
    """The end of a session is to be taken back: it waits in the store again, as of its newest
    checkpoint. `ended`: the session as it is known since."""

    ended: SessionView
    by: str


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


Ask = (
    SessionCreated
    | GroupCreated
    | GangCreated
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
    | ReopenAsked
    | DropAsked
    | SignalAsked
    | EndAsked
    | DrainAsked
    | ReturnAsked
)

ASKED: dict[str, Callable[..., Ask]] = {
    "park": ParkAsked,
    "preempt": PreemptAsked,
    "keep": KeepAsked,
    "tier": TierAsked,
    "priority": TierAsked,
    "suspend": SuspendAsked,
    "resume": ResumeAsked,
    "migrate": MigrateAsked,
    "resize": ResizeAsked,
    "checkpoint": CheckpointAsked,
    "restore": RestoreAsked,
}
"""Verb -> its event, which has the arguments of the verb by their names."""
