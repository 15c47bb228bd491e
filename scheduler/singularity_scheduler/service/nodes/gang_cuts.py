"""The parts of a gang that are stored together: each is, as soon as the ranks of all stand.

Part of `transfers`. Each part's command comes here by itself. The first opens the cut, the last
one that comes has all ranks stopped (`gang_barrier`), and they go on, where something of them is
left, when every command has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from singularity_proxy.errors import BarrierFailed, SingularityError

from singularity_scheduler.core.values import events as ev
from singularity_scheduler.service.ports import Fleet

from .gang_barrier import PartAt, standing

log = logging.getLogger("singularity.service")

GATHER_S = 10.0
"""The commands of one decision come at once; one that does not come so soon never will."""

REACH_S = 20.0
"""Seconds that the ranks may take to come to one place; as an agent's `barrier_s`."""

Key = tuple[str, ...]

Stores = ev.Suspend | ev.TakeCheckpoint
"""The commands that store a part."""


class _Cut:
    """One of them, from its first command to the end of its last one."""

    def __init__(self, sessions: Key) -> None:
        self.missing = set(sessions)
        """Whose commands have not come yet."""
        self.busy = set(sessions)
        """Whose commands have not ended yet."""
        self.parts: list[Stores] = []
        self.came = asyncio.Event()
        self.ended = asyncio.Event()
        self.stand: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class GangCuts:
    """One per commander."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._open: dict[Key, _Cut] = {}
        self._last: dict[Key, asyncio.Task[None]] = {}
        """What was asked last of a gang: one cut at a time, so that no part is stored at the place
        of another one."""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def standing(self, action: Stores) -> AsyncIterator[None]:
        """The ranks of all sessions of `action.cut` stand when this begins, and until this has
        ended for each of them. () : nothing is done. Raises as `gang_barrier.standing`, the same
        for all of them."""
        if not action.cut:
            yield
            return
        cut = self._open.get(action.cut)
        if cut is None or action.session not in cut.missing:
            cut = self._open[action.cut] = _Cut(action.cut)
            before = self._last.get(action.cut)
            task = asyncio.ensure_future(self._hold(action.cut, cut, before))
            self._last[action.cut] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._done(action.cut, done))
        cut.missing.discard(action.session)
        cut.parts.append(action)
        if not cut.missing:
            cut.came.set()
        try:
            await asyncio.shield(cut.stand)
            yield
        finally:
            cut.busy.discard(action.session)
            if not cut.busy:
                cut.ended.set()

    async def close(self) -> None:
        """Let go of what stands; the agents would do so by themselves."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, key: Key, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._last.get(key) is task:
            del self._last[key]

    async def _hold(self, key: Key, cut: _Cut, before: asyncio.Task[None] | None) -> None:
        try:
            await self._all_here(cut)
            if self._open.get(key) is cut:
                del self._open[key]
            if before is not None:
                await asyncio.wait([before])
            parts = [PartAt(self._fleet, a.node, a.session, a.epoch) for a in cut.parts]
            async with standing(parts, REACH_S):
                cut.stand.set_result(None)
                await cut.ended.wait()
        except SingularityError as error:
            if cut.stand.done():
                raise
            cut.stand.set_exception(error)
        except Exception as error:  # a fault of ours: whoever waits here is told all the same
            if cut.stand.done():
                raise
            log.error("the parts of a gang could not be stopped", exc_info=error)
            sentence = "the parts of the gang could not be stopped; all of them go on: try again"
            cut.stand.set_exception(BarrierFailed(sentence))
        finally:
            if self._open.get(key) is cut:
                del self._open[key]
            cut.stand.cancel()

    async def _all_here(self, cut: _Cut) -> None:
        try:
            async with asyncio.timeout(GATHER_S):
                await cut.came.wait()
        except TimeoutError:
            left = ", ".join(sorted(cut.missing))
            raise BarrierFailed(
                f"the parts of the gang were not stopped, because {left} did not come along; "
                "nothing was changed and all of them go on: try again"
            ) from None
