"""Which launcher this node's sessions are started with, and whether process images are possible."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images import criu
from singularity_proxy.capsule.images.criu import Criu
from singularity_proxy.capsule.images.machine import Machine, here
from singularity_proxy.capsule.launcher import CapsuleLauncher, ProcessLauncher
from singularity_proxy.errors import Unavailable, Unsupported
from singularity_proxy.probes import CutShort

log = logging.getLogger("singularity.agent")

WAYS = ("auto", "process", "namespace")
"""What `NodeAgent.capsule` can be."""


class ProcessImages:
    """Whether process images can be taken and restored here. CRIU is asked in the background: an
    agent that starts again has sessions to look after first. What it could not answer is asked
    again whenever somebody wants to know."""

    def __init__(self, refused: str | None = None) -> None:
        self._refused = refused
        self._machine: Machine | None = None
        self._answer: Criu | None = None
        """Kept once it is conclusive."""
        self._asking: asyncio.Future[Criu] | None = None
        if not refused:
            self._ask()

    def _ask(self) -> asyncio.Future[Criu]:
        if self._asking is None:
            self._asking = asyncio.ensure_future(asyncio.to_thread(criu.probe))
        return self._asking

    async def _find(self) -> Criu:
        if self._answer is not None:
            return self._answer
        asking = self._ask()
        found = await asyncio.shield(asking)
        if self._asking is asking:
            self._asking = None
        if found.conclusive:
            self._answer = found
        return found

    async def capability(self) -> dict[str, Any]:
        """`process_image` of `hello`: {"available", "reason", "machine"}."""
        if self._refused:
            return {"available": False, "reason": self._refused}
        found = await self._find()
        machine = await self.machine()
        told = machine.to_json() if machine else None
        return {"available": found.ok, "reason": found.reason, "machine": told}

    async def machine(self) -> Machine | None:
        """What images that are taken here depend on; None where none can be."""
        if self._refused:
            return None
        found = await self._find()
        if self._machine is None and found.conclusive:
            self._machine = here(found.version)
        return self._machine


async def choose_launcher(
    way: str, shared: Sequence[str] = ()
) -> tuple[CapsuleLauncher, ProcessImages]:
    """The launcher and what it makes possible. Called once at the agent's start; `shared` are
    folders below /tmp or /dev/shm that stay the machine's. Raises `Unsupported` where namespaces
    were asked for in vain, `Unavailable` when the machine did not get to answer: what it would
    permit holds for the agent's life."""
    if way == "process":
        reason = "sessions are ordinary processes here: NodeAgent.capsule is 'process'."
        return ProcessLauncher(), ProcessImages(reason)
    try:
        launcher, why = await asyncio.to_thread(namespace.probe, shared)
    except CutShort as error:
        raise Unavailable(
            f"whether capsules can have namespaces here could not be found out: {error}; nothing "
            "was changed, start the agent again"
        ) from None
    if launcher is not None:
        return launcher, ProcessImages()
    if way == "namespace":
        raise Unsupported(
            f"NodeAgent.capsule is 'namespace', but {why.rstrip('.')}; set it to 'auto' or permit "
            "namespaces on this machine"
        )
    log.warning("sessions are ordinary processes: %s", why)
    return ProcessLauncher(), ProcessImages(why)
