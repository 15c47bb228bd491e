"""The placement study: how much of a cluster's device capacity each policy leaves in pieces.

As in "Beware of Fragmentation" (USENIX ATC '23): the pods of a trace arrive in a random order, more
are drawn from it until they ask for more than the cluster has, none ends, and a pod that fits
nowhere is turned away. The other policies are written from the paper's definitions.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, quantiles

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.placement.fragmentation import WHOLE, Demand, Fragmentation, Shape
from singularity_scheduler.core.placement.outlook import Learner, Outlook
from singularity_scheduler.core.placement.packing import Judge, Packer, Place, Score

from .traces.logs.openb import OpenbNode, OpenbPod, read_openb_nodes, read_openb_pods

Say = Callable[[str], None]

OURS, LEARNT, MOVING = "ours", "ours, learning", "ours, moving"
BEST_FIT, FGD = "best fit", "FGD"

FULL = 100
"""Arrived demand in percent of the capacity at which policies are compared."""
MARKS = tuple(range(5, 111, 5))
"""Arrived demand, in percent of the capacity, at which figures are taken."""
_GAIN = 100.0
"""Thousandths of a device that a migration must make usable, as an expectation."""
_MOST_CPU, _MOST_DEVICES = 128_000, 8_000
"""The largest node of the trace: best fit and dot product divide by it, as in the paper."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cluster when the arrived demand is `arrived` percent of its device capacity."""

    arrived: float
    allocated: float
    """Share of the capacity in use, 0..1."""
    fragmented: float
    """Share of the capacity that is free and of no use to a pod of the trace, 0..1."""

    @property
    def rate(self) -> float:
        """The fragmented share of what is free."""
        free = 1.0 - self.allocated
        return self.fragmented / free if free > 1e-12 else 0.0


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy's outcome: means over the seeds.

    `fragmented` is the measure that policies are compared by: the fragmented share of all device
    capacity when the arrived demand is 100 % of it, with the fragmentation measure of the paper
    for the trace's own distribution of demands, whatever the policy itself knew.
    """

    policy: str
    seeds: int
    fragmented: float
    allocated: float
    """Share of the capacity in use at 100 % arrived demand."""
    unallocated_devices: float
    """Devices' worth of capacity not in use at 100 % arrived demand."""
    failed: float
    """Pods turned away until 100 % arrived demand."""
    mean_fragmented: float
    """The fragmented share as a mean over the arrival, from 5 % to 100 %."""
    moves: float
    """Migrations until 100 % arrived demand."""
    decision_ms_p50: float
    decision_ms_p99: float
    """Milliseconds of CPU time to choose and take one place."""
    curve: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes with devices, and what they have of each model in thousandths of a device."""

    nodes: tuple[OpenbNode, ...]
    models: Mapping[str, int]

    @staticmethod
    def of(nodes: Iterable[OpenbNode]) -> Cluster:
        kept = tuple(node for node in nodes if node.gpus)
        models: Counter[str] = Counter()
        for node in kept:
            models[node.model] += node.gpus * WHOLE
        if not kept:
            raise BadRequest("no node of the list has a device: give one with gpu above 0")
        return Cluster(kept, models)

    @property
    def capacity(self) -> int:
        return sum(self.models.values())

    def packer(self, judge: Judge, rng: Random | None = None) -> Packer:
        packer = Packer(judge, rng)
        for node in self.nodes:
            packer.add(node.sn, node.model, node.cpu_milli, node.memory_mib, node.gpus)
        return packer


def demand_of(pod: OpenbPod) -> Demand:
    """What a pod asks for."""
    milli = pod.gpu_milli if pod.num_gpu else 0
    return Demand(pod.cpu_milli, pod.memory_mib, pod.num_gpu, milli, frozenset(pod.gpu_spec))


def arrivals(demands: Sequence[Demand], capacity: int, seed: int, upto: int) -> list[Demand]:
    """The demands in a random order, then more drawn from them, until `upto` percent of the
    capacity is asked for."""
    if not any(demand.capacity for demand in demands):
        raise BadRequest("no pod of the list asks for a device: give one with num_gpu above 0")
    rng = Random(seed)
    order = rng.sample(demands, len(demands))
    asked = sum(demand.capacity for demand in order)
    while asked * 100 < upto * capacity:
        order.append(rng.choice(demands))
        asked += order[-1].capacity
    return order


# The policies that others use: each judge's score is lower for a better place.


def best_fit(shape: Shape, demand: Demand, option: int) -> Score:
    """The least left of CPU and devices together, each by half and by the largest node."""
    cpu = (shape.cpu - demand.cpu) / _MOST_CPU
    devices = (sum(shape.free) - demand.capacity) / _MOST_DEVICES
    return (cpu / 2 + devices / 2, option)


def dot_product(shape: Shape, demand: Demand, option: int) -> Score:
    """The least product of what is free and what is asked for, as vectors of CPU and devices."""
    cpu = shape.cpu * demand.cpu / _MOST_CPU**2
    return (cpu + sum(shape.free) * demand.capacity / _MOST_DEVICES**2, option)


def device_packing(shape: Shape, demand: Demand, option: int) -> Score:
    """Devices that are shared already, then free ones of nodes in use, then the smallest node."""
    if not demand.devices:
        return (0, 0)
    if shape.free[0] == WHOLE:
        return (2, len(shape.free))
    return (0, option) if option < WHOLE else (1, demand.devices)


def anywhere(_shape: Shape, _demand: Demand, _option: int) -> Score:
    """Any node will do; a part of a device goes where the least is left."""
    return (0,)


def gradient_descent(measure: Fragmentation) -> Judge:
    """FGD: the steepest descent of the fragmentation, as a whole number from 0 to 100 through a
    sigmoid over devices. On equal scores the first node, as in its authors' experiments."""

    def judge(shape: Shape, demand: Demand, option: int) -> Score:
        added = measure.gradient(shape, demand, option) / WHOLE
        return (-int(100 / (1 + math.exp(added))),)

    return judge


