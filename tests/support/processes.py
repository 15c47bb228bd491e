"""Processes of the machine, as tests see and stop them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def state_of_task(folder: Path) -> str:
    """Read the letter in a process's or thread's `stat`: R, S, T (stopped), Z (ended), ..."""
    return (folder / "stat").read_text().rpartition(") ")[2][0]


def stop_process(pid: int) -> None:
    """Stop a process (SIGSTOP) and wait until each of its threads stands still.

    The signal alone is not enough: one thread takes it, and the others run on until that one has
    had its turn on a busy processor. A thread that is traced or ends counts as standing.
    """
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 30.0
    while running := _running_threads(pid):
        if time.monotonic() > end:
            raise TimeoutError(f"threads {running} of process {pid} do not stop")
        time.sleep(0)


def _running_threads(pid: int) -> list[str]:
    """Find the threads of a process that do not stand still; none when the process has ended."""
    running = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if state_of_task(task) not in "TtZX":
                    running.append(task.name)
    return running
