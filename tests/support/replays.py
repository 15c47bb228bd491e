"""Small replays for tests: nodes, jobs from tuples, and what came out by the name of the job."""

from __future__ import annotations

from collections.abc import Iterable

from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.sim.record import Record
from singularity_scheduler.sim.replay import Costs, Replay
from singularity_scheduler.sim.schedulers import Scheduler
from singularity_scheduler.sim.traces.records import Job


def batch(id: int, submit_s: float, work_s: float, devices: int = 1, tier: str = "") -> Job:
    return Job(id, f"job-{id}", submit_s, work_s, devices, tier=tier)


def notebook(
    id: int,
    submit_s: float,
    cells: tuple[tuple[float, float], ...],
    linger_s: float,
    tier: str = "",
) -> Job:
    work_s = sum(busy for _, busy in cells)
    return Job(id, f"nb-{id}", submit_s, work_s, 1, tier=tier, cells=cells, linger_s=linger_s)


def replay(
    scheduler: Scheduler,
    jobs: Iterable[Job],
    nodes: tuple[int, ...] = (1,),
    costs: tuple[float, float, float] = (0.0, 0.0, 0.0),
    sample_s: float = 0.0,
) -> Record:
    """The record of `jobs` on nodes of these sizes."""
    record = Record(sample_s=sample_s)
    run = Replay([scheduler], Costs(*costs), record)
    run.nodes(0, [ev.NodeUp(f"n{i}", size) for i, size in enumerate(nodes)])
    run.run(jobs)
    return record


def ends(record: Record) -> dict[int, float]:
    """id of a job -> when it ended."""
    return dict(zip(record.job_id, record.job_end_s, strict=True))