POLICIES = (
    *("random", "first fit", BEST_FIT, "dot product", "device packing", FGD),
    *(OURS, LEARNT, MOVING),
)
"""All but `LEARNT` know the trace's distribution of demands, as far as they use it; only `MOVING`
may migrate what runs."""


def measure(
    nodes_path: str | Path,
    pods_path: str | Path,
    seeds: Iterable[int] = range(5),
    say: Say = print,
    policies: Sequence[str] = POLICIES,
) -> dict[str, PolicyResult]:
    """The study on an openb node list and pod list: policy -> result.

    `say` is told each policy's result as one line. Raises `BadTrace` for files that cannot be
    read. Compare with `ratio`.
    """
    cluster = Cluster.of(read_openb_nodes(nodes_path))
    demands = [demand_of(pod) for pod in read_openb_pods(pods_path)]
    return study(cluster, demands, tuple(seeds), say, policies)


def study(
    cluster: Cluster,
    demands: Sequence[Demand],
    seeds: Sequence[int],
    say: Say,
    policies: Sequence[str] = POLICIES,
) -> dict[str, PolicyResult]:
    """`measure` for demands and a cluster that have been read."""
    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown or not seeds:
        raise BadRequest(f"give a seed or more, and policies from {', '.join(POLICIES)}")
    results = {}
    for policy in policies:
        runs = [_Run(cluster, demands, policy, seed).go() for seed in seeds]
        results[policy] = result = _mean(policy, cluster, runs)
        say(
            f"{policy}: {result.fragmented:.2%} of all capacity fragmented at {FULL} % arrived "
            f"demand, {result.allocated:.2%} allocated, {result.failed:.0f} pods turned away"
        )
    return results


def ratio(results: Mapping[str, PolicyResult], other: str, policy: str = OURS) -> float:
    """`fragmented` of a policy over that of another; below 1 is better."""
    theirs = results[other].fragmented
    if not theirs:
        return 1.0 if not results[policy].fragmented else math.inf
    return results[policy].fragmented / theirs


