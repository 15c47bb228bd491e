"""Elastic sessions: the same numbers on any number of devices, and what changing it costs."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singularity_proxy import build
from singularity_proxy.errors import BarrierFailed
from singularity_proxy.standalone import Standalone

from .figures import Figure
from .jobs import RANKS, Job, numbers

DESCRIPTION = "elastic sessions: bitwise equality, time slicing, memory, barrier, resize, identity"
BOUNDS = {
    "slice4_overhead": 1.03,
    "slice4_optimizer_heavy_ratio": 1.0,
    "param_copies": 1.1,
    "peak_memory_ratio": 1.1,
    "optimizer_runs_per_step": 1.0,
    "barrier_steps_p50": 1.0,
    "barrier_steps_max": 2.0,
    "barrier_hangs": 0.0,
    "resize_s": 2.0,
    "identity_ns": 150.0,
}
FLOORS = {"ddp_bitwise_p4_p2_p1": 1.0}
WARM = 3
"""Steps before times count: buckets are rebuilt, metadata is learned."""
HANG_S = 10.0


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "bitwise_model": "gpt_small" if quick else "gpt",
        "bitwise_steps": 8 if quick else 40,
        "slice_steps": 8 if quick else 16,
        "slice_rounds": 1 if quick else 3,
        "slice_batch": 2 if quick else 8,
        "squash_steps": (4, 8) if quick else (10, 30),
        "records": 100_000,
        "triggers": 30 if quick else 1000,
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


def _seconds(result: list[dict[str, Any]], key: str = "seconds") -> float:
    return statistics.median(result[0][key][WARM:])


def slices(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """A step of four ranks on one device against its parts measured alone, and for a model whose
    optimizer is most of the work against four steps of one rank. One pair after the other."""
    steps = ("--steps", str(size["slice_steps"]), "--quiet")
    sliced, heavy, copies, peaks = Figure(), Figure(), Figure(), Figure()
    for number in range(size["slice_rounds"]):
        say(f"time slicing, pair {number + 1}")
        gpt = ("gpt", *steps, "--batch", str(size["slice_batch"]))
        alone, four = _one_device(1, *gpt, "--split"), _one_device(RANKS, *gpt)
        parts = RANKS * alone.backward_s + alone.step_s - alone.backward_s
        sliced.values.append(four.step_s / parts)
        copies.values.append(four.least_bytes / alone.least_bytes)
        peaks.values.append(four.peak_bytes / alone.peak_bytes)
        wide = ("wide", *steps, "--batch", "1")
        single, all_four = _one_device(1, *wide), _one_device(RANKS, *wide)
        heavy.values.append(all_four.step_s / (RANKS * single.step_s))
    return {
        "slice4_overhead": sliced,
        "slice4_optimizer_heavy_ratio": heavy,
        "param_copies": copies,
        "peak_memory_ratio": peaks,
    }


@dataclass
class Run:
    """What a job on one device took."""

    step_s: float
    backward_s: float
    """Until the gradients were there; 0 when the job did not wait for them."""
    peak_bytes: float
    least_bytes: float
    """At the emptiest moment of the second half: parameters and what the optimizer has."""
    operations: float
    skipped: float
    """Operations that were not executed because another rank had executed them."""


def _one_device(ranks: int, *arguments: str) -> Run:
    with session(1) as one:
        one.wait_warm()
        job = Job(one, *arguments, ranks=ranks)
        seen: list[dict[str, Any]] = []
        while job.running:
            seen += [proxy for proxy in one.stats() if proxy["memory_current"]]
            time.sleep(0.005)
        result = job.result()
    rings = [ring for proxy in seen for ring in proxy["rings"].values()]
    last = {ring["virtual_device"]: ring for ring in rings}.values()
    return Run(
        step_s=_median(result, "seconds"),
        backward_s=_median(result, "backward"),
        peak_bytes=max(proxy["memory_peak"] for proxy in seen),
        least_bytes=min(proxy["memory_current"] for proxy in seen[len(seen) // 2 : -20]),
        operations=sum(ring["operations"] for ring in last),
        skipped=sum(ring.get("skipped", 0) for ring in last),
    )


def _median(result: list[dict[str, Any]], key: str) -> float:
    return statistics.median(result[0][key][WARM:] or [0.0])


def squashing(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """How often the optimizer is executed for four ranks on one device: four times less what was
    left out of it. (Its operations: those of a job with it less those of one without.)"""
    say("executions of the optimizer")
    few, many = size["squash_steps"]

    def per_step(ranks: int, *more: str) -> tuple[float, float]:
        runs = [
            _one_device(ranks, "gpt_small", "--steps", str(steps), "--batch", "2", "--quiet", *more)
            for steps in (few, many)
        ]
        return (
            (runs[1].operations - runs[0].operations) / (many - few),
            (runs[1].skipped - runs[0].skipped) / (many - few),
        )

    optimizer = per_step(1)[0] - per_step(1, "--frozen")[0]
    skipped = per_step(RANKS)[1]
    return {"optimizer_runs_per_step": Figure([RANKS - skipped / optimizer])}


def identity(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """What the identity of contents adds to a record."""
    native = build.load()
    if not hasattr(native, "identity_ns"):
        return {"identity_ns": Figure(note="this build keeps no identities")}
    return {"identity_ns": Figure([native.identity_ns(size["records"]) for _ in range(5)])}


# ---- the barrier


def barrier(size: dict[str, Any], say: Callable[[str], None]) -> dict[str, Figure]:
    """At random moments of a small DDP job on two devices: how far ranks still go, in steps."""
    chance = random.Random(size["triggers"])
    cuts, hangs, seconds = [], 0, []
    say(f"{size['triggers']} barriers")
    with session(2) as one:
        job = Job(one, "mlp", "--steps", "100000000", "--bucket-mb", "0.02")
        job.wait_for_step(5)
        first = job.step
        for _ in range(size["triggers"]):
            began = time.monotonic()
            try:
                cuts.append(one.barrier(HANG_S))
                seconds.append(time.monotonic() - began)
            except BarrierFailed:
                hangs += 1
            time.sleep(chance.uniform(0.0, 0.05))
        steps = job.step - first
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


async def measure(quick: bool, say: Callable[[str], None]) -> dict[str, Figure]:
    """All figures; called by `benchmarks.__main__`."""
    size = sizes(quick)
    found: dict[str, Figure] = {}
    for part in (bitwise, slices, squashing, barrier, identity):
        found |= part(size, say)
    return found
