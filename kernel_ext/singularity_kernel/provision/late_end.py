"""The end of a session that could not be ended when its kernel was stopped: the scheduler was away.

Without it the session would be kept for the next server, like one that nobody has stopped.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from singularity_proxy.errors import NotFound, SingularityError, Unavailable

from .pauses import pauses

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

_jobs: set[asyncio.Task[None]] = set()


def is_unknown(error: SingularityError, session: str | None) -> bool:
    """Tell whether the scheduler itself says that it has no such session. A `NotFound` of anything
    else (an address, something in between) names no session, and says nothing about this one."""
    return isinstance(error, NotFound) and error.fields.get("session") == session


def begin(client: ServiceClient, session: str, reason: str, log: logging.Logger) -> None:
    """Try again until the scheduler answers or this process ends. Called on its event loop."""
    job = asyncio.ensure_future(_end(client, session, reason, log))
    _jobs.add(job)
    job.add_done_callback(_jobs.discard)


async def _end(client: ServiceClient, session: str, reason: str, log: logging.Logger) -> None:
    for pause in pauses():
        await asyncio.sleep(pause)
        try:
            await client.end_session(session, reason, 0.0)
            return
        except SingularityError as error:
            if is_unknown(error, session):
                return
            if not isinstance(error, Unavailable | NotFound):
                log.warning("Singularity: session %s was not ended: %s", session, error.message)
                return
