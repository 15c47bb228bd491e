"""What the benchmark of the scheduler replays, each in a process of its own: plain figures by name.

The traces are the user's (see `Traces`); everything else is seeded, so that two runs decide alike.
CPU seconds stand beside wall seconds, because those say the same on a machine that is shared.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from singularity_scheduler.core.allocation.state import NEVER
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.sim import compare, packing
from singularity_scheduler.sim.fleet import Fleet, Shape
from singularity_scheduler.sim.record import Record
from singularity_scheduler.sim.replay import Costs, Replay
from singularity_scheduler.sim.summary import percentile, summarise
from singularity_scheduler.sim.traces.logs.philly import read_philly
from singularity_scheduler.sim.traces.notebooks import notebooks
from singularity_scheduler.sim.traces.records import Job
from singularity_scheduler.sim.traces.synthetic import Workload, generate, synthetic
from singularity_scheduler.sim.traces.tiers import assign_tiers

Figures = dict[str, float]

TRACES = "SINGULARITY_TRACES"
"""Environment variable: the folder below which public traces lie."""

RESTART = Costs(leave_s=30.0, back_s=30.0, elsewhere_s=30.0)
"""The same for every policy: half a minute to leave, half a minute to come back."""

RIVALS = {
    "tiresias": "tiresias",
    "maxmin": "maxmin",
    "srtf": "srtf",
    "srtf_oracle": "srtf-oracle",
}
"""End of a key -> policy that ours is compared with."""

SEED = 0


@dataclass(frozen=True)
class Traces:
    """The files that were found below the folder that the environment names."""

    philly: Path | None = None
    openb_nodes: Path | None = None
    openb_pods: Path | None = None

    @staticmethod
    def found() -> Traces:
        folder = os.environ.get(TRACES)
        if not folder:
            return Traces()

        def one(pattern: str) -> Path | None:
            return min(Path(folder).rglob(pattern), default=None)

        return Traces(
            one("philly.csv*"),
            one("openb_node_list_gpu_node.csv*"),
            one("openb_pod_list_default.csv*"),
        )


def apart(measure: Callable[..., Figures], *given: Any) -> Figures:
    """The figures of `measure(*given)` in a process of its own: its memory is its own, too."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *given).result()


def beside(measure: Callable[..., Figures], several: Iterable[tuple[Any, ...]]) -> list[Figures]:
    """The same for each of `several`, as many at a time as there are cores."""
    context = get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
        return [task.result() for task in [pool.submit(measure, *given) for given in several]]


