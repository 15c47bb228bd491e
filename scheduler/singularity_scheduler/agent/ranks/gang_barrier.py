"""The calls by which the scheduler service has all ranks of a gang stop at one place.

A part of a gang is only stored there. `elastic.coordinator.Barrier` finds the place, with the
agents of the parts as its proxies: `ask`, `hold` and `release` are the calls of a device proxy, for
all proxies of a part. The commands that store the part then say that its ranks stand (`storing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from singularity_proxy.errors import Conflict, NotFound, Unavailable, Unsupported

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.live import LiveSession
from singularity_scheduler.agent.sessions.record import Phase

from .barrier import Ranks, end_joint, joint_of, not_standing
from .joint import Joint, merged

log = logging.getLogger("singularity.agent")


async def ask(node: Node, live: LiveSession, epoch: int) -> dict[str, Any]:
    """`Stoppable.barrier_ask` of a part. Raises as `hold`."""
    async with _turn(node, live, epoch):
        return await _of_all(live, lambda ranks: ranks.barrier_ask())


async def hold(
    node: Node,
    live: LiveSession,
    epoch: int,
    targets: Mapping[str, int],
    deadline_s: float,
    grace_s: float,
) -> dict[str, Any]:
    """`Stoppable.barrier_hold` of a part. From the first one on its ranks stand until `release`,
    until a command that was told of it (`standing`) has ended, or until nobody has spoken of it for
    `joint_barrier_s`. Raises `Conflict` for a session that is no part, has no devices or is in the
    middle of something, `Unavailable` while one of its device proxies is being replaced."""
    async with _turn(node, live, epoch):
        joint = joint_of(live)
        if joint is None:
            joint = live.barrier = Joint(
                node.settings.joint_barrier_s,
                lambda: node.spawn(_forsaken(live), "end of a gang's barrier"),
            )
        joint.targets = dict(targets)
        try:
            return await _of_all(
                live, lambda ranks: ranks.barrier_hold(targets, deadline_s, grace_s)
            )
        finally:
            joint.heard()


async def release(live: LiveSession) -> None:
    """`Stoppable.barrier_release` of a part: they go on; also when none was held. A command that
    needs them to stand lets go by itself."""
    if isinstance(live.barrier, Joint) and live.barrier.used:
        return
    async with live.lock:
        if joint_of(live) is not None:
            await end_joint(live)


@contextlib.contextmanager
def storing(live: LiveSession, standing: bool) -> Iterator[None]:
    """Around a command that stores the session, from when it comes. Refuses a part of a gang whose
    ranks do not stand with those of the other parts: what they owe each other is in no image.
    Raises `Unsupported`, or `Conflict` where the caller says that they do (`standing`)."""
    if not standing:
        live.record.check_storable()
        yield
        return
    joint = joint_of(live)
    if joint is None:
        raise not_standing(live.record)
    joint.claim()
    try:
        yield
    finally:
        joint.unclaim()


async def _forsaken(live: LiveSession) -> None:
    async with live.lock:
        joint = joint_of(live)
        if joint is None or joint.claimed:
            return
        if live.record.alive:
            log.warning(
                "session %s: nobody speaks of its gang's barrier any more, its ranks go on",
                live.record.session,
            )
        await end_joint(live)


@contextlib.asynccontextmanager
async def _turn(node: Node, live: LiveSession, epoch: int) -> AsyncIterator[None]:
    """The session's lock, for a call of the gang's barrier."""
    record = live.record
    try:
        async with asyncio.timeout(node.settings.barrier_s):
            await live.lock.acquire()
    except TimeoutError:
        raise Conflict(
            f"session {record.session} is in the middle of something, so its ranks were not "
            "stopped; nothing was changed, try again",
            session=record.session,
        ) from None
    try:
        record.check_live()
        record.check_epoch(epoch)
        why = ""
        if record.part is None:
            why = "it is no part of a gang"
        elif record.phase is not Phase.HELD:
            why = (
                "it has no devices now, and a gang can be stopped only while all parts have theirs"
            )
        if why:
            raise Conflict(
                f"the ranks of session {record.session} were not stopped, and nothing was changed: "
                f"{why}",
                session=record.session,
            )
        yield
    finally:
        live.lock.release()


async def _of_all(
    live: LiveSession, call: Callable[[Ranks], Awaitable[Mapping[str, Any]]]
) -> dict[str, Any]:
    """One call to all device proxies; raises the first failure when all have ended."""
    calls = [call(Ranks(proxy)) for proxy in list(live.proxies.values())]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, NotFound):
            raise Unsupported(
                f"the device proxies of session {live.record.session} cannot stop its ranks "
                "together; nothing was changed",
                session=live.record.session,
            ) from None
        if isinstance(answer, Unavailable):
            live.record.check_live()  # its end takes its proxies along
            raise Unavailable(
                f"a device proxy of session {live.record.session} ended while its ranks were being "
                "stopped, and another one takes over; try again",
                session=live.record.session,
            ) from None
        if isinstance(answer, BaseException):
            raise answer
    return merged(answer for answer in answers if not isinstance(answer, BaseException))
