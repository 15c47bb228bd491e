"""Which process of a capsule has an io_uring: memory shared with the kernel that CRIU cannot save.

libuv makes one, and with it a server of torch.distributed's TCPStore that is on libuv. Read from
/proc.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

LINK = "anon_inode:[io_uring]"


def with_io_ring(pids: Iterable[int]) -> int | None:
    """The first of the processes that has an io_uring open; None when none has. One that cannot be
    looked at has none."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if any(_link(pid, fd) == LINK for fd in os.listdir(f"/proc/{pid}/fd")):
                return pid
    return None


def _link(pid: int, fd: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    return ""
