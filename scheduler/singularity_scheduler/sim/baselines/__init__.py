"""Schedulers to compare with: `BASELINES`, by name.

All have the devices, the placement, the events, the actions and the costs of our own policy, so
that nothing but their decisions tells them apart (see `base`). Tiers mean nothing to them, but to
those that kill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import Baseline
from .fifo import Fifo, Reserve
from .kill import Kill
from .maxmin import MaxMin
from .shortest import Sjf, Srtf, SrtfEstimated
from .tiresias import Tiresias


@dataclass(frozen=True)
class Known:
    """A baseline: how to make one, and what it is, for people."""

    make: Callable[[], Baseline]
    what: str


BASELINES: dict[str, Known] = {
    "fifo": Known(Fifo, "first come, first served"),
    "sjf": Known(Sjf, "shortest job first, told the lengths, without preemption"),
    "srtf-oracle": Known(Srtf, "shortest remaining time first, told the lengths"),
    "srtf": Known(SrtfEstimated, "shortest remaining time first, lengths guessed from history"),
    "tiresias": Known(Tiresias, "discretised least attained service (NSDI 2019)"),
    "maxmin": Known(MaxMin, "max-min fairness in rounds of 360 s (Gavel, OSDI 2020)"),
    "reserve": Known(Reserve, "notebooks hold devices until they are closed; batch jobs in order"),
    "kill": Known(Kill, "preemption by tier that loses all work of the one preempted"),
    "kill-hourly": Known(
        lambda: Kill(checkpoint_s=3600.0), "the same with a user checkpoint every hour of work"
    ),
}
"""name -> baseline."""

__all__ = ["BASELINES", "Baseline", "Known"]
