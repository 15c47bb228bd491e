"""Starts a run again, from its beginning, when a process of it was killed.

The runner is then a child of this process, which does nothing else: what a kill, the kernel's
out-of-memory killer or a crash can hit is the runner, its kernel or its command. What such an
attempt left running is ended before the next one starts, so no two of them run at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.capsule.tree import descendants

from .fates import KernelDied
from .stop import Stop

KILLED = 128
"""An exit code above says that a signal ended a process."""

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02


def run_with_retries(description: dict[str, Any], stop: Stop, say: Callable[[str], None]) -> int:
    """Run `description` to its end, as often as its ``max_retries`` allows; returns the exit code
    of the last attempt. The time limit is for all of them together."""
    _adopt_orphans()
    retries, began = description["max_retries"], time.monotonic()
    for attempt in range(retries + 1):
        if stop.signum is not None:
            say("the run was cancelled; nothing more was run")
            return 143
        code = _attempt(description, began, stop)
        _end_leftovers()
        if stop.signum is not None or not _was_killed(code):
            return code if code >= 0 else KILLED - code
        what = "its kernel died" if code == KernelDied.exit_code else f"signal {_signal(code)}"
        if attempt == retries:
            break
        kept = _keep_output(description, attempt + 1)
        say(f"attempt {attempt + 1} of {retries + 1} was ended ({what}): it starts again{kept}")
    say(f"the run was ended in each of its {retries + 1} attempts (the last time: {what})")
    return code if code >= 0 else KILLED - code


def _attempt(description: dict[str, Any], began: float, stop: Stop) -> int:
    limit = description["timeout_s"]
    if limit is not None:
        limit = max(1, round(limit - (time.monotonic() - began)))
    told = {**description, "max_retries": 0, "timeout_s": limit}
    child = subprocess.Popen(
        [sys.executable, "-m", "singularity_kernel.batch"],
        env={**os.environ, "RUN_DESCRIPTION": json.dumps(told)},
    )
    with stop.waking(lambda: _tell(child)):
        return child.wait()


def _tell(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)


def _was_killed(code: int) -> bool:
    return code < 0 or code > KILLED or code == KernelDied.exit_code


def _signal(code: int) -> int:
    return -code if code < 0 else code - KILLED


def _keep_output(description: dict[str, Any], attempt: int) -> str:
    """Put the output of an attempt aside, so that the next one does not replace it; says so."""
    output = description.get("output")
    if not output or not os.path.exists(output):
        return ""
    kept = f"{output.removesuffix('.ipynb')}-attempt-{attempt}.ipynb"
    try:
        os.replace(output, kept)
    except OSError:
        return ""
    return f"; what it had done is kept in {kept}"


def _adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(ctypes.c_int(_PR_SET_CHILD_SUBREAPER), ctypes.c_ulong(1), 0, 0, 0)


def _end_leftovers() -> None:
    """Kill and reap everything below this process, however it multiplies."""
    while True:
        for member in descendants(ProcessIdentity.of(os.getpid())):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member.identity.pid, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(_POLL_S)
