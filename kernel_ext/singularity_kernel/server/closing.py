"""Kernels whose sessions somebody has closed elsewhere: in the dashboard, on the command line, by a
rule of the platform. Their end is what was wanted, so no restarter begins a new session for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_client.ioloop.restarter import AsyncIOLoopKernelRestarter, IOLoopKernelRestarter
from jupyter_server.services.kernels.kernelmanager import ServerKernelManager
from traitlets import Type

CLOSED = frozenset({"closed", "cancelled"})
"""Codes of reasons of a session that somebody, or the platform, wanted to end."""


def is_closed(session: Mapping[str, Any]) -> bool:
    """Whether the document of a session that has ended says that it was closed, and did not end by
    itself."""
    code, args = session.get("reason_code"), session.get("reason_args") or {}
    while code not in CLOSED and (after := args.get("after")):
        code, args = after["code"], after["args"]
    return code in CLOSED


class SessionRestarter(AsyncIOLoopKernelRestarter):  # type: ignore[misc]
    """Starts kernels again that died, and none whose session was closed."""

    async def poll(self) -> None:
        """Look at the kernel; called every few seconds."""
        manager = self.kernel_manager
        alive = await manager.is_alive()
        end = getattr(manager.provisioner, "end", None)
        if alive or not end or not is_closed(end):
            await super().poll()
            return
        self.log.info(
            "Singularity: session %s was ended (%s); its kernel is not started again",
            end.get("id"),
            end.get("reason"),
        )
        self._fire_callbacks("dead")
        self.stop()


class ServedKernelManager(ServerKernelManager):  # type: ignore[misc]
    """Manager of one kernel that may be a session."""

    restarter_class = Type(
        default_value=SessionRestarter,
        klass=IOLoopKernelRestarter,
        help="What starts kernels again that died.",
    )
