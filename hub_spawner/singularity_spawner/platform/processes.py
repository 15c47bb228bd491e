"""Finds and ends every process of one run of the platform.

Each carries the mark of its run in its environment (`settings.MARK`), inherited from the Hub or
set by the Spawner, and is found by reading /proc: also one whose parents were killed. Children
that dropped the mark are found through their parents.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from singularity_spawner.proc import Process, read_process

from .settings import MARK

_AGENT = b"singularity_scheduler.agent"
_SERVICE = b"singularity_scheduler.service"
"""The modules that a node agent and the scheduler service run, as they stand in their arguments."""

_SERVICE_SECONDS = 1.0
"""How long the service gets to end before its agent is asked to: it would start another one."""


def all_processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := read_process(int(entry))) is not None:
            yield process


def of_run(instance: str) -> set[Process]:
    """The living processes of the run `instance`, never this one; zombies do not count."""
    if not instance:
        return set()
    wanted = f"{MARK}={instance}".encode()
    living = {process.pid: process for process in all_processes() if not process.zombie}
    living.pop(os.getpid(), None)
    marked = {pid for pid in living if _has_variable(pid, wanted)}
    while more := {p.pid for p in living.values() if p.parent in marked} - marked:
        marked |= more
    return {living[pid] for pid in marked}


def _has_variable(pid: int, wanted: bytes) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return wanted in environ.split(b"\0")


def agents_of(run: Iterable[Process]) -> tuple[set[Process], set[Process]]:
    """The node agents of `run`, and the processes below them. Those are the agent's to end: it
    starts a device proxy anew that was ended behind its back."""
    by_pid = {process.pid: process for process in run}
    agents = {pid for pid in by_pid if _AGENT in arguments(pid)}
    below = set(agents)
    while more := {p.pid for p in by_pid.values() if p.parent in below} - below:
        below |= more
    return {by_pid[pid] for pid in agents}, {by_pid[pid] for pid in below - agents}


def arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def send(processes: Iterable[Process], signum: int) -> None:
    """Signal those of `processes` that still live (same pid and start time)."""
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.started == process.started and not now.zombie:
            try:
                os.kill(process.pid, signum)
            except (ProcessLookupError, PermissionError):
                continue


async def wait_gone(instance: str, seconds: float) -> set[Process]:
    """Wait until the run has no process left, at most `seconds`; what is left then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while left := of_run(instance):
        if loop.time() >= deadline:
            break
        await asyncio.sleep(0.05)
    return left


async def end_run(instance: str, term_seconds: float) -> set[Process]:
    """Ask every process of the run to end, in an order that loses nothing (Hub, service and
    servers; then the agents, which end what is below them); kill it after `term_seconds`.

    Returns what survived even that (in uninterruptible sleep), normally nothing.
    """
    loop = asyncio.get_running_loop()
    kill_at = loop.time() + term_seconds
    run = of_run(instance)
    agents, below = agents_of(run)
    send(run - agents - below, signal.SIGTERM)
    services = {process for process in run if _SERVICE in arguments(process.pid)}
    agents_at = min(kill_at, loop.time() + _SERVICE_SECONDS)
    while services & of_run(instance) and loop.time() < agents_at:
        await asyncio.sleep(0.02)
    send(agents, signal.SIGTERM)
    left = await wait_gone(instance, kill_at - loop.time())
    for _ in range(10):  # a process that forks while it is hunted needs another round
        if not left:
            break
        send(left, signal.SIGKILL)
        left = await wait_gone(instance, 0.3)
    return left
