"""Replays one trace through several policies on the same cluster, at the same costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.allocation import events as ev
from singularity_scheduler.core.values.parameters import Parameters
from singularity_scheduler.text.phrases import nearest

from .baselines import BASELINES
from .fleet import Fleet, Shape
from .record import Record
from .replay import Costs, Replay
from .schedulers import Policy, Scheduler
from .summary import Summary, speed, summarise
from .traces.records import Job, Trace

OURS = "singularity"
BOUND = "srtf-oracle"
"""What JCTs are compared with."""
POLICIES = {OURS: "the policy of the live service"} | {n: b.what for n, b in BASELINES.items()}
"""name -> what it is, for people."""

MEASURED = Costs(leave_s=3.25, back_s=1.57, elsewhere_s=1.57)
"""Our checkpoints of a session with 1 GB on the device and 100 MB beside it: `suspend_s` and
`resume_s` of benchmarks/results/2026-11-22-checkpoint.json."""

POINTS = 1000
"""Of a series, about."""


def fixed(restart_s: float) -> Costs:
    """A preemption costs nothing but the way back, the same wherever it leads."""
    return Costs(leave_s=0.0, back_s=restart_s, elsewhere_s=restart_s)


@dataclass(frozen=True)
class Cluster:
    """Nodes that are all alike."""

    nodes: int
    devices_per_node: int = 8
    nodes_per_rack: int = 16

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def up(self) -> Iterator[ev.NodeUp]:
        """Its nodes; each half of one has a fast link."""
        size = self.devices_per_node
        half = (1 << size // 2) - 1
        islands = (half, ((1 << size) - 1) & ~half) if size > 3 else ()
        for number in range(self.nodes):
            rack = f"rack-{number // self.nodes_per_rack}"
            yield ev.NodeUp(f"node-{number}", size, rack=rack, islands=islands)


def cluster_for(devices: int, devices_per_node: int = 8) -> Cluster:
    """With at least so many devices."""
    return Cluster(max(1, math.ceil(devices / devices_per_node)), devices_per_node)


def devices_for(trace: Trace, load: float) -> int:
    """The number of devices at which the trace asks for the share `load` of their time, from its
    first submission to its last. Raises `BadRequest` for one without a span."""
    asked = last = 0.0
    for job in trace:
        asked += job.work_s * job.devices
        last = job.submit_s
    if last <= 0:
        raise BadRequest("all jobs of the trace come at once, so it has no load: give the devices")
    return max(1, round(asked / last / load))


@dataclass(frozen=True)
class Result:
    """One replay."""

    policy: str
    record: Record
    summary: Summary


@dataclass(frozen=True)
class Setup:
    """What is the same for all policies. `sample_s` 0: as many points as are good for a plot."""

    trace: Trace
    cluster: Cluster
    costs: Costs
    parameters: Parameters = field(default_factory=Parameters)
    limit: int | None = None
    sample_s: float = 0.0
    clusters: int = 1
    """Of our policy, equal parts of the devices below `regions`; others have all in one cluster."""
    regions: int = 1

    def __post_init__(self) -> None:
        if self.clusters != 1 or self.regions != 1:
            self.shape()  # whether there can be such a fleet

    def shape(self) -> Shape:
        """The devices as clusters in regions."""
        size = self.cluster.devices_per_node
        return Shape(
            self.cluster.devices,
            size,
            self.clusters,
            self.regions,
            self.cluster.nodes_per_rack,
            islands=2 if size > 3 else 1,
        )

    def jobs(self) -> Iterator[Job]:
        """Those of the trace, up to the limit; device types are all alike here."""
        for job in islice(self.trace, self.limit):
            yield replace(job, device_type="") if job.device_type else job


def known(policies: list[str]) -> list[str]:
    """`policies`, each once; `BadRequest` for one that there is not."""
    for name in policies:
        if name not in POLICIES:
            raise BadRequest(f"there is no policy '{name[:40]}': {nearest(name, POLICIES)}")
    return list(dict.fromkeys(policies))


def make(policy: str, parameters: Parameters) -> Scheduler:
    """A new scheduler; only ours has parameters."""
    return Policy(parameters) if policy == OURS else BASELINES[policy].make()


def replay(
    policy: str, setup: Setup, progress: Callable[[float, int], None] | None = None
) -> Result:
    """Replay the setup's trace through one policy. A job that asks for more devices than there are
    is refused."""
    record = Record(sample_s=setup.sample_s or _sample_s(setup))
    decision_s: list[float] = []
    begin = time.perf_counter()
    run = _prepared(policy, setup, record)
    run.progress, run.decision_s = progress, decision_s
    run.run(setup.jobs())
    wall_s = time.perf_counter() - begin
    accounts = [scheduler.state.account for scheduler in run.schedulers]
    summary = summarise(record, accounts) | speed(wall_s, decision_s)
    return Result(policy, record, summary)


def _prepared(policy: str, setup: Setup, record: Record) -> Replay:
    """A replay on all the devices."""
    if policy == OURS and setup.clusters > 1:
        return Fleet(setup.shape(), setup.parameters).replay(setup.costs, record)
    most = setup.cluster.devices
    scheduler = make(policy, setup.parameters)
    run = Replay(
        [scheduler],
        setup.costs,
        record,
        route=lambda job, now: 0 if job.devices <= most else -1,
    )
    run.nodes(0, setup.cluster.up())
    return run


def _sample_s(setup: Setup) -> float:
    span_s = setup.trace.span_s
    if span_s is None:
        span_s = max((job.submit_s for job in setup.jobs()), default=0.0)
    return max(60.0, span_s / POINTS)
