"""What is to be done: the commands for node agents that decisions consist of."""

from __future__ import annotations

from dataclasses import dataclass

from singularity_scheduler.core.reasons.reason import Reason


@dataclass(frozen=True)
class Action:
    """One command for a node's agent. `rule` names what decided it."""

    session: str
    node: str
    why: Reason
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
class Resize(Action):
    """It goes on with `devices`, one for each virtual device."""

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
    level: str | None = None
    cut: tuple[str, ...] = ()
    """Of a part of a gang: the sessions that are stored with it, as of `Suspend`."""
    set_id: str = ""
    """The set that they become; "": it is of no gang."""
    cause: str = ""
    """One of `stored.CAUSES`."""


@dataclass(frozen=True)
class PutBack(Action):
    """Device state of `checkpoint` goes back into the session, which goes on. What it has now is
    stored first, unless it is to be `discard`ed."""

    checkpoint: str = ""
    discard: bool = False


@dataclass(frozen=True)
class Suspend(Action):
    name: str = ""
    cut: tuple[str, ...] = ()
    """Of a part of a gang: the sessions that are stored with it, at a place where the ranks of all
    of them stand; (): they stand already, or this one goes on."""
    urgent: bool = False
    """What is not stored is lost: it may use the room that stores keep back."""


@dataclass(frozen=True)
class Resume(Action):
    """`checkpoint` of session `source` (its own or, for a fork, another's) under `incarnation`.
    `undo`: the requests that came since that checkpoint are not carried out again."""

    checkpoint: str = ""
    source: str = ""
    incarnation: int = 0
    undo: bool = False


@dataclass(frozen=True)
class Fence(Action):
    """End the processes of a session that goes on elsewhere or from another state; its stored
    checkpoints and its kernel connection stay."""


@dataclass(frozen=True)
class End(Action):
    grace_s: float = 5.0
