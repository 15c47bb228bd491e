"""Elastic sessions: the same numbers on any number of devices, and what changing it costs."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy import build
from singularity_proxy.elastic.coordinator import Cut
from singularity_proxy.errors import BarrierFailed
from singularity_proxy.standalone import Standalone

from .cores import cores, cpu_seconds, pin_proxies
from .figures import Figure
from .gangs import Gang
from .gangs import barrier as joint_barrier
from .jobs import ALL_REDUCE, RANKS, Job, numbers

DESCRIPTION = (
    "elastic sessions: bitwise equality, time slicing, memory, barrier, resize, identity, "
    "fast collectives, bridges between nodes"
)
BOUNDS = {
    "slice4_overhead": 1.03,
    "slice4_optimizer_heavy_ratio": 1.0,
    "param_copies": 1.1,
    "peak_memory_ratio": 1.1,
    "optimizer_runs_per_step": 1.0,
    "barrier_steps_p50": 1.0,
    "barrier_steps_max": 2.0,
    "barrier_hangs": 0.0,
    "bridge_barrier_steps_p50": 1.0,
    "bridge_barrier_steps_max": 2.0,
    "bridge_barrier_hangs": 0.0,
    "resize_s": 2.0,
    "identity_ns": 150.0,
}
FLOORS = {"ddp_bitwise_p4_p2_p1": 1.0, "bridge_ddp_bitwise": 1.0}
BARRIER_JOB = ("mlp", "--steps", "100000000", "--bucket-mb", "0.02")
WARM = 3
"""Steps before times count: buckets are rebuilt, metadata is learned."""
HANG_S = 10.0
IDENTITY_RUNS = 30
CAPACITY = 4 << 30
"""Bytes of a device on which everything fits."""
ROOMS = (1.0, 1.05, 1.1, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
"""Of what one rank needs at most: the first that does for four ranks is quoted."""


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "bitwise_model": "gpt_small" if quick else "gpt",
        "bitwise_steps": 8 if quick else 40,
        "slice_steps": 8 if quick else 16,
        "slice_rounds": 1 if quick else 3,
        "slice_batch": 2 if quick else 8,
        "squash_steps": 8 if quick else 30,
        "records": 20_000,
        "triggers": 30 if quick else 1000,
        "reduce_mb": 16,
        "reduce_rounds": 7 if quick else 30,
        "bridge_pairs": 1 if quick else 3,
    }


def session(physical: int, **options: Any) -> Standalone:
    return Standalone(devices=RANKS, physical=physical, **options)


# ---- the same numbers


def bitwise(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """DDP with dropout on 4, 2, 1 devices and on a changing number of them; the changes' times."""
    steps = size["bitwise_steps"]
    arguments = (size["bitwise_model"], "--dropout", "0.1", "--batch", "2", "--steps", str(steps))
    found = []
    for physical in (4, 2, 1):
        say(f"DDP on {physical} devices")
        with session(physical) as one:
            found.append(numbers(Job(one, *arguments).result()))
    say("DDP on 4, 1, 2 and 4 devices")
    seconds = []
    with session(4, spares=3) as one:
        job = Job(one, *arguments)
        at = sorted(random.Random(steps).sample(range(steps - 2), 3))
        for step, count in zip(at, (1, 2, 4), strict=True):
            job.wait_for_step(step)
            one.wait_warm()
            seconds.append(float(one.resize(count)["seconds"]))
        found.append(numbers(job.result()))
    same = float(all(one == found[0] for one in found))
    return {
        "ddp_bitwise_p4_p2_p1": Figure([same], quote=min),
        "resize_s": Figure(seconds),
    }


# ---- time slicing


