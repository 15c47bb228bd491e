"""Workloads of other simulators: Tiresias and NotebookOS (one CSV format), Pollux and Sia.

Sources of the formats: SymbioticLab/Tiresias and petuum/adaptdl, osdi21 artifact (both
Apache-2.0), and ds2-lab/NotebookOS.
"""

from __future__ import annotations

import math
from pathlib import Path

from singularity_scheduler.sim.traces.collector import Collector
from singularity_scheduler.sim.traces.records import Job, Trace
from singularity_scheduler.sim.traces.table import MAX_SECONDS, PLAIN, ReadOptions, Row, rows

TIRESIAS = ("job_id", "num_gpu", "submit_time", "duration")
TIRESIAS_EXTRAS = (
    *("iterations", "model_name", "interval"),
    *("start_time", "model_size", "aggr_interval", "model_scale"),
)
POLLUX = ("name", "time", "application", "num_replicas", "batch_size")


def read_tiresias(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """`job_id,num_gpu,submit_time,iterations,model_name,duration,interval`, times in units of
    `options.tick_s`. NotebookOS writes its notebook cells like this, one job each, with the GPU
    count of CPU-only cells raised to 1 and times in minutes (`tick_s=60`)."""
    collector = Collector(path)
    for row in rows(path, "a Tiresias trace", TIRESIAS, TIRESIAS_EXTRAS, options.ignore):
        collector.add(
            row,
            Job(
                id=0,
                name=row.text("job_id") or f"job-{row.number_in_file}",
                submit_s=row.seconds("submit_time") * options.tick_s,
                work_s=row.seconds("duration") * options.tick_s,
                devices=row.devices("num_gpu"),
            ),
            "job_id",
        )
    return collector.trace("tiresias", {"tick_s": options.tick_s})


def read_pollux(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """`name,time,application,num_replicas,batch_size`. The file does not say how long a job runs:
    that comes from profiles, which the user sums up in `options.durations`."""
    collector = Collector(path)
    for row in rows(path, "a Pollux workload", POLLUX, (), options.ignore):
        devices = row.devices("num_replicas")
        row.whole("batch_size", 1)
        collector.add(
            row,
            Job(
                id=0,
                name=row.text("name") or f"job-{row.number_in_file}",
                submit_s=row.seconds("time"),
                work_s=_duration(row, devices, options),
                devices=devices,
                min_devices=1 if options.elastic and devices > 1 else 0,
            ),
            "name",
        )
    return collector.trace("pollux", {"elastic": options.elastic})


def _duration(row: Row, devices: int, options: ReadOptions) -> float:
    application = row.text("application")
    table = options.durations
    seconds = table.get(f"{application}/{devices}", table.get(application))
    if seconds is None:
        raise row.bad(
            f"this format does not say how long {application[:60]!r} runs: give its seconds "
            f'in a table of durations, as "{application[:60]}" or "{application[:60]}/{devices}"',
            "application",
        )
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_SECONDS:
        raise row.bad(
            f"the given duration of {application[:60]!r} is {seconds}: it must be 0 or more",
            "application",
        )
    return seconds
