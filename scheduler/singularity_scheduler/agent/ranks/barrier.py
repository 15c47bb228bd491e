"""Has all ranks of a session stop together: where its processes form process groups, its rings may
only be parked, moved or saved where each rank has taken part in the same collectives.

`singularity_proxy.elastic` finds such a place; here is when it is asked. A session without groups
costs one question to each of its device proxies.

A part of a gang may stand by a barrier over all parts as well, which the service holds (`joint`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from singularity_proxy.elastic.coordinator import Barrier, Cut
from singularity_proxy.errors import Conflict, NotFound, SingularityError, Unavailable, Unsupported

from singularity_scheduler.agent.devices.proxies import Proxy
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import SessionRecord

from .joint import Joint

log = logging.getLogger("singularity.agent")


@dataclass(frozen=True)
class Ranks:
    """A device proxy as the barrier calls it (`elastic.coordinator.Stoppable`)."""

    proxy: Proxy

    async def barrier_ask(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.proxy.call("barrier_ask")
        return answer

    async def barrier_hold(
        self, targets: Mapping[str, int], deadline_s: float, grace_s: float
    ) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.proxy.call(
            "barrier_hold",
            timeout=deadline_s + 60.0,
            targets=dict(targets),
            deadline_s=deadline_s,
            grace_s=grace_s,
        )
        return answer

    async def barrier_release(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.proxy.call("barrier_release")
        return answer


@contextlib.asynccontextmanager
async def together(
    live: LiveSession, barrier_s: float, *, standing: bool = False
) -> AsyncIterator[Cut | None]:
    """All ranks of the session stand for as long as this lasts; None: it has no process groups, and
    nothing of it stands. The caller holds the session's lock. Raises `BarrierFailed` when they do
    not come together within `barrier_s` seconds, and `Unavailable` when a proxy ends meanwhile;
    then all of them go on. `Unsupported` when its proxies know no barrier, `Conflict` when it
    ends. `standing`: they stand for their whole gang already, and go on afterwards; `Conflict` when
    they do not. Whoever comes in between without it lets go of a gang's barrier."""
    joint = joint_of(live)
    if standing:
        if joint is None:
            raise not_standing(live.record)
        joint.use()
        try:
            yield None
        finally:
            await end_joint(live)
        return
    if joint is not None:
        log.warning(
            "session %s: its devices change, so its gang stands no more", live.record.session
        )
        await end_joint(live)
    if live.barrier is not None or not await grouped(live):
        yield None  # whoever holds it lets go of it
        return
    proxies = [Ranks(proxy) for proxy in live.proxies.values()]
    async with Barrier(proxies, part=live.record.part is not None) as barrier:
        try:
            cut = await barrier.reach(barrier_s)
        except NotFound:
            raise Unsupported(
                f"session {live.record.session} goes on as it was: its processes form a process "
                "group (torch.distributed), whose ranks its device proxies cannot stop together",
                session=live.record.session,
            ) from None
        except Unavailable:
            live.record.check_live()  # its end takes its proxies along
            raise Unavailable(
                f"session {live.record.session} goes on as it was: a device proxy ended while its "
                "ranks were being stopped, and another one takes over; try again",
                session=live.record.session,
            ) from None
        live.barrier = barrier
        try:
            yield cut
        finally:
            live.barrier = None


async def join(live: LiveSession, proxy: Proxy) -> None:
    """Have a proxy that is new behind the session hold its ranks as well, if they stand."""
    if live.barrier is not None:
        await live.barrier.join(Ranks(proxy))


def forget(live: LiveSession, proxy: Proxy) -> None:
    """The proxy has ended: it holds nobody any more."""
    if live.barrier is not None:
        with contextlib.suppress(ValueError):  # it came to nothing before it held any
            live.barrier.forget(Ranks(proxy))


async def let_go(live: LiveSession) -> None:
    """Let ranks go on that an agent before this one had stopped."""
    if await grouped(live):
        for proxy in live.proxies.values():
            with contextlib.suppress(NotFound, Unavailable):
                await Ranks(proxy).barrier_release()


async def grouped(live: LiveSession) -> bool:
    """Whether processes of the session form process groups. A proxy that is gone says nothing:
    the others, or their recovery, know."""
    for proxy in list(live.proxies.values()):
        with contextlib.suppress(Unavailable):
            stats = await proxy.call("stats", timeout=30.0)
            if any(ring.get("groups") for ring in stats.get("rings", {}).values()):
                return True
    return False


def joint_of(live: LiveSession) -> Joint | None:
    """The gang's barrier by which the ranks stand, unless a command has taken it over."""
    barrier = live.barrier
    return barrier if isinstance(barrier, Joint) and not barrier.used else None


def not_standing(record: SessionRecord) -> Conflict:
    """What a command is told that needs all ranks of a gang to stand."""
    return Conflict(
        f"session {record.session} goes on as it is: its ranks do not stand together with those of "
        "the other parts of its gang (any more), so what is stored would not fit; try again",
        session=record.session,
    )


async def end_joint(live: LiveSession) -> None:
    """Let the ranks go on that stand for their gang. The caller holds the session's lock."""
    if isinstance(live.barrier, Joint):
        live.barrier.over()
    live.barrier = None
    for proxy in list(live.proxies.values()):
        with contextlib.suppress(SingularityError):  # it holds nobody any more
            await Ranks(proxy).barrier_release()
