"""How far a transfer has come, for people: bytes, rate, time to go."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_INTERVAL_S = 0.1
_WINDOW_S = 5.0


@dataclass(frozen=True)
class Progress:
    """Bytes of the checkpoint's files that are dealt with, of all, and sent (or received); bytes
    per second of the last seconds; seconds to go, None while that cannot be told."""

    bytes_done: int
    bytes_total: int
    bytes_sent: int
    rate: float
    eta_s: float | None


OnProgress = Callable[[Progress], None]


class Meter:
    """Counts, and tells `report` ten times a second at most; used by many threads."""

    def __init__(self, report: OnProgress | None, clock: Callable[[], float] = time.monotonic):
        self._report, self._clock = report, clock
        self._lock = threading.Lock()
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._next = 0.0
        self.total = self.done = self.sent = 0

    def add(self, done: int = 0, sent: int = 0) -> None:
        """So many more bytes."""
        with self._lock:
            self.done += done
            self.sent += sent
            now = self._clock()
            if self._report is None or now < self._next:
                return
            self._next = now + _INTERVAL_S
            progress = self._progress(now)
            # Under the lock, so that what is told never goes backwards.
            self._report(progress)

    def finish(self) -> None:
        """Tell the last figures."""
        if self._report is not None:
            with self._lock:
                self._report(self._progress(self._clock()))

    def _progress(self, now: float) -> Progress:
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and self._marks[0][0] < now - _WINDOW_S:
            self._marks.popleft()
        (since, before) = self._marks[0]
        rate = (self.done - before) / (now - since) if now > since else 0.0
        left = self.total - self.done
        eta = 0.0 if left <= 0 else left / rate if rate > 0 else None
        return Progress(self.done, self.total, self.sent, rate, eta)
