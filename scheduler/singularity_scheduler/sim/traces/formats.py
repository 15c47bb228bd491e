"""`open_trace`: which format a file has, and its reader."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .logs import clusters, gavel, openb, pai, peers, philly
from .records import BadTrace, Trace
from .table import PLAIN, ReadOptions, lines

Reader = Callable[[str | Path, ReadOptions], Trace]


@dataclass(frozen=True, slots=True)
class Format:
    """One format. `columns` are those that its header must have; () where it has no CSV header."""

    read: Reader
    columns: tuple[str, ...]
    what: str


FORMATS = {
    "philly": Format(philly.read_philly, philly.COLUMNS, "Philly as CSV"),
    "philly-log": Format(philly.read_philly_log, (), "Philly's raw cluster_job_log"),
    "openb": Format(openb.read_openb, openb.POD_COLUMNS, "Alibaba openb pods"),
    "pai": Format(pai.read_pai, (), "Alibaba PAI 2020 tasks"),
    "gavel": Format(gavel.read_gavel, (), "Gavel"),
    "tiresias": Format(peers.read_tiresias, peers.TIRESIAS, "Tiresias and NotebookOS"),
    "pollux": Format(peers.read_pollux, peers.POLLUX, "Pollux and Sia"),
    "helios": Format(clusters.read_helios, clusters.HELIOS, "Helios"),
    "acme": Format(clusters.read_acme, clusters.ACME, "Acme"),
}
"""name -> format, in the order in which they are tried."""


def open_trace(path: str | Path, format: str | None = None, options: ReadOptions = PLAIN) -> Trace:
    """The trace in `path`, plain or gzip; None finds the format by the first row. Raises `BadTrace`
    with one sentence, file and row, also for a format that is not known."""
    name = find_format(path) if format is None else format
    if name not in FORMATS:
        raise BadTrace(
            f"unknown format {name[:40]!r}: known are {', '.join(FORMATS)}", file=Path(path).name
        )
    return FORMATS[name].read(path, options)


def find_format(path: str | Path) -> str:
    """The name of the format that the first row of a file fits best; a CSV that has at least half
    of a format's columns counts, so that its reader can say which one is missing."""
    file = Path(path).name
    first = next(lines(path))
    if first.lstrip()[:1] in ("[", "{"):
        return "philly-log"
    if gavel.is_gavel(first):
        return "gavel"
    if pai.is_pai(first):
        return "pai"
    try:
        header = {cell.strip() for cell in next(csv.reader([first]), [])}
    except csv.Error:
        header = set()
    if set(openb.NODE_COLUMNS) <= header:
        raise BadTrace(f"{file} is a list of nodes: give the list of jobs", file=file, row=1)
    fits = {
        name: len(header & set(form.columns)) / len(form.columns)
        for name, form in FORMATS.items()
        if form.columns
    }
    best = max(fits, key=lambda name: fits[name])
    if fits[best] < 0.5:
        known = ", ".join(f"{name} ({form.what})" for name, form in FORMATS.items())
        raise BadTrace(
            f"{file} row 1 is the header of no known trace; known formats are {known}",
            file=file,
            row=1,
        )
    return best
