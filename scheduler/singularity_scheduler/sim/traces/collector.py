"""Turns the jobs of a file into a `Trace`: unique names, order of submission, time from 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from .records import BadTrace, Job, Trace
from .table import Row


class Collector:
    """Filled by a reader with jobs in any order; their `submit_s` may start anywhere and their
    `id` says nothing yet."""

    def __init__(self, path: str | Path) -> None:
        self.file = Path(path).name
        self.jobs: list[Job] = []
        self.skipped: Counter[str] = Counter()
        self._names: dict[str, int] = {}

    def add(self, row: Row, job: Job, column: str | None = None) -> None:
        """Take one job; `column` is where its name comes from. A name may be there only once."""
        if column is not None:
            before = self._names.setdefault(job.name, row.number_in_file)
            if before != row.number_in_file:
                raise row.bad(f"{column} {job.name[:60]!r} is the same as in row {before}", column)
        self.jobs.append(job)

    def skip(self, why: str) -> None:
        """A row that is no job here, by the format's rules; counted in `Trace.skipped`."""
        self.skipped[why] += 1

    def trace(self, format: str, facts: Mapping[str, Any] | None = None) -> Trace:
        """The jobs in order of submission (ties: as in the file), the first one at 0."""
        if not self.jobs:
            why = "; ".join(f"{count} rows: {what}" for what, count in self.skipped.items())
            raise BadTrace(
                f"{self.file} has no job that can be replayed" + (f" ({why})" if why else ""),
                file=self.file,
            )
        self.jobs.sort(key=attrgetter("submit_s"))
        start = self.jobs[0].submit_s
        for number, job in enumerate(self.jobs):
            job.id = number
            job.submit_s -= start
        return Trace(
            name=self.file,
            jobs=self.jobs,
            count=len(self.jobs),
            span_s=self.jobs[-1].submit_s,
            skipped=dict(self.skipped),
            facts={"format": format, **(facts or {})},
        )
