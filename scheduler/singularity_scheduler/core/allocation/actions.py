"""What is to be done. Every action names the rule that fired, and whom it is for."""

from __future__ import annotations

from dataclasses import dataclass

from .claims import Claim
from .pool import Placement

RULES: dict[str, str] = {
    "place.free": "free devices fit it",
    "place.smaller": "all that fits now; it gets more when there is more",
    "place.cleared": "its devices were freed for it",
    "preempt.idle": "idle, and {cause} needs the devices",
    "preempt.tier": "{cause} goes first by tier",
    "preempt.headroom": "a premium session took devices that are kept free for its tier",
    "preempt.borrowed": "its virtual cluster borrowed devices that {cause} needs",
    "preempt.slice": "its turn on the device that it shares is over, and {cause} is next",
    "preempt.service": "it has been served more than {cause}, whose turn it is",
    "preempt.starves": "{cause} has waited for too long",
    "preempt.guarantee": "{cause} would miss its guarantee",
    "idle.reclaim": "its devices were idle for too long",
    "shrink": "{cause} needs devices, and it can go on with fewer",
    "grow": "devices are free and it can use more",
    "defragment": "it makes room for {cause}, which fits nowhere",
    "consolidate": "it fills a gap, so that a node is free as a whole",
    "node.drain": "its node is drained",
    "node.lost": "its node was lost",
}
"""rule -> what it means; `{cause}`: whom the action is for."""


@dataclass(slots=True)
class Action:
    """`cause`: for whom, where it is for somebody. `epoch`: of the claim, after the action."""

    claim: Claim
    rule: str
    epoch: int
    cause: Claim | None = None


@dataclass(slots=True)
class Grant(Action):
    """The claim has these devices now. `back`: how it comes: "start" (nothing is there yet),
    "attach" (it is parked on that node), "resume" (from elsewhere)."""

    placement: Placement | None = None
    back: str = "start"


@dataclass(slots=True)
class Preempt(Action):
    """Its devices are to be freed; `Left` says when they are."""


@dataclass(slots=True)
class Resize(Action):
    """It goes on with `placement`; `Changed` says when."""

    placement: Placement | None = None


@dataclass(slots=True)
class Migrate(Action):
    """It goes to `placement`; `Changed` says when it is there."""

    placement: Placement | None = None


@dataclass(slots=True)
class Lost(Action):
    """Its devices are gone with their node: it waits, to come back from its last checkpoint."""
