"""The processes whose device calls a session serves."""

from __future__ import annotations

import asyncio
import os

from singularity_proxy.wire.ring import RingFile


class Ring:
    """A worker's queue to one virtual device."""

    def __init__(self, ring_id: str, virtual: int, file: RingFile) -> None:
        self.id, self.virtual, self.file = ring_id, virtual, file
        self.ended = False
        """Its worker is gone."""


async def ended(pid: int) -> None:
    """Until the process has ended; any process, not only a child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
