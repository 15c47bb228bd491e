"""Alibaba PAI (2020): the table of tasks (`pai_task_table.csv`), which comes without a header.

Source of the format: alibaba/clusterdata, cluster-trace-gpu-v2020 (Weng et al., NSDI 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from singularity_scheduler.sim.traces.collector import Collector
from singularity_scheduler.sim.traces.records import Job, Trace
from singularity_scheduler.sim.traces.table import MAX_DEVICES, PLAIN, ReadOptions, Row, split

COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_AT = {name: index for index, name in enumerate(COLUMNS)}


@dataclass(slots=True)
class _Tasks:
    """The GPU tasks of one job, added up."""

    row: Row
    start_s: float = math.inf
    end_s: float = 0.0
    percent: float = 0.0
    instances: int = 0
    types: set[str] = field(default_factory=set)


def is_pai(line: str) -> bool:
    """Whether the first line of a file looks like this table, with or without its header."""
    cells = line.strip().split(",")
    if len(cells) != len(COLUMNS):
        return False
    return tuple(cells) == COLUMNS or cells[_AT["status"]] in (
        *("Running", "Terminated", "Failed", "Waiting"),
    )


def read_pai(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """One job per `job_name`: its GPU tasks run together from their first start to their last end.
    One instance with part of a GPU is a fraction; everything else asks for the sum of its GPUs,
    rounded up. The table has no submit times, so a job is submitted when it started. Tasks without
    GPU, start or end are skipped and counted."""
    collector = Collector(path)
    jobs: dict[str, _Tasks] = {}
    for number, cells in split(path, ","):
        row = Row(collector.file, number, _AT, cells)
        if len(cells) != len(COLUMNS):
            raise row.bad(f"a PAI task has {len(COLUMNS)} fields, not {len(cells)}")
        if tuple(cells) != COLUMNS:
            _task(row, jobs, collector)
    for name, tasks in jobs.items():
        devices = math.ceil(tasks.percent / 100)
        share = 1000
        if tasks.instances == 1 and tasks.percent < 100:
            share = max(1, round(tasks.percent * 10))
        if devices > MAX_DEVICES:
            raise tasks.row.bad("the job asks for too many GPUs", "plan_gpu")
        job = Job(
            id=0,
            name=name,
            submit_s=tasks.start_s,
            work_s=tasks.end_s - tasks.start_s,
            devices=devices,
            share_milli=share,
            device_type=tasks.types.pop() if len(tasks.types) == 1 else "",
        )
        collector.add(tasks.row, job)
    return collector.trace("pai")


def _task(row: Row, jobs: dict[str, _Tasks], collector: Collector) -> None:
    percent = row.seconds("plan_gpu") if row.text("plan_gpu") else 0.0
    if percent == 0:
        collector.skip("asks for no GPU")
    elif not row.text("start_time") or not row.text("end_time"):
        collector.skip("has no start or no end")
    else:
        start_s, end_s = row.seconds("start_time"), row.seconds("end_time")
        if end_s < start_s:
            raise row.bad("end_time is before start_time", "end_time")
        name = row.text("job_name")
        if not name:
            raise row.bad("job_name is missing", "job_name")
        instances = row.whole("inst_num", 1, MAX_DEVICES)
        tasks = jobs.setdefault(name, _Tasks(row))
        tasks.start_s = min(tasks.start_s, start_s)
        tasks.end_s = max(tasks.end_s, end_s)
        tasks.percent += percent * instances
        tasks.instances += instances
        if row.text("gpu_type"):
            tasks.types.add(row.text("gpu_type"))
