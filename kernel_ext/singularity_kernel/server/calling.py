"""A page opens a notebook whose session is suspended: it is called back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient

from singularity_kernel.provision.pauses import pauses


async def call_back(session: str, waits: Callable[[], bool], log: logging.Logger) -> bool:
    """Ask the scheduler to resume `session`, unless it is there; False: it did not.

    `waits`: a page waits for the kernel, which has no ports, so there is nothing else by which the
    page could call it. As long as that holds it is tried again when the scheduler is away."""
    for pause in pauses():
        try:
            client = ServiceClient.from_environment()
            if (await client.get_session(session))["process_state"] in ("suspended", "suspending"):
                await client.resume(session)
            return True
        except SingularityError as error:
            again = waits() and isinstance(error, Unavailable)
            next_ = "open its notebook again" if waits() else "a request of its notebook does it"
            log.warning(
                "Singularity: session %s was not called back, %s: %s",
                session,
                "that is tried again" if again else next_,
                error.message,
            )
            if not again:
                return False
        await asyncio.sleep(pause)
    raise AssertionError("the pauses have no end")
