"""How far the transfer of a session is, as its agent says several times a second. Never stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.model import SessionView

EVERY_S = 0.25
"""Listeners are told at most this often per session."""


class ProgressBoard:
    """Keeps the newest report of each session in `ClusterState.progress`."""

    def __init__(self, state: ClusterState, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._clock = clock
        self._told: dict[str, float] = {}
        self.on_change: Callable[[SessionView], None] = lambda view: None
        """Told of each change that listeners are to hear; must neither block nor fail."""

    def told(self, session: str, data: Mapping[str, Any]) -> None:
        """An agent's `checkpoint.progress`."""
        view = self._state.sessions.get(session)
        if view is None or view.final:
            return
        eta = data.get("eta_s")
        total = max(0, int(data["bytes_total"]))
        self._state.progress[session] = {
            "bytes_done": min(max(0, int(data["bytes_done"])), total),
            "bytes_total": total,
            "bytes_sent": max(0, int(data.get("bytes_sent") or 0)),
            "rate": max(0.0, float(data.get("rate") or 0.0)),
            "eta_s": None if eta is None else max(0.0, float(eta)),
        }
        now = self._clock()
        last = self._told.get(session)
        if last is None or now - last >= EVERY_S:
            self._told[session] = now
            self.on_change(view)

    def over(self, session: str) -> None:
        """The transfer has ended, well or not."""
        self._told.pop(session, None)
        told = self._state.progress.pop(session, None)
        view = self._state.sessions.get(session)
        if told is not None and view is not None:
            self.on_change(view)
