"""The line to a relay on another node than its session: the tunnel that the session's kernel uses.

A relay stays where the session was started. The agent of the node where the session is now reaches
it with the tunnel file of the session, so neither the service nor the other agent has to be there.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from singularity_proxy.errors import Unavailable

from singularity_scheduler.agent.node import Settings
from singularity_scheduler.agent.sessions.record import SessionRecord

from .relay import read_tunnel

ASK_LIMIT_S = 3.0
"""The session may be frozen meanwhile."""


class FarRelay:
    """Speaks to the relay that the tunnel file of `record` names. Everything raises `Unavailable`
    when it does not answer; also when the session has gone on elsewhere: its key is void then."""

    def __init__(self, settings: Settings, record: SessionRecord) -> None:
        self._settings, self._record = settings, record

    async def _call(self, method: str, **params: Any) -> Any:
        tunnel = await asyncio.to_thread(read_tunnel, self._settings, self._record)
        if tunnel is None:
            raise Unavailable(f"session {self._record.session} has no relay that can be asked")
        line = importlib.import_module("singularity_kernel.relay.line")
        return await asyncio.to_thread(line.ask, tunnel, method, params, ASK_LIMIT_S)

    async def _call_for(self, method: str, **params: Any) -> dict[str, Any]:
        found = await self._call(method, **params)
        if not isinstance(found, dict):
            raise Unavailable(
                f"the relay of session {self._record.session} answered '{method}' with something "
                "else than was asked for"
            )
        return found

    async def standing(self) -> dict[str, Any]:
        """As `Relay.standing`."""
        return await self._call_for("standing")

    async def positions(self) -> dict[str, Any]:
        """As `Relay.positions`."""
        return await self._call_for("positions", keep=True)

    async def forget(self, kept: list[dict[str, Any]]) -> None:
        """As `Relay.forget`."""
        await self._call("forget", kept=kept)

    async def set_away(self, away: bool) -> None:
        """As `Relay.set_away`."""
        await self._call("away", away=away)
