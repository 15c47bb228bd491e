"""Logs of two research clusters: Helios (SenseTime, 2020) and Acme (Shanghai AI Lab, 2023).

Sources of the formats: S-Lab-System-Group/HeliosData (SC 2021) and InternLM/AcmeTrace (NSDI 2024,
CC-BY-4.0).
"""

from __future__ import annotations

from pathlib import Path

from singularity_scheduler.sim.traces.collector import Collector
from singularity_scheduler.sim.traces.records import Job, Trace
from singularity_scheduler.sim.traces.table import PLAIN, ReadOptions, Row, rows

HELIOS = ("user", "vc", "gpu_num", "submit_time", "duration")
HELIOS_EXTRAS = (
    *("job_id", "jobname", "cpu_num", "node_num", "state"),
    *("start_time", "end_time", "queue"),
)
ACME = ("job_id", "user", "gpu_num", "submit_time", "duration", "type")
ACME_EXTRAS = (
    *("node_num", "cpu_num", "mem_per_pod_GB", "shared_mem_per_pod", "state", "start_time"),
    *("end_time", "fail_time", "stop_time", "queue", "gpu_time"),
)


def read_helios(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """`cluster_log.csv` of Helios, and the same shape as the QSSF simulator reads it. `duration` is
    the run time without the queue. Jobs without a GPU are skipped and counted."""
    collector = Collector(path)
    for row in rows(path, "a Helios log", HELIOS, HELIOS_EXTRAS, options.ignore):
        devices = row.devices("gpu_num", low=0)
        work_s = row.seconds("duration")
        submit_s = row.moment("submit_time")
        if devices == 0:
            collector.skip("asks for no GPU")
        else:
            _add(collector, row, submit_s, work_s, devices, row.text("vc"))
    return collector.trace("helios")


def read_acme(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """`trace_seren.csv` and `trace_kalos.csv` of Acme. The work is `end_time` - `start_time`: in
    Kalos the column `duration` counts the queue too. It is used where one of both is missing."""
    collector = Collector(path)
    for row in rows(path, "an Acme trace", ACME, ACME_EXTRAS, options.ignore):
        devices = row.devices("gpu_num", low=0)
        submit_s = row.moment("submit_time")
        if row.text("start_time") and row.text("end_time"):
            work_s = row.moment("end_time") - row.moment("start_time")
            if work_s < 0:
                raise row.bad("end_time is before start_time", "end_time")
        else:
            work_s = row.seconds("duration")
        if devices == 0:
            collector.skip("asks for no GPU")
        else:
            _add(collector, row, submit_s, work_s, devices, "")
    return collector.trace("acme")


def _add(
    collector: Collector, row: Row, submit_s: float, work_s: float, devices: int, vc: str
) -> None:
    name = row.text("job_id")
    job = Job(
        id=0,
        name=name or f"job-{row.number_in_file}",
        submit_s=submit_s,
        work_s=work_s,
        devices=devices,
        virtual_cluster=vc,
        user=row.text("user"),
    )
    collector.add(row, job, "job_id" if name else None)
