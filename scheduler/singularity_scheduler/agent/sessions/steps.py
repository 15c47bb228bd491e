"""How many steps a session has made, from what its workers show in their rings (`worker.steps`).

Several processes that train one model in step, one per device, make one step together, so the
session's count is that of the process which is furthest. One that begins later counts on from where
the session is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .record import Life

if TYPE_CHECKING:
    from singularity_scheduler.agent.node import Node

    from .live import LiveSession

MOST = 1 << 53
"""Larger numbers are none: the file belongs to its user."""


class StepCount:
    """Of one session. Pure."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        """ring -> steps that the session had made when it was first seen"""
        self._looked = False
        self.total = 0

    def look(self, shown: Mapping[str, int]) -> bool:
        """Take over what each ring shows; whether the session has made steps since."""
        known, before = self._before, self.total
        # Those that were there before this agent, or came with the session, count from their start.
        self._before = {
            ring: known.get(ring, before - count if self._looked else 0)
            for ring, count in shown.items()
        }
        self._looked = True
        counts = [self._before[ring] + count for ring, count in shown.items() if count < MOST]
        self.total = max([before, *counts])
        return self.total > before


def tell_steps(node: Node, live: LiveSession) -> None:
    """Tell the service how many steps the session has made; called twice a second."""
    if live.record.life is not Life.LIVE:
        return
    if live.steps.look({name: ring.file.steps() for name, ring in live.rings.rings.items()}):
        node.emit(live.record.session, "steps", count=live.steps.total)
