"""The stop button of a notebook whose session is away: it is brought back, and its cell is
interrupted then."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from singularity_proxy.errors import Conflict, NotFound, SingularityError, Unavailable

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

    from .provisioner import SingularityProvisioner

LOOK_S = 0.5

AWAY = ("suspending", "suspended", "resuming")


class LateInterrupt:
    """At most one at a time; one per provisioner, on the server's event loop."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None

    def begin(self, provisioner: SingularityProvisioner, signum: int) -> None:
        """Its session was not there for this signal. A kernel that is being shut down is
        interrupted for that alone, and stays where it is."""
        ending = getattr(provisioner.parent, "shutting_down", False)
        if signum != signal.SIGINT or ending or provisioner.session_id is None:
            return
        if self._task is None or self._task.done():
            run = self._run(provisioner._client(), provisioner.session_id)
            self._task = asyncio.ensure_future(run)

    def drop(self) -> None:
        """Nobody wants it any more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, client: ServiceClient, session: str) -> None:
        refused = False
        while True:
            try:
                now = await client.get_session(session)
                state = now["process_state"]
                if state == "live":
                    await client.signal(session, signal.SIGINT)
                    return
                if state not in AWAY or not now["busy"]:
                    return  # it has ended, or is in no cell
                if state == "suspended" and not (now["called_back"] or refused):
                    refused = not await self._called_back(client, session)
            except NotFound:
                return
            except Conflict:
                pass  # it has left again
            except SingularityError as error:
                self._log.debug("Singularity: session %s: %s", session, error.message)
            await asyncio.sleep(LOOK_S)

    async def _called_back(self, client: ServiceClient, session: str) -> bool:
        """False: refused, for good."""
        self._log.info("Singularity: session %s is called back to be interrupted", session)
        try:
            await client.resume(session)
        except Unavailable:
            raise
        except SingularityError as error:
            self._log.warning(
                "Singularity: session %s was not called back, its cell is interrupted when it is "
                "back: %s",
                session,
                error.message,
            )
            return False
        return True
