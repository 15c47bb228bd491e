"""One process as /proc shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same pid by its start time (clock ticks)."""

    pid: int
    started: int
    parent: int
    zombie: bool


def read_process(pid: int) -> Process | None:
    """What /proc says of `pid` now; None when there is no such process. Raises `OSError` when that
    cannot be told now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), fields[0] in (b"Z", b"X"))
