"""Kernels that a started server lists although nobody can be connected to them now.

Their session is suspended and its relay is gone with its node, or the agent that knows the
connection is away. They have no ports. Whoever opens one waits; a suspended session is called back
for that, and comes with another relay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from typing import Any


class Ready(asyncio.Future[None]):
    """`KernelManager.ready` of such a kernel: a page that connects awaits it, and `wanted()` is
    called then."""

    def __init__(self, wanted: Callable[[], None]) -> None:
        super().__init__()
        self._wanted = wanted

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done():
            self._wanted()
        return super().__await__()


class Apart:
    """Which kernels they are; used by `SingularityKernelManager` alone."""

    def __init__(self) -> None:
        self._kernels: dict[str, Ready] = {}

    def __contains__(self, kernel_id: object) -> bool:
        return kernel_id in self._kernels

    def add(self, kernel_id: str, manager: Any, wanted: Callable[[], None]) -> None:
        """`manager` has no connection. What an earlier server wrote of it is removed."""
        self._kernels[kernel_id] = manager._ready = Ready(wanted)
        if os.path.exists(manager.connection_file):
            os.unlink(manager.connection_file)

    def end(self, kernel_id: str) -> bool:
        """It can be connected to, or ends; False when it is none of these kernels."""
        ready = self._kernels.pop(kernel_id, None)
        if ready is not None and not ready.done():
            ready.set_result(None)
        return ready is not None
