"""The wish to end a run, from SIGTERM, Ctrl-C or its time limit, at whatever moment it comes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .fates import Cancelled, Interrupted, TimedOut


class Stop:
    """Remembers the first signal that asks for the end and wakes whoever is told to wait for it.

    Python's own handlers and not the event loop's: a signal also comes while papermill is being
    imported, between two event loops and while the notebook is written.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._wake: Callable[[], Any] | None = None
        self._limit_s: int | None = None

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Handle the signals meanwhile. In a thread that is not the main one nothing is handled:
        Python forbids it."""
        before = {}
        for signum in (signal.SIGTERM, signal.SIGINT):
            try:
                before[signum] = signal.signal(signum, self._asked)
            except ValueError:
                break
        try:
            yield self
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    @contextmanager
    def limited(self, limit_s: int | None, left_s: int | None = None) -> Iterator[None]:
        """Ask for the end by itself after the run's time limit (None: never) unless this is left
        before; `left_s`: so much of it is left, None: all. The timer is the operating system's: a
        process image takes what is left of it along."""
        if limit_s is None:
            yield
            return
        self._limit_s = limit_s
        before = signal.signal(signal.SIGALRM, self._asked)
        signal.setitimer(signal.ITIMER_REAL, limit_s if left_s is None else left_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @contextmanager
    def waking(self, wake: Callable[[], Any]) -> Iterator[None]:
        """Call `wake` in the signal handler; at once when the signal came before."""
        self._wake = wake
        try:
            if self.signum is not None:
                wake()
            yield
        finally:
            self._wake = None

    def _asked(self, signum: int, _: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
            if self._wake is not None:
                self._wake()

    def fate(self, kept: str) -> Cancelled:
        """What the run ends with; `kept` says what there is of it."""
        if self.signum == signal.SIGALRM:
            return TimedOut(f"the run's time limit of {self._limit_s} s is over; {kept}")
        kind = Interrupted if self.signum == signal.SIGINT else Cancelled
        return kind(f"the run was cancelled; {kept}")
