"""Stops all ranks of a gang at one place, so that its parts can be stored.

At such a place nothing is on its way between the parts: each may be suspended, or saved, by itself,
and what all of them stored fits together. The place is found as for the ranks of one session
(`elastic.coordinator`), with the agents of the parts in the places of device proxies.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from singularity_proxy.elastic.coordinator import Barrier, Cut
from singularity_proxy.errors import BarrierFailed

from singularity_scheduler.service.ports import Fleet

HOLD_LIMIT_S = 60.0
"""An agent answers so long after a call's own limit at the latest: it may be in the middle of
something with the session, such as putting a new device proxy in the place of one that ended."""


@dataclass(frozen=True)
class PartAt:
    """A part of a gang at the agent of its node, as the barrier calls it (`Stoppable`)."""

    fleet: Fleet
    node: str
    session: str
    epoch: int

    async def barrier_ask(self) -> Mapping[str, Any]:
        return await self._call("ask", 0.0)

    async def barrier_hold(
        self, targets: Mapping[str, int], deadline_s: float, grace_s: float
    ) -> Mapping[str, Any]:
        more = {"targets": dict(targets), "deadline_s": deadline_s, "grace_s": grace_s}
        return await self._call("hold", deadline_s, **more)

    async def barrier_release(self) -> Mapping[str, Any]:
        return await self._call("release", 0.0)

    async def _call(self, call: str, limit_s: float, **more: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.fleet.call(
            self.node,
            "session.barrier",
            timeout=limit_s + HOLD_LIMIT_S,
            session=self.session,
            epoch=self.epoch,
            call=call,
            **more,
        )
        return answer


@contextlib.asynccontextmanager
async def standing(parts: Iterable[PartAt], deadline_s: float) -> AsyncIterator[Cut]:
    """All ranks of all parts stand at one place for as long as this lasts; meanwhile the parts take
    `session.suspend` and `session.checkpoint` with ``standing: true``, each once. They go on
    afterwards, and as soon as such a command of their part has ended.

    Raises `BarrierFailed` when they do not come together within `deadline_s` seconds, or do not
    form their process groups yet, and what an agent raised (`Conflict`: a part has no devices;
    `Unavailable`: a node, or a device proxy, is gone just now). Then all of them go on."""
    async with Barrier(parts, part=True) as barrier:
        cut = await barrier.reach(deadline_s)
        if why := _not_whole(cut):
            raise BarrierFailed(
                f"the ranks of the gang {why}, so what its parts store would not fit together; "
                "nothing was changed and all of them go on: try again later",
                contributed=cut.contributed,
            )
        yield cut


def _not_whole(cut: Cut) -> str:
    """ "" when all ranks of all groups stand, else why not."""
    if not cut.groups:
        return "have formed no process group on their devices yet"
    missing = [group for group in cut.groups if group.elsewhere]
    if missing:
        return f"are forming the process group '{missing[0].name}', or leave it"
    return ""
