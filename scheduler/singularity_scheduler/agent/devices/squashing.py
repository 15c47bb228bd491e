"""What ranks that share a device have in common there, as their device proxies say.

Part of `health`: asked once in a round, only of proxies behind several virtual devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from singularity_proxy.errors import SingularityError

from singularity_scheduler.agent.node import Node
from singularity_scheduler.agent.sessions.record import Phase

from .proxies import Proxy

Report = dict[str, Any]

ANSWER_S = 2.0
"""A proxy that is slower has its report of the round before."""

STATES = {"unproven": "unproven", "proven": "on", "off": "off"}
"""As the proxy says -> as it is told. One whose rings are in no common group has nothing to say."""


class SquashWatch:
    """Asks all such device proxies of a node; one object per agent."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Report] = {}
        self._told: set[str] = set()
        """Sessions of which it was told that squashing is off."""

    async def look(self, node: Node) -> Mapping[tuple[str, str], Report]:
        """(session, physical device) -> {state: "unproven" | "on" | "off", why_off, steps (begun
        together), executed, spared (calls in these), compared (pairs of storages)}. The first time
        that one is off, `squashing.off` is emitted."""
        asked = {
            (session, device): proxy
            for session, live in node.sessions.items()
            if live.record.phase is Phase.HELD
            for device, proxy in live.proxies.items()
            if live.record.devices.count(device) > 1 and proxy.connected
        }
        answers = await asyncio.gather(*(_ask(proxy) for proxy in asked.values()))
        self._known = {
            key: found
            for key, answer in zip(asked, answers, strict=True)
            if (found := self._known.get(key) if answer is None else answer)
        }
        for (session, _), report in self._known.items():
            if report["state"] == "off" and session not in self._told:
                self._told.add(session)
                node.emit(session, "squashing.off", why=report["why_off"])
        self._told &= node.sessions.keys()
        return self._known


async def _ask(proxy: Proxy) -> Report | None:
    """The proxy's report; {} when its ranks are in no common group, None: no answer."""
    try:
        said = (await proxy.call("stats", timeout=ANSWER_S)).get("squashing") or {}
    except SingularityError:
        return None
    state = STATES.get(said.get("state", ""))
    if state is None:
        return {}
    return {
        "state": state,
        "why_off": str(said["why_off"]),
        "steps": int(said["windows"]),
        "executed": int(said["executed"]),
        "spared": int(said["skipped"]),
        "compared": int(said["comparisons"]),
    }
