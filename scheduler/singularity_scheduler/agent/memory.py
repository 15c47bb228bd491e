"""Memory of the agent itself, which works for all sessions of its node."""

from __future__ import annotations

import ctypes

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc; other C libraries give memory back by themselves."""


def return_memory() -> None:
    """Give what was freed back to the system: the threads that pack or unpack a checkpoint leave
    hundreds of megabytes in the allocator, which would stay the agent's until its end. Blocks for
    milliseconds."""
    if _TRIM is not None:
        _TRIM(0)
