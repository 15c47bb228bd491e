"""What a replay is judged by: kept while it goes, in arrays, so that millions of jobs fit."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation.claims import Claim

from .traces.records import Job


@dataclass
class Record:
    """Times are seconds of the replay. Rows of `job_*` belong together, in order of completion."""

    sample_s: float = 0.0
    """Seconds between two points of the series; 0: no series."""
    submissions: int = 0
    refusals: int = 0
    finished: int = 0
    job_id: array[int] = field(default_factory=lambda: array("q"))
    job_tier: array[int] = field(default_factory=lambda: array("b"))
    job_devices: array[int] = field(default_factory=lambda: array("i"))
    job_submit_s: array[float] = field(default_factory=lambda: array("d"))
    job_end_s: array[float] = field(default_factory=lambda: array("d"))
    job_work_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds that it works on dedicated devices."""
    job_attained_device_s: array[float] = field(default_factory=lambda: array("d"))
    """Device-seconds that it held devices for."""
    job_wait_s: array[float] = field(default_factory=lambda: array("d"))
    """From submission to the start of batch jobs."""
    job_batch: array[int] = field(default_factory=lambda: array("b"))
    first_wait_s: array[float] = field(default_factory=lambda: array("d"))
    """Of first cells of notebooks: until they ran."""
    cell_wait_s: array[float] = field(default_factory=lambda: array("d"))
    """Of later cells that had to wait for their devices to come back: until they ran."""
    cells: int = 0
    cells_at_once: int = 0
    """Later cells whose session had its devices."""
    worked_device_s: float = 0.0
    """Work that was done, also that which was lost and done again."""
    redone_device_s: float = 0.0
    """Work that was lost and has to be done again."""
    held_device_s: float = 0.0
    capacity_device_s: float = 0.0
    rules: Counter[str] = field(default_factory=Counter)
    """rule -> how often it fired; of grants, preemptions, resizes and moves."""
    preemptions: int = 0
    migrations: int = 0
    relocations: int = 0
    """Sessions that waited and went to another cluster."""
    resizes: int = 0
    losses: int = 0
    series_s: array[float] = field(default_factory=lambda: array("d"))
    series_held: array[int] = field(default_factory=lambda: array("i"))
    series_capacity: array[int] = field(default_factory=lambda: array("i"))
    series_busy: array[int] = field(default_factory=lambda: array("i"))
    """Devices that work is done on."""
    series_unusable: array[float] = field(default_factory=lambda: array("d"))
    """Free devices that jobs like those so far could not use, on average; see `fragmentation`."""
    fragments: Callable[[], Iterable[tuple[int, int, int]]] | None = None
    """Asked for (devices of the largest node, free devices of a node, how many such nodes) at every
    point of the series."""
    demands: Counter[int] = field(default_factory=Counter)
    """Devices asked for -> jobs so far."""
    _held: int = 0
    _busy: int = 0
    _capacity: int = 0
    _held_at: float = 0.0
    _next_sample: float = 0.0

    # -- devices ----------------------------------------------------------------------------

    def capacity(self, now: float, change: int) -> None:
        """Devices were added, or lost (< 0)."""
        self._integrate(now)
        self._capacity += change

    def holds(self, now: float, change: int) -> None:
        """More devices are held by somebody, or fewer (< 0)."""
        self._integrate(now)
        self._held += change

    def _integrate(self, now: float) -> None:
        if self.sample_s:
            while self._next_sample <= now:
                self.series_s.append(self._next_sample)
                self.series_held.append(self._held)
                self.series_capacity.append(self._capacity)
                self.series_busy.append(self._busy)
                self.series_unusable.append(self._unusable())
                self._next_sample += self.sample_s
        self.held_device_s += self._held * (now - self._held_at)
        self.capacity_device_s += self._capacity * (now - self._held_at)
        self._held_at = now

    def works(self, now: float, change: int) -> None:
        """Work goes on on more devices, or on fewer (< 0)."""
        self._integrate(now)
        self._busy += change

    def _unusable(self) -> float:
        """Free devices in nodes that have fewer of them than a job asks for, on average over the
        jobs so far (the fragmentation of Weng et al., ATC 2023, section 3). One that asks for more
        than a node has can use any."""
        if self.fragments is None or not self.demands:
            return 0.0
        unusable = 0
        for largest, free, nodes in self.fragments():
            tried = (n for demand, n in self.demands.items() if free < demand <= largest)
            unusable += free * nodes * sum(tried)
        return unusable / self.demands.total()

    def until(self, now: float) -> None:
        """Nothing happens before `now`; called before what happens then is decided."""
        if self._next_sample <= now and self.sample_s:
            self._integrate(now)

    def end(self, now: float) -> None:
        """The replay is over."""
        self._integrate(now)

    # -- jobs -------------------------------------------------------------------------------

    def submitted(self, job: Job, now: float) -> None:
        self.submissions += 1
        self.demands[job.devices] += 1

    def refused(self, job: Job) -> None:
        """No cluster could ever run it."""
        self.refusals += 1

    def started(self, job: Job, now: float) -> None:
        """A batch job works for the first time."""
        self.job_wait_s.append(now - job.submit_s)

    def cell_started(self, cell: int, wait_s: float) -> None:
        """A notebook's cell of this number runs, `wait_s` after it was asked for."""
        self.cells += 1
        if cell == 0:
            self.first_wait_s.append(wait_s)
        elif wait_s > 0:
            self.cell_wait_s.append(wait_s)
        else:
            self.cells_at_once += 1

    def done(self, job: Job, claim: Claim, now: float) -> None:
        self.finished += 1
        self.job_id.append(job.id)
        self.job_tier.append(claim.tier)
        self.job_devices.append(job.devices)
        self.job_submit_s.append(job.submit_s)
        self.job_end_s.append(now)
        self.job_work_s.append(job.work_s)
        self.job_attained_device_s.append(claim.attained)
        self.job_batch.append(not job.cells)

    # -- decisions --------------------------------------------------------------------------

    def granted(self, action: do.Grant) -> None:
        self.rules[action.rule] += 1

    def preempted(self, action: do.Preempt) -> None:
        self.preemptions += 1
        self.rules[action.rule] += 1

    def resized(self, action: do.Resize) -> None:
        self.resizes += 1
        self.rules[action.rule] += 1

    def migrated(self, action: do.Migrate) -> None:
        self.migrations += 1
        self.rules[action.rule] += 1

    def lost(self, action: do.Lost) -> None:
        self.losses += 1
        self.rules[action.rule] += 1
