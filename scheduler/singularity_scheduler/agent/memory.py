"""Memory of the agent itself, which works for all sessions of its node."""

from __future__ import annotations

import asyncio
import ctypes
import gc

_LIBC = ctypes.CDLL(None)
_TRIM = getattr(_LIBC, "malloc_trim", None)
_OPTION = getattr(_LIBC, "mallopt", None)
"""Of glibc; other C libraries give memory back by themselves."""

_MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of mallopt(3)."""

LARGE_BYTES = 256 << 10


def map_large_buffers() -> None:
    """Let the allocator map each buffer of `LARGE_BYTES` or more by itself, as long as the process
    lives. By default glibc stops doing so once the first large buffer was freed (mallopt(3)): the
    buffers of checkpoints then come from heaps of threads, which they leave in pieces. Called at
    the start of the agent."""
    if _OPTION is not None:
        _OPTION(_MMAP_THRESHOLD, LARGE_BYTES)


def return_memory() -> None:
    """Give what was freed back to the system: the threads that pack or unpack a checkpoint leave
    hundreds of megabytes in the allocator, which would stay the agent's until its end. Objects that
    hold each other, such as an error and the frames that it came through, are looked for first: the
    interpreter would do so by the number of new objects, and these are few and large. Blocks for
    some tens of milliseconds."""
    gc.collect()
    if _TRIM is not None:
        _TRIM(0)


def return_memory_soon() -> None:
    """Do the same in a thread of the running event loop, while what was asked for is answered."""
    asyncio.get_running_loop().run_in_executor(None, return_memory)
