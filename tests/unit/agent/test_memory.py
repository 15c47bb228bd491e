"""The agent gives memory back that the work on a checkpoint has freed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
from singularity_scheduler.agent.memory import return_memory, return_memory_soon


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


class Circle:
    """Refers to itself, as an error does to the frames that it came through."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def circle() -> Iterator[weakref.ref[Circle]]:
    """One that nobody needs any more, and which the interpreter does not look for."""
    gc.disable()
    yield weakref.ref(Circle())
    gc.enable()


def test_objects_that_hold_each_other_are_freed(circle: weakref.ref[Circle]) -> None:
    assert circle() is not None
    return_memory()
    assert circle() is None


def test_memory_goes_back_while_the_agent_answers(circle: weakref.ref[Circle]) -> None:
    async def answer() -> None:
        return_memory_soon()

    asyncio.run(answer())  # it ends when its threads have ended
    assert circle() is None


KEEP_AND_FREE = """
import sys
from singularity_scheduler.agent.memory import map_large_buffers

if sys.argv[1] == "mapped":
    map_large_buffers()
del (first := [bytearray(8 << 20)])[0]  # the default allocator maps no such buffer any more
kept, large = [], []
for _ in range(40):
    large.append(bytearray(b"x") * (1 << 20))
    kept.append(bytearray(4000))  # what stays lies between what goes
large.clear()
with open("/proc/self/status", encoding="ascii") as file:
    print(next(int(line.split()[1]) for line in file if line.startswith("RssAnon")))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_large_buffers_leave_nothing_between_what_stays() -> None:
    def held_by(how: str) -> int:
        command = [sys.executable, "-c", KEEP_AND_FREE, how]
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    assert held_by("default") - held_by("mapped") > 20_000, "kB"