def slices(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """A step of four ranks on one device against its parts measured alone, and for a model whose
    optimizer is most of the work against four steps of one rank. One after the other, as the
    machine may be slower a minute later. The device is one core, and the ranks have the others. The
    processor time of the device proxy says the same of a machine that others use."""
    steps = ("--steps", str(size["slice_steps"]))
    sliced, heavy, copies, unlimited, limited = (Figure() for _ in range(5))
    sliced_cpu, heavy_cpu = Figure(), Figure()
    for number in range(size["slice_rounds"]):
        say(f"time slicing, round {number + 1}")
        gpt = ("gpt", *steps, "--batch", str(size["slice_batch"]))
        alone, four = _one_device(1, *gpt, "--split"), _one_device(RANKS, *gpt)
        frozen = _one_device(1, *gpt, "--updates", "0")
        parts = RANKS * alone.backward_s + alone.step_s - alone.backward_s
        sliced.values.append(four.step_s / parts)
        parts = RANKS * frozen.cpu_s + alone.cpu_s - frozen.cpu_s
        sliced_cpu.values.append(four.cpu_s / parts)
        copies.values.append(four.last_bytes / alone.last_bytes)
        unlimited.values.append(four.peak_bytes / alone.peak_bytes)
        if not number:
            limited.values.append(_least_room(alone.peak_bytes, *gpt))
        wide = ("wide", *steps, "--batch", "1")
        single, all_four = _one_device(1, *wide), _one_device(RANKS, *wide)
        heavy.values.append(all_four.step_s / (RANKS * single.step_s))
        heavy_cpu.values.append(all_four.cpu_s / (RANKS * single.cpu_s))
    return {
        "slice4_overhead": sliced,
        "slice4_cpu_overhead": sliced_cpu,
        "slice4_optimizer_heavy_ratio": heavy,
        "slice4_optimizer_heavy_cpu_ratio": heavy_cpu,
        "param_copies": copies,
        "peak_memory_ratio": limited,
        "peak_memory_unlimited_ratio": unlimited,
    }


@dataclass
class Run:
    """What a job on one device took."""

    step_s: float
    """Of a step from step `WARM` on, all of them together: where ranks take turns, one of them may
    have had a short step because another one waited."""
    backward_s: float
    """Of that, until the gradients were there; 0 when the job did not wait for them."""
    cpu_s: float
    """Processor time of the device proxy, from step `WARM` to the end."""
    peak_bytes: float
    last_bytes: float
    """At the end, without gradients: parameters and what the optimizer has."""
    operations: float
    """That were executed; not those that were taken over from another rank."""


def _least_room(one_rank: float, *arguments: str) -> float:
    """The memory that a device must have for four ranks, in parts of what one needs at most."""
    for room in ROOMS:
        try:
            _one_device(RANKS, *arguments, capacity=int(one_rank * room))
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
        else:
            return room
    raise RuntimeError(f"four ranks do not fit into {ROOMS[-1]:g} times what one of them needs")


def _one_device(ranks: int, *arguments: str, capacity: int = CAPACITY) -> Run:
    """A job on one device of so many bytes. Raises RuntimeError when it does not fit."""
    with session(1, capacity_bytes=capacity) as one:
        one.wait_warm()
        pin_proxies(one, 1)
        job = Job(one, *arguments, "--stay", ranks=ranks, on=os.sched_getaffinity(0) - cores(1))
        try:
            job.wait_for_step(WARM - 1)
            (pid,) = one.proxy_pids()
            before = cpu_seconds(pid)
            job.wait_until_done()
            cpu_s = cpu_seconds(pid) - before
            (proxy,) = one.stats()
            result = job.result()
        except BaseException:
            job.stop()
            raise
    return Run(
        step_s=_mean(result, "seconds"),
        backward_s=_mean(result, "backward"),
        cpu_s=cpu_s,
        peak_bytes=proxy["memory_peak"],
        last_bytes=proxy["memory_current"],
        operations=sum(ring["operations"] for ring in proxy["rings"].values()),
    )


def _mean(result: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(result[0][key][WARM:]) if result[0][key] else 0.0


def squashing(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """How often the optimizer is executed for four ranks on one device: what a second run of it in
    each step adds to the operations that are executed, against what it adds to those of one rank.
    (Once, and as often as there are ranks in the steps that check the rules.)"""
    say("executions of the optimizer")
    arguments = ("gpt_small", "--steps", str(size["squash_steps"]), "--batch", "2")

    def executed(ranks: int) -> float:
        once, twice = (
            _one_device(ranks, *arguments, "--updates", str(updates)).operations
            for updates in (1, 2)
        )
        return twice - once

    return {"optimizer_runs_per_step": Figure([executed(RANKS) / executed(1)])}


def identity(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """What the identity of contents adds to a record: the least of many short runs, which others
    on the machine disturb least."""
    native = build.load()
    if not hasattr(native, "identity_ns"):
        return {"identity_ns": Figure(note="this build keeps no identities")}
    values = [native.identity_ns(size["records"]) for _ in range(IDENTITY_RUNS)]
    return {"identity_ns": Figure(values, quote=min)}


# ---- the barrier


def barrier(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """At random moments of a small DDP job, on two devices of one node and of two: how far ranks
    still go, in steps."""
    say(f"{size['triggers']} barriers")
    with session(2) as one:
        found = _barriers([Job(one, *BARRIER_JOB)], one.barrier, size["triggers"])
    say(f"{size['triggers']} barriers of two nodes")
    with Gang(2, devices=2, physical=1) as parts:
        jobs = [Job(part, *BARRIER_JOB, ranks=2) for part in parts]
        both = _barriers(jobs, lambda limit: joint_barrier(parts, limit), size["triggers"])
    return found | {f"bridge_{name}": figure for name, figure in both.items()}


def _barriers(jobs: list[Job], reach: Callable[[float], Cut], triggers: int) -> dict[str, Figure]:
    chance = random.Random(triggers)
    cuts, hangs, seconds = [], 0, []
    for job in jobs:
        job.wait_for_step(5)
    first = jobs[0].step
    for _ in range(triggers):
        began = time.monotonic()
        try:
            cuts.append(reach(HANG_S))
            seconds.append(time.monotonic() - began)
        except BarrierFailed:
            hangs += 1
        time.sleep(chance.uniform(0.0, 0.05))
    steps = jobs[0].step - first
    for job in jobs:
        job.stop()
    (key,) = cuts[0].contributed
    per_step = (cuts[-1].contributed[key] - cuts[0].contributed[key]) / steps
    far = [max(cut.advanced.values()) / round(per_step) for cut in cuts]
    return {
        "barrier_steps_p50": Figure(far),
        "barrier_steps_max": Figure(far, quote=max),
        "barrier_hangs": Figure([float(hangs)], quote=max),
        "barrier_s": Figure(seconds),
    }


# ---- the order of additions


def reductions(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """An `all_reduce` of four ranks on two devices where each device adds up its own ranks first,
    against one in the order of the ranks: in turns in one job, and of each pair the ratio. And what
    the device proxies put into shared memory for one."""
    megabytes, rounds = size["reduce_mb"], size["reduce_rounds"]
    arguments = (str(megabytes), "--rounds", str(rounds))
    say(f"all_reduce of {megabytes} MB on 2 devices")
    with session(2) as one:
        result = Job(one, *arguments, file=ALL_REDUCE).result()
    slowest = {
        order: [max(of_ranks) for of_ranks in zip(*(rank[order] for rank in result), strict=True)]
        for order in result[0]
    }
    ratios = [f / b for f, b in zip(slowest["fast"], slowest["bitwise"], strict=True)]
    found = {
        "fast_allreduce_ratio": Figure(ratios),
        "fast_allreduce_s": Figure(slowest["fast"]),
        "bitwise_allreduce_s": Figure(slowest["bitwise"]),
    }
    for order in ("fast", "bitwise"):
        with session(2) as one:
            once = ("--warm", "0", "--rounds", "1", "--orders", order, "--stay")
            job = Job(one, str(megabytes), *once, file=ALL_REDUCE)
            job.wait_until_done()
            published = sum(proxy["published_bytes"] for proxy in one.stats())
            job.result()
        found[f"{order}_allreduce_published_mb"] = Figure([published / 2**20])
    return found


# ---- several nodes


def bridges(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """The same `all_reduce` of four ranks on two devices of one session, and of two sessions with a
    bridge between them, one after the other; both on this machine, so the network costs nothing.
    And whether DDP computes the same bits."""
    megabytes, rounds = size["reduce_mb"], size["reduce_rounds"]
    arguments = (str(megabytes), "--rounds", str(rounds), "--orders", "bitwise")
    ratios, seconds = [], []
    for number in range(size["bridge_pairs"]):
        say(f"all_reduce of {megabytes} MB over a bridge, round {number + 1}")
        with session(2) as one:
            alone = Job(one, *arguments, file=ALL_REDUCE).result()
        with Gang(2, devices=2, physical=1) as parts:
            jobs = [Job(part, *arguments, ranks=2, file=ALL_REDUCE) for part in parts]
            apart = [rank for job in jobs for rank in job.result()]
        here, there = (
            statistics.median(map(max, zip(*(rank["bitwise"] for rank in ranks), strict=True)))
            for ranks in (alone, apart)
        )
        ratios.append(there / here)
        seconds.append(there)
    say("DDP over a bridge")
    model = ("gpt_small", "--steps", "10", "--dropout", "0.1", "--batch", "2")
    with session(4) as one:
        expected = numbers(Job(one, *model).result())
    with Gang(2, devices=2) as parts:
        jobs = [Job(part, *model, ranks=2) for part in parts]
        same = [n for job in jobs for n in numbers(job.result())] == expected
    return {
        "bridge_ddp_bitwise": Figure([float(same)], quote=min),
        "bridge_allreduce_ratio": Figure(ratios),
        "bridge_allreduce_s": Figure(seconds),
    }


async def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    """All figures; called by `benchmarks.__main__`."""
    size = sizes(quick)
    found: dict[str, Figure] = {}
    for part in (bitwise, slices, squashing, barrier, identity, reductions, bridges):
        found |= part(size, say)
    return found
