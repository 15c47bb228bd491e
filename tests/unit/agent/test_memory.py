"""The agent gives memory back that the work on a checkpoint has freed."""

from __future__ import annotations

import ctypes

import pytest
from singularity_scheduler.agent.memory import return_memory


def held() -> int:
    """Kilobytes that this process has for itself."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc"
)
def test_what_was_freed_goes_back_to_the_system() -> None:
    blocks = [bytearray(100_000) for _ in range(500)]
    last = blocks[-1]  # stays, so that the heap cannot shrink from its end
    blocks.clear()
    before = held()
    return_memory()
    assert before - held() > 20_000, f"{before} kB before"
    assert len(last) == 100_000
