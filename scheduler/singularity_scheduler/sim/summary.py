"""What a replay comes to: figures by name, flat and with their units, and its rows as Parquet.

JCT is the time from submission to the end. Without another word it is that of batch jobs; the time
that a notebook is open is its user's more than the scheduler's.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from singularity_scheduler.core.allocation.claims import TIERS
from singularity_scheduler.core.allocation.sla import Account

from .extras import need
from .record import Record

Value = float | int | str | None
Summary = dict[str, Value]


def percentile(ascending: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest; None of nothing."""
    if not ascending:
        return None
    at = share * (len(ascending) - 1)
    low = int(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (at - low)


def _spread(name: str, values: Iterable[float]) -> Summary:
    ascending = sorted(values)
    mean = sum(ascending) / len(ascending) if ascending else None
    found: Summary = {f"{name}_mean": mean}
    for percent in (50, 95, 99):
        found[f"{name}_p{percent}"] = percentile(ascending, percent / 100)
    return found


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def summarise(record: Record, accounts: Iterable[Account]) -> Summary:
    """The figures of one replay; None where there is nothing to measure. `accounts`: those of its
    schedulers."""
    jct = array("d", map(float.__sub__, record.job_end_s, record.job_submit_s))
    batch = record.job_batch
    useful = record.worked_device_s - record.redone_device_s
    found: Summary = {
        "jobs": record.submissions,
        "finished": record.finished,
        "refused": record.refusals,
        "makespan_s": (
            max(record.job_end_s) - min(record.job_submit_s) if record.finished else None
        ),
        **_spread("jct_s", (t for t, b in zip(jct, batch, strict=True) if b)),
        **_spread("jct_all_s", jct),
    }
    for rank, tier in enumerate(TIERS):
        rows = zip(jct, batch, record.job_tier, strict=True)
        found |= _spread(f"jct_{tier}_s", (t for t, b, r in rows if b and r == rank))
    found |= _spread("queue_wait_s", record.job_wait_s)
    found |= {
        "utilisation": _ratio(useful, record.capacity_device_s),
        "used_while_submitted": _while_submitted(record),
        "held_share": _ratio(record.held_device_s, record.capacity_device_s),
        "busy_share_of_held": _ratio(useful, record.held_device_s),
        "redone_device_h": record.redone_device_s / 3600,
    }
    all_accounts = list(accounts)
    for rank, tier in enumerate(TIERS):
        windows = sum(account.windows[rank] for account in all_accounts)
        kept = sum(account.kept[rank] for account in all_accounts)
        found[f"sla_{tier}_windows"] = windows
        found[f"sla_{tier}_kept_share"] = _ratio(kept, windows)
    free = sum(record.series_capacity) - sum(record.series_held)
    found |= {
        "preemptions": record.preemptions,
        "migrations": record.migrations,
        "relocations": record.relocations,
        "resizes": record.resizes,
        "losses": record.losses,
        "fragmentation_share": _ratio(sum(record.series_unusable), free),
        "cells": record.cells,
        "cells_at_once": record.cells_at_once,
        **_spread("first_cell_wait_s", record.first_wait_s),
        **_spread("resume_wait_s", record.cell_wait_s),
    }
    return found | {f"rule.{rule}": times for rule, times in sorted(record.rules.items())}


def _while_submitted(record: Record) -> float | None:
    """Share of the devices that work was done on until the last submission, by the series: what
    comes later says more of the last jobs than of the scheduler."""
    last = max(record.job_submit_s, default=0.0)
    points = bisect_right(record.series_s, last)
    return _ratio(sum(record.series_busy[:points]), sum(record.series_capacity[:points]))


def speed(wall_s: float, decision_s: Iterable[float]) -> Summary:
    """How fast it was decided: the replay took `wall_s`, its decisions these seconds."""
    ascending = sorted(decision_s)
    found: Summary = {
        "wall_s": wall_s,
        "events": len(ascending),
        "events_s": _ratio(len(ascending), wall_s),
    }
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        seconds = percentile(ascending, share)
        found[f"decision_ms_{name}"] = None if seconds is None else seconds * 1e3
    return found


def flat(setup: Mapping[str, Value], summaries: Mapping[str, Summary]) -> Summary:
    """One object of all: the setup's keys as they are, a policy's behind its name and a dot."""
    found = dict(setup)
    for policy, summary in summaries.items():
        found |= {f"{policy}.{key}": value for key, value in summary.items()}
    return found


# -- Parquet --------------------------------------------------------------------------------

JOBS = {
    "job": "job_id",
    "tier_rank": "job_tier",
    "devices": "job_devices",
    "batch": "job_batch",
    "submit_s": "job_submit_s",
    "end_s": "job_end_s",
    "work_s": "job_work_s",
    "attained_device_s": "job_attained_device_s",
}
"""Column of the file with the jobs -> field of `Record`; besides `policy`."""

SERIES = {
    "at_s": "series_s",
    "held_devices": "series_held",
    "busy_devices": "series_busy",
    "capacity_devices": "series_capacity",
    "unusable_devices": "series_unusable",
}
"""The same for the series."""


def series_path(path: Path) -> Path:
    """Where the series goes when the jobs go to `path`."""
    return path.with_name(f"{path.stem}.series{path.suffix}")


def write_parquet(path: Path, records: Mapping[str, Record]) -> list[Path]:
    """One row for each job and policy to `path`, one for each point of time and policy beside it;
    the files. Raises `Unsupported` without pyarrow, `OSError` where it cannot be written."""
    tables: Any = need("pyarrow", "Parquet")
    parquet: Any = need("pyarrow.parquet", "Parquet")
    written = []
    for target, columns in ((path, JOBS), (series_path(path), SERIES)):
        parts = [
            tables.table(
                {
                    "policy": tables.array(
                        [name] * len(getattr(record, next(iter(columns.values()))))
                    ),
                    **{c: tables.array(getattr(record, field)) for c, field in columns.items()},
                }
            )
            for name, record in records.items()
        ]
        parquet.write_table(tables.concat_tables(parts), target)
        written.append(target)
    return written
