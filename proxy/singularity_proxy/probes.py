"""Questions to this machine that another process answers, and when such an answer counts.

One rule for all of them: an answer counts when whoever gave it came to its own end. A process that
was ended by a signal, that took too long, or that could not be started for want of processes,
memory, files or disk has said nothing about the machine. It is asked again, a few times; what says
nothing even then is told as that (`CutShort`), and nobody may keep it as the answer.

A process that crashes by itself each time (SIGSEGV, SIGABRT) has answered: it does not work here.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

TRIES = 3
"""So often a question is asked that is not answered."""

PAUSE_S = 0.3
"""Pause behind the first try; it doubles."""

GIVE_UP_S = 30.0
"""No further try begins so long after the first began."""

PASSING = frozenset(
    {
        *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETXTBSY, errno.ETIMEDOUT),
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
    }
)
"""Error numbers that tell of this moment and not of the machine."""

_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
)


class CutShort(Exception):
    """A probe did not come to its end; the text says why, as the end of a sentence. `crashed`: by
    its own fault, so that it counts as an answer when it is the same each time."""

    def __init__(self, why: str, *, crashed: bool = False) -> None:
        super().__init__(why)
        self.crashed = crashed


def is_passing(error: OSError) -> bool:
    """Whether the error may be gone at the next try, whatever the machine can do."""
    return error.errno in PASSING


def check_ended(code: int | None) -> None:
    """Raise `CutShort` unless `code` is the exit code of a process that ended by itself. None: it
    was ended because it took too long; negative: by that signal."""
    if code is None:
        raise CutShort("it did not answer in time")
    if code < 0:
        name = signal.strsignal(-code) or "unknown"
        crashed = -code in _CRASHES
        raise CutShort(f"it was ended by signal {-code} ({name})", crashed=crashed)


def run_probe(
    argv: Sequence[str | os.PathLike[str]], limit_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a probe to its end, with `options` of `subprocess.run`; its output is kept as text.
    Raises `CutShort`, and `OSError` when it can never be started."""
    kept: Mapping[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        **options,
    }
    try:
        done = subprocess.run(
            argv, text=True, errors="replace", timeout=limit_s, check=False, **kept
        )
    except subprocess.TimeoutExpired:
        raise CutShort(f"it did not answer within {limit_s:.0f} s") from None
    except OSError as error:
        if not is_passing(error):
            raise
        raise CutShort(f"it could not be started ({error.strerror})") from None
    check_ended(done.returncode)
    return done


def ask_again(probe: Callable[[], T], *, tries: int = TRIES, pause_s: float = PAUSE_S) -> T:
    """The answer of `probe`, asked again while it is cut short. Blocks. Raises `CutShort` as the
    last try did."""
    began = time.monotonic()
    while True:
        tries -= 1
        try:
            return probe()
        except CutShort:
            if tries <= 0 or time.monotonic() - began > GIVE_UP_S:
                raise
        time.sleep(pause_s)
        pause_s *= 2
