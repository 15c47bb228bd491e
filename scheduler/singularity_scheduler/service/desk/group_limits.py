"""Sees that groups end when their time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.steps.endings import late_groups
from singularity_scheduler.core.values import events as ev

PERIOD_S = 1.0
"""A group ends at most so much after its time."""


class GroupLimits:
    """One per controller. `report` returns when what it was told is durable."""

    def __init__(
        self,
        state: ClusterState,
        report: Callable[[list[ev.Event]], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._state = state
        self._report = report
        self._clock = clock

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            late = late_groups(self._state, self._clock())
            await self._report([ev.GroupLate(group) for group in late])
