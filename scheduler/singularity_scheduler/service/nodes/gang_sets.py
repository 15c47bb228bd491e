"""The checkpoints that the parts of a gang store at one place become a set, or are dropped.

Part of `transfers`. Each part's command comes here by itself. They are stored where the ranks of
all stand (`gang_cuts`); when the last command has ended, what became of all is told in one event,
so the ledger has a set as a whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from singularity_proxy.errors import Conflict

from singularity_scheduler.core.state.stored import CheckpointRef
from singularity_scheduler.core.values import events as ev

from .gang_cuts import GangCuts


class _Set:
    """One of them, from its first command to the end of its last one."""

    def __init__(self, sessions: tuple[str, ...]) -> None:
        self.busy = set(sessions)
        """Whose commands have not ended yet."""
        self.parts = len(sessions)
        self.stored: list[tuple[str, CheckpointRef]] = []
        self.whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class GangSets:
    """One per commander. `report` takes what became of a set."""

    def __init__(self, cuts: GangCuts, report: Callable[[ev.Event], Awaitable[None]]) -> None:
        self._cuts = cuts
        self._report = report
        self._open: dict[str, _Set] = {}

    async def store(
        self, action: ev.TakeCheckpoint, take: Callable[[], Awaitable[CheckpointRef]]
    ) -> CheckpointRef:
        """Store this part by `take`. Returns when the set is whole and known to be; raises what
        `take` raised, `BarrierFailed` where the ranks could not be stopped, and `Conflict` when
        another part was not stored. The gang goes on in any case."""
        known = self._open.setdefault(action.set_id, _Set(action.cut))
        try:
            async with self._cuts.standing(action):
                reference = await take()
                known.stored.append((action.session, reference))
                await self._end(action, known)
        except asyncio.CancelledError:  # the service stops: the next one knows nothing of it
            self._open.pop(action.set_id, None)
            raise
        except BaseException:
            await self._end(action, known)
            raise
        if not await asyncio.shield(known.whole):
            raise Conflict(
                f"the checkpoint of session {action.session} was dropped, because another part of "
                "its gang could not be stored at the same place; all of them go on: try again",
                session=action.session,
            )
        return reference

    async def _end(self, action: ev.TakeCheckpoint, known: _Set) -> None:
        known.busy.discard(action.session)
        if known.busy or known.whole.done():
            return
        self._open.pop(action.set_id, None)
        whole = len(known.stored) == known.parts
        if known.stored:
            stored = tuple(sorted(known.stored, key=lambda one: action.cut.index(one[0])))
            await self._report(ev.SetStored(action.set_id, stored, whole))
        known.whole.set_result(whole)
