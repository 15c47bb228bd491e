"""Replays a trace through schedulers: a clock, a heap of what comes next, and nothing else.

Work goes on at the rate of the devices that a session has over those it claims, from the moment at
which it is back on them. What moves cost comes from `Costs`. A batch job is over when its work is
done; a notebook runs its cells one after the other, idle in between as its trace says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

from singularity_scheduler.core.allocation import actions as do
from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.allocation.claims import PRIORITIES, TIERS, Claim, Stage
from singularity_scheduler.core.allocation.state import NEVER

from .record import Record
from .schedulers import Scheduler
from .traces.records import Job

_TIER = {name: rank for rank, name in enumerate(TIERS)} | {"": 1}
_PRIORITY = {name: rank for rank, name in enumerate(PRIORITIES)}

BALANCE_S = 60.0
"""From when a session comes or goes until somebody looks who had better be in another cluster."""

Relocate = Callable[[float, Callable[[ev.Id], tuple[str, ...]]], Iterator[tuple[ev.Id, int]]]

_WORK: Final = 0
_LEFT: Final = 1
_CHANGED: Final = 2
_CELL: Final = 3
_CLOSE: Final = 4
_BALANCE: Final = 5


@dataclass(frozen=True)
class Costs:
    """Seconds that a session is away for: its park, its way back on the same node, and on another
    one. `checkpoint_s`: how often state is stored by itself; what is newer is lost with a node."""

    leave_s: float = 0.0
    back_s: float = 0.0
    elsewhere_s: float = 0.0
    checkpoint_s: float = 1800.0

    @property
    def triple(self) -> tuple[float, float, float]:
        return (self.leave_s, self.back_s, self.elsewhere_s)


class Run:
    """One job on its way through a replay."""

    __slots__ = (
        "asked_at",
        "cell",
        "claim",
        "cluster",
        "done",
        "job",
        "left",
        "on",
        "rate",
        "redo",
        "stored_left",
        "updated",
        "version",
        "waits",
    )

    def __init__(self, job: Job, claim: Claim, cluster: int) -> None:
        self.job = job
        self.claim = claim
        self.cluster = cluster
        self.cell = 0
        self.left = 0.0
        """Seconds of work that are left of the job or of its cell, on all the devices it claims."""
        self.stored_left = 0.0
        self.rate = 0.0
        self.on = 0
        """Devices that it works on."""
        self.redo = 0.0
        """Seconds of earlier cells that its next cell has to do again first."""
        self.updated = 0.0
        """Until when `left` is right."""
        self.version = 0
        """+1 when the time at which it is done changes."""
        self.asked_at = 0.0
        self.waits = False
        """A cell of a notebook waits for devices."""
        self.done = False


@dataclass
class Replay:
    """A replay in progress. `route` picks a cluster for a job (None: the only one), `relocate` says
    who waits and is better off in which other one (None: nobody moves); see `fleet.Fleet`."""

    schedulers: list[Scheduler]
    costs: Costs
    record: Record
    route: Callable[[Job, float], int] | None = None
    relocate: Relocate | None = None
    progress: Callable[[float, int], None] | None = None
    now: float = 0.0
    events: int = 0
    """Decisions that were made."""
    decision_s: list[float] | None = None
    """CPU seconds of every decision, when asked for: what else the machine does says nothing of
    them."""
    alive: int = 0
    _held: list[int] = field(default_factory=list)
    """Devices held of each cluster when it decided last."""
    _heap: list[tuple[float, int, int, Run, int]] = field(default_factory=list)
    _due: list[tuple[float, int]] = field(default_factory=list)
    _registered: list[float] = field(default_factory=list)
    _runs: dict[ev.Id, Run] = field(default_factory=dict)
    _number: int = 0
    _balances: bool = False
    """It is known when somebody looks for those who had better be in another cluster."""

    def __post_init__(self) -> None:
        self._registered = [NEVER] * len(self.schedulers)
        self._held = [0] * len(self.schedulers)
        self.record.fragments = self._fragments

    def _fragments(self) -> Iterator[tuple[int, int, int]]:
        for scheduler in self.schedulers:
            for pool in scheduler.state.pools.values():
                for free, nodes in enumerate(pool.free_buckets):
                    if nodes:
                        yield pool.largest, free, len(nodes)

    def nodes(self, cluster: int, up: Iterable[ev.NodeUp]) -> None:
        """The nodes of a cluster, before the replay or in the middle of it."""
        for event in up:
            self.record.capacity(self.now, event.devices)
            self.tell(cluster, event)

    def run(self, jobs: Iterable[Job], until_s: float = NEVER) -> None:
        """Replay `jobs` (in order of submission) until all of them are done, or until `until_s`."""
        source = iter(jobs)
        job = next(source, None)
        heap, due = self._heap, self._due
        said = time.monotonic()
        while job is not None or self.alive:
            at_job = job.submit_s if job is not None else NEVER
            at_heap = heap[0][0] if heap else NEVER
            at_due = due[0][0] if due else NEVER
            now = min(at_heap, at_due)
            now = min(now, at_job)
            if now > until_s or now >= NEVER:
                break
            self.now = max(self.now, now)
            self.record.until(self.now)
            if at_heap <= now:
                _, _, kind, run, version = heappop(heap)
                self._happens(kind, run, version)
            elif at_due <= now:
                _, cluster = heappop(due)
                if self._registered[cluster] <= now:
                    self._registered[cluster] = NEVER
                    self.tell(cluster, ev.Tick())
            else:
                assert job is not None
                self._submit(job)
                job = next(source, None)
            if self.progress is not None and time.monotonic() - said > 0.2:
                said = time.monotonic()
                self.progress(self.now, self.record.finished)
        self.record.end(self.now)

    def tell(self, cluster: int, event: ev.Event) -> None:
        """One decision, and what it asks to be done."""
        scheduler = self.schedulers[cluster]
        if self.decision_s is None:
            actions = scheduler.decide(event, self.now)
        else:
            begin = time.thread_time()
            actions = scheduler.decide(event, self.now)
            self.decision_s.append(time.thread_time() - begin)
        self.events += 1
        for action in actions:
            _DO[type(action)](self, action)
        held = scheduler.held
        if held != self._held[cluster]:
            self.record.holds(self.now, held - self._held[cluster])
            self._held[cluster] = held
        at = scheduler.next_due
        if at < self._registered[cluster]:
            self._registered[cluster] = at
            heappush(self._due, (at, cluster))

    def _balance(self, run: Run) -> None:
        """Those who wait for long go where there is room."""
        assert self.relocate is not None
        self._balances = False
        for id, cluster in self.relocate(self.now, lambda id: self._runs[id].job.locations):
            mover = self._runs[id]
            self.record.relocations += 1
            self.tell(mover.cluster, ev.Depart(id))
            mover.cluster = cluster
            self.tell(cluster, ev.Submit(mover.claim))
        goes_on = bool(self._heap or self._due)  # else nothing is ever free again
        if goes_on and any(scheduler.state.queue.waiting for scheduler in self.schedulers):
            self._balance_later(run)

    def _balance_later(self, run: Run) -> None:
        """Something came or went, or somebody still waits."""
        if self.relocate is not None and not self._balances:
            self._balances = True
            self._later(self.now + BALANCE_S, _BALANCE, run, 0)

    def _later(self, at: float, kind: int, run: Run, version: int) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, kind, run, version))

    # -- jobs -------------------------------------------------------------------------------

    def _submit(self, job: Job) -> None:
        cluster = 0 if self.route is None else self.route(job, self.now)
        if cluster < 0:
            self.record.refused(job)
            return
        claim = Claim(
            job.id,
            job.devices,
            tier=_TIER[job.tier],
            priority=_PRIORITY[job.priority],
            kind="interactive" if job.cells else "batch",
            minimum=job.min_devices,
            counts=job.counts,
            interval_s=job.scale_interval_s,
            virtual_cluster=job.virtual_cluster,
            pool=job.device_type,
            costs=self.costs.triple,
        )
        run = Run(job, claim, cluster)
        self._runs[job.id] = run
        self.alive += 1
        self.record.submitted(job, self.now)
        self.schedulers[cluster].prepare(claim, job.work_s)
        run.asked_at = self.now
        if job.cells:
            self._later(self.now + job.cells[0][0], _CELL, run, 0)
        else:
            run.left = run.stored_left = job.work_s
            self.tell(cluster, ev.Submit(claim))
        self._balance_later(run)

    def _happens(self, kind: int, run: Run, version: int) -> None:
        if kind == _BALANCE:
            self._balance(run)
        elif run.done:
            return
        elif kind == _WORK:
            if version == run.version:
                self._worked(run)
        elif kind == _LEFT:
            self.tell(run.cluster, ev.Left(run.claim.id, version))
        elif kind == _CHANGED:
            self.tell(run.cluster, ev.Changed(run.claim.id, version))
            claim = run.claim
            if claim.stage is Stage.HELD and claim.epoch == version and claim.busy:
                self._go(run)
        elif kind == _CELL:
            self._cell(run)
        else:
            self._finish(run)

    def _cell(self, run: Run) -> None:
        """The user runs the next cell."""
        claim = run.claim
        run.left = run.stored_left = run.job.cells[run.cell][1] + run.redo
        self.record.redone_device_s += run.redo * claim.devices
        run.redo = 0.0
        run.asked_at, run.waits = self.now, True
        reserves = self.schedulers[run.cluster].reserves
        if run.cell == 0:
            self.tell(run.cluster, ev.Submit(claim))
        elif not reserves:
            self.tell(run.cluster, ev.Want(claim.id))
        if run.waits and claim.stage is Stage.HELD and claim.busy:
            self._go(run)  # it had its devices all along
        self._balance_later(run)

    def _worked(self, run: Run) -> None:
        """All the work of the job, or of its cell, is done."""
        self._advance(run)
        self._works(run, 0)
        run.rate = run.left = 0.0
        cells = run.job.cells
        if not cells:
            self._finish(run)
            return
        run.version += 1
        run.cell += 1
        if not self.schedulers[run.cluster].reserves:
            self.tell(run.cluster, ev.Idle(run.claim.id))
        if run.cell < len(cells):
            self._later(self.now + cells[run.cell][0], _CELL, run, 0)
        else:
            self._later(self.now + run.job.linger_s, _CLOSE, run, 0)

    def _finish(self, run: Run) -> None:
        run.done = True
        run.version += 1
        self.alive -= 1
        self.tell(run.cluster, ev.Finish(run.claim.id))
        del self._runs[run.claim.id]
        self.record.done(run.job, run.claim, self.now)
        self._balance_later(run)

    # -- progress ---------------------------------------------------------------------------

    def _advance(self, run: Run) -> None:
        worked = (self.now - run.updated) * run.rate
        if worked > 0:
            run.left = max(0.0, run.left - worked)
            self.record.worked_device_s += worked * run.claim.devices
            run.updated = self.now

    def _go(self, run: Run) -> None:
        """It has devices and work: from when its devices are of use, it works."""
        claim = run.claim
        begin = max(self.now, claim.serves_from)
        if run.waits:
            run.waits = False
            self.record.cell_started(run.cell, begin - run.asked_at)
        elif run.version == 0:
            self.record.started(run.job, begin)
        run.rate = claim.count / claim.devices
        self._works(run, claim.count)
        run.updated = begin
        run.version += 1
        self._later(begin + run.left / run.rate, _WORK, run, run.version)

    def _stop(self, run: Run) -> None:
        """It does not work from now on; not even if it was just about to begin."""
        if not run.rate:
            return
        self._advance(run)
        self._works(run, 0)
        run.rate = 0.0
        run.version += 1

    def _works(self, run: Run, count: int) -> None:
        if count != run.on:
            self.record.works(self.now, count - run.on)
            run.on = count

    # -- what the scheduler wants done --------------------------------------------------------

    def _grant(self, action: do.Grant) -> None:
        run = self._runs[action.claim.id]
        self.record.granted(action)
        if action.claim.busy and (run.left > 0 or not run.job.cells):
            self._go(run)

    def _preempt(self, action: do.Preempt) -> None:
        run = self._runs[action.claim.id]
        self.record.preempted(action)
        self._stop(run)
        kept_s = self.schedulers[run.cluster].kills
        if kept_s is not None:
            self._killed(run, kept_s)
        self._later(self.now + action.claim.costs[0], _LEFT, run, action.epoch)

    def _killed(self, run: Run, kept_s: float) -> None:
        """A batch job is where it wrote a checkpoint last; a notebook has nothing but its code."""
        cells = run.job.cells
        if cells and not run.left:
            run.redo = _busy_s(cells[: run.cell])
            return
        if cells:
            lost = _busy_s(cells[: run.cell + 1]) - run.left
        else:
            lost = (run.stored_left - run.left) % kept_s
        run.left = run.stored_left = run.left + lost
        self.record.redone_device_s += lost * run.claim.devices

    def _resize(self, action: do.Resize) -> None:
        run, costs = self._runs[action.claim.id], action.claim.costs
        self.record.resized(action)
        self._stop(run)
        self._later(self.now + costs[0] + costs[1], _CHANGED, run, action.epoch)

    def _migrate(self, action: do.Migrate) -> None:
        run, costs = self._runs[action.claim.id], action.claim.costs
        self.record.migrated(action)
        self._stop(run)
        self._later(self.now + costs[0] + costs[2], _CHANGED, run, action.epoch)

    def _lose(self, action: do.Lost) -> None:
        run = self._runs[action.claim.id]
        self.record.lost(action)
        self._stop(run)
        # What it did since its last checkpoint by itself is done again.
        worked = (run.stored_left - run.left) % max(self.costs.checkpoint_s, 1e-9)
        run.left = run.left + worked
        run.stored_left = run.left
        self.record.redone_device_s += worked * run.claim.devices


def _busy_s(cells: tuple[tuple[float, float], ...]) -> float:
    busy = 0.0  # added up one by one: Python's `sum` of floats differs among its versions
    for _, busy_s in cells:
        busy += busy_s
    return busy


_DO: dict[type, Callable[[Replay, Any], None]] = {
    do.Grant: Replay._grant,
    do.Preempt: Replay._preempt,
    do.Resize: Replay._resize,
    do.Migrate: Replay._migrate,
    do.Lost: Replay._lose,
}
