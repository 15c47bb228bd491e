"""Which launcher this node's sessions are started with, and whether process images are possible."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from singularity_proxy.capsule import criu, namespace
from singularity_proxy.capsule.launcher import CapsuleLauncher, ProcessLauncher
from singularity_proxy.errors import Unsupported

log = logging.getLogger("singularity.agent")

WAYS = ("auto", "process", "namespace")
"""What `NodeAgent.capsule` can be."""


async def choose_launcher(
    way: str, shared: Sequence[str] = ()
) -> tuple[CapsuleLauncher, dict[str, Any]]:
    """(launcher, capability `process_image` of `hello`). Called once at the agent's start; `shared`
    are folders below /tmp or /dev/shm that stay the machine's. Raises `Unsupported` where
    namespaces were asked for in vain."""
    if way == "process":
        reason = "sessions are ordinary processes here: NodeAgent.capsule is 'process'."
        return ProcessLauncher(), {"available": False, "reason": reason}
    (launcher, why), found = await asyncio.gather(
        asyncio.to_thread(namespace.probe, shared), asyncio.to_thread(criu.probe)
    )
    if launcher is None:
        if way == "namespace":
            raise Unsupported(
                f"NodeAgent.capsule is 'namespace', but {why.rstrip('.')}; set it to 'auto' or "
                "permit namespaces on this machine"
            )
        log.warning("sessions are ordinary processes: %s", why)
        return ProcessLauncher(), {"available": False, "reason": why}
    return launcher, {"available": found.ok, "reason": found.reason}
