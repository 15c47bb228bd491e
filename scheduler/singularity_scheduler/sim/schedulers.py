"""What a replay needs of a scheduler: told what happened, it says what is to be done.

`Policy` is ours, the very code of `core.allocation`. Baselines (see `baselines`) have the same two
ends and the same devices, so that nothing but their decisions tells them apart.
"""

from __future__ import annotations

from typing import Protocol

from singularity_scheduler.core.allocation import engine
from singularity_scheduler.core.allocation.actions import Action
from singularity_scheduler.core.allocation.claims import Claim
from singularity_scheduler.core.allocation.events import Event
from singularity_scheduler.core.allocation.state import Allocation
from singularity_scheduler.core.values.parameters import Parameters


class Scheduler(Protocol):
    """The scheduler of one cluster."""

    reserves: bool
    """A notebook keeps its devices from its first cell until it is closed; its idle times are not
    told."""
    kills: float | None
    """Who is preempted is killed, and goes on from what it wrote itself after every so many seconds
    of work (inf: never, so from its beginning). None: nothing is lost."""
    state: Allocation
    """Its devices and accounts, for results."""

    @property
    def next_due(self) -> float:
        """When it wants a `Tick`."""

    @property
    def held(self) -> int:
        """Devices that somebody has."""

    def decide(self, event: Event, now: float) -> list[Action]:
        """What follows from `event`."""

    def prepare(self, claim: Claim, work_s: float) -> None:
        """A claim is about to be submitted. `work_s`: its length, which only an oracle may use."""


class Policy:
    """Singularity's."""

    reserves = False
    kills: float | None = None

    def __init__(self, parameters: Parameters | None = None, name: str = "") -> None:
        self.state = Allocation(parameters, name)

    @property
    def next_due(self) -> float:
        return self.state.next_due

    @property
    def held(self) -> int:
        return self.state.held

    def decide(self, event: Event, now: float) -> list[Action]:
        return engine.decide(self.state, event, now)

    def prepare(self, claim: Claim, work_s: float) -> None:
        """It knows no lengths."""
