"""Memory of the agent itself, which works for all sessions of its node."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import sys

from singularity_proxy.checkpoint.chunks import drop_idle_contexts

_LIBC = ctypes.CDLL(None)
_TRIM = getattr(_LIBC, "malloc_trim", None)
_OPTION = getattr(_LIBC, "mallopt", None)
"""Of glibc; other C libraries give memory back by themselves."""

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
"""`M_MMAP_THRESHOLD` and `M_ARENA_MAX` of mallopt(3)."""

_FORGET = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
"""Lets the interpreter forget where it found attributes (the second name is that of before Python
3.13). It remembers up to 4,096 and holds their names. A name that comes from C code is a string of
its own each time, for example at each `open` in text mode: such strings lie all over the heap, and
each keeps a page."""

LARGE_BYTES = 256 << 10

EARLY = ("blake3", "zstandard", "singularity_kernel.relay.line")
"""What the first checkpoint and the first move of a kernel to another node import."""

ARENAS = 2
"""Heaps of the allocator. By default each of the many threads that save a checkpoint has its own,
and each keeps what lies between the objects that stay."""


def set_up_allocator() -> None:
    """Let the allocator map each buffer of `LARGE_BYTES` or more by itself, as long as the process
    lives, and take everything else from `ARENAS` heaps. By default glibc maps no large buffers once
    the first of them was freed (mallopt(3)): the buffers of checkpoints then come from heaps of
    threads, which they leave in pieces. Called at the start of the agent, before it has threads.

    What starts the agent chooses more in its environment (`fleet.local_agent.ALLOCATOR`), which is
    not meant for what the agent starts in turn."""
    if _OPTION is not None:
        _OPTION(_MMAP_THRESHOLD, LARGE_BYTES)
        _OPTION(_ARENA_MAX, ARENAS)
    for name in ("PYTHONMALLOC", "GLIBC_TUNABLES"):
        os.environ.pop(name, None)


def load_early() -> None:
    """Import what a session would make the agent import later, so that the agent needs no more
    memory after its first checkpoint than before. Who needs a library that is not installed says
    so then."""
    for name in EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def return_memory() -> None:
    """Give what was freed back to the system: the threads that pack or unpack a checkpoint leave
    hundreds of megabytes in the allocator, which would stay the agent's until its end. Objects that
    hold each other, such as an error and the frames that it came through, are looked for first: the
    interpreter would do so by the number of new objects, and these are few and large. Blocks for
    some tens of milliseconds."""
    gc.collect()
    drop_idle_contexts()
    _FORGET()
    if _TRIM is not None:
        _TRIM(0)


def return_memory_soon() -> None:
    """Do the same in a thread of the running event loop, while what was asked for is answered."""
    asyncio.get_running_loop().run_in_executor(None, return_memory)