class _Run:
    """One policy, one seed."""

    def __init__(self, cluster: Cluster, demands: Sequence[Demand], policy: str, seed: int) -> None:
        self._cluster = cluster
        self._order = arrivals(demands, cluster.capacity, seed, MARKS[-1])
        self._truth = Fragmentation(Counter(demands))
        self._learner = Learner() if policy == LEARNT else None
        rng = Random(seed) if policy == "random" else None
        judge = self._first_judge(policy, Counter(demands))
        self._packer = cluster.packer(judge, rng)
        self._movers = None
        if policy == MOVING:
            assert isinstance(judge, Outlook)
            self._movers = _Movers(self._packer, judge)
        self.points: list[Point] = []
        self.times: list[float] = []
        self.failed = 0
        self.moves = 0

    def _first_judge(self, policy: str, known: Mapping[Demand, float]) -> Judge:
        judges: dict[str, Judge] = {
            BEST_FIT: best_fit,
            "dot product": dot_product,
            "device packing": device_packing,
            FGD: gradient_descent(self._truth),
        }
        if policy in (OURS, MOVING):
            return Outlook(known, self._cluster.models)
        if policy == LEARNT:
            return best_fit
        return judges.get(policy, anywhere)

    def go(self) -> _Run:
        capacity = self._cluster.capacity
        marks = list(MARKS)
        arrived = used = failed = moves = 0
        for demand in self._order:
            while marks and arrived * 100 >= capacity * marks[0]:
                if self._movers:
                    moves += self._movers.tidy()
                self.points.append(self._point(marks.pop(0), used))
                if self.points[-1].arrived == FULL:
                    self.failed, self.moves = failed, moves
            began = time.thread_time()
            if self._learner and self._learner.see(demand):
                self._packer.judge_by(Outlook(self._learner.weights, self._cluster.models))
            place = self._packer.choose(demand)
            if place is not None:
                self._packer.take(place, demand)
            self.times.append(time.thread_time() - began)
            arrived += demand.capacity
            if place is None:
                failed += 1
                continue
            used += demand.capacity
            if self._movers:
                self._movers.note(place, demand)
        for mark in marks:
            self.points.append(self._point(mark, used))
        return self

    def _point(self, mark: int, used: int) -> Point:
        capacity = self._cluster.capacity
        lost = sum(self._truth.fragmented(shape) * n for shape, n in self._packer.shapes)
        return Point(mark, used / capacity, lost / capacity)


class _Movers:
    """Moves what runs to where it leaves more that later tasks can use."""

    def __init__(self, packer: Packer, outlook: Outlook) -> None:
        self._packer = packer
        self._worth = outlook.worth
        self._tasks: list[tuple[Demand, Place]] = []

    def note(self, place: Place, demand: Demand) -> None:
        self._tasks.append((demand, place))

    def tidy(self) -> int:
        """Look at every task once, and move those whose move gains `_GAIN`; how many were moved."""
        moved = 0
        for at, (demand, place) in enumerate(self._tasks):
            if not demand.devices:
                continue
            home = self._packer.choose(demand)
            if home is not None and home.node != place.node and self._gain(demand, place, home):
                self._packer.take(home, demand)
                self._packer.give_back(place, demand)
                self._tasks[at] = (demand, home)
                moved += 1
        return moved

    def _gain(self, demand: Demand, place: Place, home: Place) -> bool:
        free = list(self._packer.free(place.node))
        for at in place.devices:
            free[at] += demand.milli
        here, there = self._packer.shape(place.node), self._packer.shape(home.node)
        cpu, memory = here.cpu + demand.cpu, here.memory + demand.memory
        without = Shape(here.model, cpu, memory, tuple(sorted(free)))
        option = self._packer.free(home.node)[home.devices[0]]
        lost = self._worth(there) - self._worth(there.after(demand, option))
        return self._worth(without) - self._worth(here) - lost >= _GAIN


def _mean(policy: str, cluster: Cluster, runs: Sequence[_Run]) -> PolicyResult:
    curve = tuple(
        Point(at[0].arrived, fmean(p.allocated for p in at), fmean(p.fragmented for p in at))
        for at in zip(*(run.points for run in runs), strict=True)
    )
    full = next(point for point in curve if point.arrived == FULL)
    cuts = quantiles([t for run in runs for t in run.times], n=100)
    return PolicyResult(
        policy=policy,
        seeds=len(runs),
        fragmented=full.fragmented,
        allocated=full.allocated,
        unallocated_devices=(1.0 - full.allocated) * cluster.capacity / WHOLE,
        failed=fmean(run.failed for run in runs),
        mean_fragmented=fmean(p.fragmented for p in curve if p.arrived <= FULL),
        moves=fmean(run.moves for run in runs),
        decision_ms_p50=cuts[49] * 1e3,
        decision_ms_p99=cuts[98] * 1e3,
        curve=curve,
    )
