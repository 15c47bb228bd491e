"""Tells the service when what this node can do has changed: its store is another one, or back; CRIU
could not be asked before, and has answered now. The service then asks with `hello`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from .node import Node

log = logging.getLogger("singularity.agent")

LOOK_S = 5.0


class AbilityWatch:
    """One object per agent; `run` until cancelled."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def run(self) -> None:
        told = await self._look()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                now = await self._look()
            except Exception:  # the next look may be better, and nobody else looks
                log.exception("what this node can do could not be looked at")
                continue
            if now != told:
                told = now
                self._node.emit("", "node.abilities")

    async def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        await self._node.stores.probe()
        return await self._node.images.capability(), self._node.stores.describe()
