"""What the simulator replays: `Job` and `Trace`, the same for every trace format and generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singularity_proxy.errors import BadRequest


class BadTrace(BadRequest):
    """A trace that cannot be replayed; `fields` has `file`, `row` (the line, 1-based, None: the
    whole file) and `column` (None: no single one). Nothing was replayed."""

    reason = "bad_trace"

    def __init__(
        self, message: str, *, file: str, row: int | None = None, column: str | None = None
    ) -> None:
        super().__init__(message, file=file, row=row, column=column)


@dataclass(slots=True)
class Job:
    """One batch job or notebook session. Millions may exist, so it is light and not frozen; only
    who makes it changes it. Times are seconds, `submit_s` since the trace's first submission."""

    id: int
    """0, 1, 2, ... in order of submission."""
    name: str
    """Its id in the trace, for messages and results."""
    submit_s: float
    work_s: float
    """Busy seconds on `devices` dedicated devices; 0 ends as soon as it starts."""
    devices: int
    """Whole devices it asks for (>= 1); 1 for a fraction."""
    share_milli: int = 1000
    """Thousandths of each device that it needs; 1000 is the whole device."""
    min_devices: int = 0
    """Fewest devices it can run on; 0: the same as `devices` (not elastic)."""
    counts: tuple[int, ...] = ()
    """Allowed numbers of devices, ascending; () with `min_devices` set: any from there to
    `devices`."""
    scale_interval_s: float = 0.0
    """Shortest time between two changes of its number of devices."""
    tier: str = ""
    """premium, standard or basic; "": the trace does not say (see `tiers.assign_tiers`)."""
    priority: str = "medium"
    """low, medium or high."""
    virtual_cluster: str = ""
    user: str = ""
    locations: tuple[str, ...] = ()
    """Regions or clusters it may run in; (): any."""
    device_type: str = ""
    """ "" is any."""
    cells: tuple[tuple[float, float], ...] = ()
    """Notebooks: (idle seconds before the cell, busy seconds of the cell); the busy ones sum to
    `work_s`. (): a batch job."""
    linger_s: float = 0.0
    """Notebooks: idle seconds after the last cell until the user closes it."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload in order of submission. Iterate over it; it can be iterated over again."""

    name: str
    jobs: Sequence[Job] | Callable[[], Iterator[Job]]
    """All jobs, or what starts a new pass over them (a generator that holds none). A pass over a
    sequence gives the same objects each time, so a consumer does not change them."""
    devices: int | None = None
    """Size of the cluster that the trace names, in whole devices; None: it names none."""
    count: int | None = None
    """How many jobs a pass gives, if that is known before it."""
    span_s: float | None = None
    """Seconds from the first to the last submission, if that is known before a pass."""
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    """Why rows of the file are not jobs here, in words -> how many."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More that the format says, for results (format, seed, parameters)."""

    def __iter__(self) -> Iterator[Job]:
        return self.jobs() if callable(self.jobs) else iter(self.jobs)
