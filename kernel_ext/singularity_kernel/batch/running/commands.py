"""Runs a command, once or as several ranks, in a batch capsule."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from singularity_proxy.elastic import ranks as ranks_module

from .fates import BadRun, CommandFailed
from .stop import Stop

SIGNALLED = 128
"""Exit codes above say that a signal ended a process."""

GRACE_S = 10.0
"""From SIGTERM to SIGKILL, when a command does not end."""

OTHERS_S = 8.0
"""So long a part of a gang that failed keeps that to itself: maybe because another part was killed,
whose end begins a new attempt if it is known first."""


def run_command(command: str, ranks: int, stop: Stop, environ: Mapping[str, str]) -> None:
    """Run `command` with bash to its end, `ranks` times at once (0: once, as no rank); raises the
    `Fate` that it ends with when that is not success. The first rank that fails ends the others."""
    if stop.signum is not None:
        raise stop.fate("nothing was run")
    started = [_start(command, {**environ, **more}) for more in environments(ranks, environ)]
    with stop.waking(lambda: _end(started)):
        failed = _first_failure(started, _names(ranks, environ))
    if stop.signum is not None:
        raise stop.fate("what it wrote is kept")
    if failed is not None:
        _let_others_speak(failed, stop, environ)
        raise failed


def _let_others_speak(failed: CommandFailed, stop: Stop, environ: Mapping[str, str]) -> None:
    """Ranks fail when those of another part were killed. Of the two the killed part is heard
    first, and this one is ended then."""
    if ranks_module.part_of(environ)[1] > 1 and failed.code < SIGNALLED:
        ended = threading.Event()
        with stop.waking(ended.set):
            ended.wait(OTHERS_S)


def environments(ranks: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """What each rank gets more than `environ`, as `torchrun` names it; 0: one that gets nothing."""
    return [{}] if ranks == 0 else ranks_module.environments(ranks, environ)


def _names(ranks: int, environ: Mapping[str, str]) -> list[str]:
    """What each of the processes is called, for people."""
    if ranks * ranks_module.part_of(environ)[1] <= 1:
        return ["the command"]
    first = ranks_module.first_rank(ranks, environ)
    return [f"rank {rank} of the command" for rank in range(first, first + ranks)]


def _start(command: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(["bash", "-c", command], env=environ, start_new_session=True)
    except (OSError, ValueError) as error:
        raise BadRun(f"the command could not be started ({error}); nothing was run") from None


def _first_failure(
    started: Sequence[subprocess.Popen[bytes]], names: Sequence[str]
) -> CommandFailed | None:
    """Wait for all; the failure of the one that failed first."""
    failed = None
    left = {child.pid: place for place, child in enumerate(started)}
    while left:
        pid, status = os.wait()
        place = left.pop(pid, None)  # None: an orphan, when this is the capsule's first process
        if place is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        started[place].returncode = code
        if code and failed is None:
            who = names[place]
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            failed = CommandFailed(f"{who} ended with {how}", code if code > 0 else 128 - code)
            _end(started)
    return failed


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all that still run to end, and kill them when they do not. Called from a signal handler
    too."""
    _signal(started, signal.SIGTERM)
    last = threading.Timer(GRACE_S, _signal, (started, signal.SIGKILL))
    last.daemon = True
    last.start()


def _signal(started: Sequence[subprocess.Popen[bytes]], signum: int) -> None:
    for child in started:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signum)
