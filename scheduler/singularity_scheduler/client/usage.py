"""The words of accounting: what sessions are summed by, what is counted, and the same as CSV.

Used by the service for its answers and by the command line for files and tables. Pure.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

BY: dict[str, str] = {
    "user": "user",
    "virtual_cluster": "virtual cluster; null: sessions of none",
    "experiment": "`experiment_name` of the job file; null: sessions without one",
    "tier": "SLA tier",
    "day": "day, in UTC",
    "session": "not at all: one line for each session",
}
"""What is summed -> what its lines are."""

FIGURES: dict[str, str] = {
    "sessions": "Sessions that there were.",
    "queued_s": "Seconds that runs waited to be started.",
    "waiting_s": "Seconds that running code waited for devices.",
    "device_s": "Device-seconds: devices under a lease, times how long.",
    "parked_s": "Seconds that device state was kept in the host's memory.",
    "suspended_s": "Seconds that sessions were in the store, or on their way there or back.",
    "preemptions": "Times that devices were taken for another session, or by `preempt`.",
    "checkpoints": "Checkpoints that were made.",
    "stored_bytes": "Bytes that these take in the store, shared ones included.",
    "sent_bytes": "Bytes that had to be sent for them.",
}
"""Each figure -> what it says of a line."""

OF_SESSION = (
    "session",
    "user",
    "name",
    "kind",
    "tier",
    "virtual_cluster",
    "experiment",
    "virtual_devices",
    "created_at",
)
"""What a line of one session says of it, before the figures."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet compute a text."""


def columns(by: str) -> tuple[str, ...]:
    """The names in a line, in order."""
    return (*(OF_SESSION if by == "session" else (by,)), *FIGURES)


def to_csv(by: str, rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    """Lines of accounting as CSV (RFC 4180); what a spreadsheet would take for a formula gets an
    apostrophe before it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    names = columns(by)
    if header:
        writer.writerow(names)
    writer.writerows([cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """`value` as CSV has it."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