class Clock:
    """Wall and CPU seconds, and the most memory that this process had."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Figures:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "s": time.perf_counter() - self._wall,
            "cpu_s": time.process_time() - self._cpu,
            "rss_gb": usage.ru_maxrss / 1e6,
        }


# -- how fast -------------------------------------------------------------------------------


def philly_jobs(path: Path, devices: int, limit: int | None) -> list[Job]:
    """The trace, with seeded tiers 20/40/40."""
    jobs = list(read_philly(str(path)))[:limit]
    assign_tiers(jobs, SEED, devices=devices)
    return jobs


def philly_speed(path: Path, devices: int, limit: int | None) -> Figures:
    """The whole trace through the full policy; reading the file is not counted."""
    cluster = compare.cluster_for(devices)
    jobs = philly_jobs(path, cluster.devices, limit)
    run = Replay([compare.make(compare.OURS, Parameters())], compare.MEASURED, Record())
    run.nodes(0, cluster.up())
    gc.freeze()
    clock = Clock()
    run.run(jobs)
    return {**clock.read(), "events": run.events}


def scale(devices: int, clusters: int, regions: int, jobs: int, seed: int = SEED) -> Figures:
    """Synthetic batch jobs on many clusters below regions and a global level, in one process, until
    all are done; making the jobs is counted as well."""
    workload = Workload(
        devices=devices,
        jobs=jobs,
        load=0.8,
        seed=seed,
        regions=tuple(f"region{number}" for number in range(regions)),
        notebook_share=0.0,
    )
    return _in_fleet(Shape(devices, clusters=clusters, regions=regions), workload, NEVER)


def span(devices: int, clusters: int, days: float, seed: int) -> Figures:
    """The same for one region and so many days, from empty clusters on."""
    workload = Workload(devices=devices, days=days, load=0.8, seed=seed, notebook_share=0.0)
    return _in_fleet(Shape(devices, clusters=clusters), workload, days * 86_400)


def _in_fleet(shape: Shape, workload: Workload, until_s: float) -> Figures:
    run = Fleet(shape, Parameters()).replay(compare.MEASURED, Record())
    gc.freeze()
    clock = Clock()
    run.run(generate(workload), until_s)
    return {
        **clock.read(),
        "events": run.events,
        "submissions": run.record.submissions,
        "finished": run.record.finished,
        "preemptions": run.record.preemptions,
    }


def decisions(nodes: int, sessions: int, jobs: int) -> Figures:
    """CPU milliseconds of each decision of a cluster that is asked for much more than it has, from
    when `sessions` are in it until the last of `jobs` is submitted."""
    cluster = compare.Cluster(nodes)
    taken_s: list[float] = []
    policy = compare.make(compare.OURS, Parameters())
    run = Replay([policy], compare.MEASURED, Record(), decision_s=taken_s)
    run.nodes(0, cluster.up())
    workload = Workload(devices=cluster.devices, jobs=jobs, load=8.0, seed=SEED)
    asked = list(generate(workload))
    gc.freeze()  # the jobs that are still to come are not the scheduler's

    def fed() -> Iterator[Job]:
        full = False
        for job in asked:
            if run.alive >= sessions and not full:
                full = True
                taken_s.clear()
            yield job

    run.run(fed(), until_s=asked[-1].submit_s)
    if run.alive < sessions:
        raise RuntimeError(f"{jobs} jobs leave {run.alive} sessions at a time, not {sessions}")
    ascending = sorted(taken_s)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {name: 1e3 * (percentile(ascending, share) or 0.0) for name, share in shares.items()}
    return {**found, "decisions": len(ascending), "sessions": run.alive}


def routing(devices: int, clusters: int, regions: int, count: int, per_s: float) -> Figures:
    """CPU milliseconds to route each of `count` submissions that come `per_s` a second: the global
    and the regional level, and asking clusters for new summaries when theirs are old."""
    fleet = Fleet(Shape(devices, clusters=clusters, regions=regions), Parameters())
    fleet.replay(compare.MEASURED, Record())  # all nodes are up
    names = tuple(f"region{number}" for number in range(regions))
    taken_s = []
    jobs = generate(Workload(devices=devices, jobs=count, load=0.9, seed=SEED, regions=names))
    for number, job in enumerate(jobs):
        begin = time.thread_time()
        fleet.route(job, number / per_s)
        taken_s.append(time.thread_time() - begin)
    ascending = sorted(taken_s)
    return {"p99": 1e3 * (percentile(ascending, 0.99) or 0.0), "max": 1e3 * ascending[-1]}


# -- how well -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A trace at a load, and jobs that have tiers or not. `philly` None: the synthetic mix."""

    philly: Path | None
    devices: int
    days: float
    limit: int | None = None

    def jobs(self, tiers: bool) -> list[Job]:
        if self.philly is not None:
            jobs = philly_jobs(self.philly, self.devices, self.limit)
        else:
            workload = Workload(devices=self.devices, days=self.days, load=0.9, seed=SEED)
            jobs = list(synthetic(workload))
        return jobs if tiers else [replace(job, tier="") for job in jobs]


def jct(comparison: Comparison, policy: str, tiers: bool) -> Figures:
    """The mean JCT of batch jobs, in seconds."""
    return _replayed(policy, comparison.jobs(tiers), comparison.devices, RESTART)


def guarantees(philly: Path, devices: int, limit: int | None) -> Figures:
    """How often tiers got in an hour what they are promised, at the costs of our checkpoints."""
    jobs = philly_jobs(philly, devices, limit)
    return _replayed(compare.OURS, jobs, devices, compare.MEASURED)


def notebook_days(devices: int, days: float) -> Figures:
    """Notebooks alone, on exactly as many devices as they would reserve."""
    return _replayed(compare.OURS, list(notebooks(devices, days, SEED)), devices, compare.MEASURED)


def _replayed(policy: str, jobs: list[Job], devices: int, costs: Costs) -> Figures:
    scheduler = compare.make(policy, Parameters())
    run = Replay([scheduler], costs, Record(), route=lambda j, _: 0 if j.devices <= devices else -1)
    run.nodes(0, compare.cluster_for(devices).up())
    clock = Clock()
    run.run(jobs)
    summary = summarise(run.record, [scheduler.state.account])
    numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    return numbers | clock.read()


def fragmentation(nodes: Path, pods: Path, seeds: int) -> Figures:
    """Ours over theirs, when as much as the cluster has was asked for."""
    policies = (packing.OURS, packing.BEST_FIT, packing.FGD)
    results = packing.measure(nodes, pods, range(seeds), lambda _: None, policies)
    return {
        "bestfit": packing.ratio(results, packing.BEST_FIT),
        "fgd": packing.ratio(results, packing.FGD),
    }
