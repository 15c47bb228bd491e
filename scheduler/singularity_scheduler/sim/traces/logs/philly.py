"""Microsoft Philly (2017): the CSV re-published with Pollux, and the raw job log.

The CSV holds submit time, run time and size only. The raw log (`cluster_job_log`, JSON) also holds
users and each attempt to run. Source: msr-fiddle/philly-traces (CC-BY-4.0; Jeon et al., ATC 2019).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from singularity_scheduler.sim.traces.collector import Collector
from singularity_scheduler.sim.traces.records import BadTrace, Job, Trace
from singularity_scheduler.sim.traces.table import PLAIN, ReadOptions, Row, chunks, rows

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
EXTRAS = ("gpu_time",)
LOG_KEYS = ("jobid", "vc", "user", "submitted_time", "attempts")
MAX_ENTRY = 16 << 20
"""Characters of one job in the raw log."""
_BETWEEN = " \t\r\n,"


def read_philly(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """`timestamp,duration,num_gpus,gpu_time,cluster`: one job a row, seconds on `num_gpus` GPUs.
    The file gives no ids: a job is called by its virtual cluster and row."""
    collector = Collector(path)
    for row in rows(path, "a Philly trace", COLUMNS, EXTRAS, options.ignore):
        cluster = row.text("cluster")
        collector.add(
            row,
            Job(
                id=0,
                name=f"{cluster or 'job'}-{row.number_in_file}",
                submit_s=row.moment("timestamp"),
                work_s=row.seconds("duration"),
                devices=row.devices("num_gpus"),
                virtual_cluster=cluster,
            ),
        )
    return collector.trace("philly")


def read_philly_log(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """The raw log: a JSON array with one object per job. The work of a job is the sum of its
    attempts that have both a start and an end; it asks for the GPUs of its largest attempt.
    Jobs that never ran or were still running when the log was taken are skipped and counted."""
    collector = Collector(path)
    for row, entry in _entries(path):
        missing = [key for key in LOG_KEYS if key not in entry]
        if missing:
            raise row.bad(f"the job has no {missing[0]!r}", missing[0])
        attempts = entry["attempts"]
        if not isinstance(attempts, list):
            raise row.bad("attempts is not a list", "attempts")
        work_s, gpus, running = 0.0, 0, False
        for attempt in attempts:
            start, end, count = _attempt(row, attempt)
            gpus = max(gpus, count)
            running = end is None
            if start is not None and end is not None:
                work_s += end - start
        if gpus == 0:
            collector.skip("never ran on a GPU")
        elif running:
            collector.skip("was still running when the log was taken")
        else:
            collector.add(
                row,
                Job(
                    id=0,
                    name=_text(row, entry, "jobid"),
                    submit_s=_moment(row, entry["submitted_time"], "submitted_time"),
                    work_s=work_s,
                    devices=gpus,
                    virtual_cluster=_text(row, entry, "vc"),
                    user=_text(row, entry, "user"),
                ),
                "jobid",
            )
    return collector.trace("philly-log")


def _attempt(row: Row, attempt: Any) -> tuple[float | None, float | None, int]:
    """(start, end, GPUs) of one attempt; None where the log has no time."""
    detail = attempt.get("detail") if isinstance(attempt, dict) else None
    places = [] if detail is None and isinstance(attempt, dict) else detail
    if not isinstance(places, list) or not all(
        isinstance(place, dict) and isinstance(place.get("gpus"), list) for place in places
    ):
        raise row.bad("an attempt has no list of machines with their gpus", "attempts")
    start, end = (
        None if attempt.get(key) in (None, "", "None") else _moment(row, attempt[key], key)
        for key in ("start_time", "end_time")
    )
    if start is not None and end is not None and end < start:
        raise row.bad("an attempt ends before it starts", "end_time")
    return start, end, sum(len(place["gpus"]) for place in places)


def _moment(row: Row, value: Any, key: str) -> float:
    try:
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        shown = repr(value)[:40]
        raise row.bad(
            f"{key} is {shown}: it must be a time like 2017-10-09 07:01:55", key
        ) from None


def _text(row: Row, entry: dict[str, Any], key: str) -> str:
    value = entry[key]
    if not isinstance(value, str) or not value:
        raise row.bad(f"{key} is not a text", key)
    return value


def _entries(path: str | Path) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The objects of a JSON list without holding the list; the row of one is its place in it."""
    file = Path(path).name
    decoder = json.JSONDecoder()
    number, opened, closed = 1, False, False
    pending, enough = "", 0

    def bad(what: str) -> BadTrace:
        return BadTrace(f"{file} row {number}: {what}", file=file, row=number)

    for chunk in chain(chunks(path), [""]):
        pending += chunk
        if chunk and len(pending) < enough:
            continue
        at = 0
        while at < len(pending):
            if pending[at] in _BETWEEN:
                at += 1
            elif closed:
                raise bad("there is something after the end of the list of jobs")
            elif not opened:
                if pending[at] != "[":
                    raise bad("the log must be a JSON list of jobs")
                opened = True
                at += 1
            elif pending[at] == "]":
                closed = True
                at += 1
            else:
                try:
                    entry, at = decoder.raw_decode(pending, at)
                except (ValueError, RecursionError):
                    if not chunk or len(pending) - at > MAX_ENTRY:
                        raise bad("a job is not JSON, cut off, or larger than 16 MiB") from None
                    break
                if not isinstance(entry, dict):
                    raise bad("a job is not a JSON object")
                yield Row(file, number, {}, []), entry
                number += 1
        pending = pending[at:]
        # A job that is not whole yet is tried again when twice as much is there.
        enough = 2 * len(pending)
    if not closed:
        raise bad("the list of jobs is empty or not closed")
