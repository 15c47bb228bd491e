"""Gavel (OSDI 2020): tab columns without a header, work in training steps.

Three orders of the columns are in use, told apart by their number: 10 (now), 7 and 6 (`msr_*`).
Steps become seconds by the measured steps per second of `simulation_throughputs.json`, which
belongs to Gavel and is given by the user. Source: stanford-futuredata/gavel (MIT).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from singularity_scheduler.sim.traces.collector import Collector
from singularity_scheduler.sim.traces.records import BadTrace, Job, Trace
from singularity_scheduler.sim.traces.table import (
    MAX_SECONDS,
    PLAIN,
    ReadOptions,
    Row,
    chunks,
    split,
)

_LAYOUTS = {
    10: (
        *("job_type", "command", "workdir", "num_steps_arg", "needs_data_dir"),
        *("total_steps", "scale_factor", "priority", "SLO", "arrival"),
    ),
    7: (
        *("job_type", "command", "num_steps_arg", "needs_data_dir"),
        *("total_steps", "arrival", "scale_factor"),
    ),
    6: ("job_type", "command", "num_steps_arg", "total_steps", "arrival", "scale_factor"),
}


def is_gavel(line: str) -> bool:
    """Whether the first line of a file looks like this format."""
    return line.count("\t") + 1 in _LAYOUTS


def read_gavel(path: str | Path, options: ReadOptions = PLAIN) -> Trace:
    """One job a row, called by its row. `work_s` = steps / (steps per second of this job type with
    this scale factor on `options.worker_type`). A weight above 1 is high priority, below 1 low."""
    file = Path(path).name
    if options.throughputs is None:
        raise BadTrace(
            f"{file} gives its work in steps: name Gavel's simulation_throughputs.json too",
            file=file,
        )
    speeds = _speeds(options.throughputs, options.worker_type)
    layouts = {
        count: {name: index for index, name in enumerate(names)}
        for count, names in _LAYOUTS.items()
    }
    collector = Collector(path)
    width = 0
    for number, cells in split(path, "\t"):
        row = Row(file, number, layouts.get(len(cells), {}), cells)
        if len(cells) not in layouts or (width and len(cells) != width):
            wanted = width or "10, 7 or 6"
            raise row.bad(f"a Gavel job has {wanted} tab columns, not {len(cells)}")
        width = len(cells)
        collector.add(row, _job(row, speeds, options.worker_type, width))
    return collector.trace("gavel", {"worker_type": options.worker_type})


def _job(row: Row, speeds: dict[str, Any], worker_type: str, width: int) -> Job:
    kind = row.text("job_type")
    devices = row.devices("scale_factor")
    key = str((kind, devices))
    alone = speeds.get(key)
    speed = alone.get("null") if isinstance(alone, dict) else None
    if not isinstance(speed, int | float) or not math.isfinite(speed) or speed <= 0:
        raise row.bad(
            f"the throughputs have no speed of {kind[:60]!r} on {devices} x {worker_type}",
            "job_type",
        )
    weight = row.seconds("priority") if width == 10 else 1.0
    work_s = row.whole("total_steps") / speed
    if work_s > MAX_SECONDS:
        raise row.bad("total_steps is too large", "total_steps")
    return Job(
        id=0,
        name=f"job-{row.number_in_file}",
        submit_s=row.seconds("arrival"),
        work_s=work_s,
        devices=devices,
        priority="high" if weight > 1 else "low" if weight < 1 else "medium",
    )


def _speeds(path: str | Path, worker_type: str) -> dict[str, Any]:
    """job type and scale -> {"null": steps per second alone, ...} of one type of device."""
    file = Path(path).name
    try:
        table = json.loads("".join(chunks(path)))
    except (ValueError, RecursionError) as error:
        raise BadTrace(f"{file} is not JSON: {error}", file=file) from None
    speeds = table.get(worker_type) if isinstance(table, dict) else None
    if not isinstance(speeds, dict):
        has = ", ".join(list(table)[:8]) if isinstance(table, dict) else "no table at all"
        raise BadTrace(f"{file} has no throughputs of {worker_type!r} (it has {has})", file=file)
    return speeds
