"""Which cores worker and device proxies of a benchmark run on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from singularity_proxy.standalone import Standalone


def cores(count: int) -> set[int]:
    """The last `count` cores this process may use (fewer when there are fewer)."""
    return set(sorted(os.sched_getaffinity(0))[-count:])


def run_on(count: int, command: list[str], env: dict[str, str] | None = None) -> str:
    """Run `command` on `count` cores with one compute thread; what it printed."""
    done = subprocess.run(
        command,
        env={**(env or os.environ), "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, cores(count)),
        text=True,
    )
    return done.stdout


def pin_proxies(session: Standalone, count: int) -> None:
    """Every device proxy of `session`, running or spare, onto the cores of its worker."""
    for pid in session.all_pids():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores(count))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its threads so far, in steps of the clock of proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
