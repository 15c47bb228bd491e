"""Small tools for the agent's own child processes: probes with an answer, and orphans.

The agent starts everything through `capsule.launcher.spawn` and learns of every end through
pidfds; it never uses asyncio's subprocesses, whose child watcher would compete for exit codes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Sequence

from singularity_proxy.capsule.launcher import CapsuleSpec, helper_environment, spawn
from singularity_proxy.capsule.process import ProcessWatch, processes_with
from singularity_proxy.capsule.tree import children
from singularity_proxy.errors import NoSpace, Unavailable
from singularity_proxy.probes import PAUSE_S, TRIES, CutShort, check_ended

PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""


def adopt_orphans() -> None:
    """Make this process the parent of everything that its descendants leave behind (prctl(2)),
    and reap it, so that a daemon a user's code forked is never a zombie. Called once at start."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(ctypes.c_int(PR_SET_CHILD_SUBREAPER), ctypes.c_ulong(1), 0, 0, 0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, reap_orphans)


ORPHAN_S = 5.0
"""An ended child that nobody watches and nobody has waited for after this long is an orphan. Until
then it may be a helper (CRIU, tar, a compiler) for whose exit status a thread of ours waits: who
reaps that makes every failure of a helper look like a success."""

_ended_at: dict[int, float] = {}
"""Ended children that nobody watches, and since when (CLOCK_MONOTONIC)."""


def reap_orphans() -> None:
    """Reap every child that has ended: watched ones at once through their watches, which keep the
    code; others when nobody has waited for them within `ORPHAN_S`."""
    now, left = time.monotonic(), set()
    for pid in children(os.getpid()):
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            continue  # somebody else waited for it just now
        if ended is None or ProcessWatch.settle(pid):
            continue
        if now - _ended_at.setdefault(pid, now) < ORPHAN_S:
            left.add(pid)
            continue
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    for pid in set(_ended_at) - left:
        del _ended_at[pid]
    if left:
        asyncio.get_running_loop().call_later(ORPHAN_S, reap_orphans)


async def end_process(watch: ProcessWatch, grace_s: float, signum: int = signal.SIGTERM) -> None:
    """Ask one process to end, then make it; returns when it is gone."""
    if watch.alive and grace_s > 0:
        watch.signal(signum)
        await watch.wait(grace_s)
    watch.signal(signal.SIGKILL)
    await watch.wait(10)


async def end_marked(marker: bytes, *, in_environment: bool = True, beside_us: bool = False) -> int:
    """Kill every process that carries `marker` (see `processes_with`) until none is left; returns
    how many there were. Looks again, because a process may fork while we look."""
    ended = 0
    for _ in range(20):
        watches = [
            ProcessWatch(identity)
            for identity in processes_with(
                marker, in_environment=in_environment, beside_us=beside_us
            )
            if identity.pid != os.getpid()
        ]
        watches = [watch for watch in watches if watch.alive]
        if not watches:
            return ended
        for watch in watches:
            watch.signal(signal.SIGKILL)
        await asyncio.wait([asyncio.ensure_future(watch.wait(5)) for watch in watches])
        ended += len(watches)
    return ended


async def ask_process(
    argv: Sequence[str],
    folder: str,
    *,
    uid: int | None = None,
    gid: int | None = None,
    timeout: float = 120.0,
    tries: int = TRIES,
) -> tuple[int, str]:
    """Run a short probe and return (exit code, what it printed). `folder` takes its output for the
    while. One that was cut short (`probes`) is asked again; raises `CutShort` when that happens
    `tries` times; one that takes longer than `timeout` seconds is asked once more at most."""
    pause = PAUSE_S
    while True:
        tries -= 1
        try:
            code, said = await _ask_once(argv, folder, uid, gid, timeout)
            tries = tries if code is not None else min(tries, 1)
            check_ended(code)
            assert code is not None
            return code, said
        except (NoSpace, Unavailable) as error:  # of `spawn`
            if tries <= 0:
                raise CutShort(error.message) from None
        except CutShort:
            if tries <= 0:
                raise
        await asyncio.sleep(pause)
        pause *= 2


async def _ask_once(
    argv: Sequence[str], folder: str, uid: int | None, gid: int | None, timeout: float
) -> tuple[int | None, str]:
    path = os.path.join(folder, f"probe-{os.urandom(4).hex()}")
    env = helper_environment(os.environ)
    try:
        watch = ProcessWatch(
            spawn(CapsuleSpec(argv=argv, env=env, cwd="/", log_path=path, uid=uid, gid=gid))
        )
        if not await watch.wait(timeout):
            await end_process(watch, 0)
            return None, ""
        return watch.exit_code, _text(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
