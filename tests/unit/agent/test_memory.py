"""The agent gives memory back that the work on a checkpoint has freed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
from singularity_scheduler.agent.memory import ARENAS, return_memory, return_memory_soon
from singularity_scheduler.fleet.local_agent import ALLOCATOR


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
from singularity_scheduler.agent.memory import set_up_allocator

if sys.argv[1] == "mapped":
    set_up_allocator()
del (first := [bytearray(8 << 20)])[0]  # the default allocator maps no such buffer any more
kept, large = [], []
for _ in range(40):
    large.append(bytearray(b"x") * (1 << 20))
    kept.append(bytearray(100_000))  # stays, between what goes: larger than any hole before
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


SMALL_OBJECTS = """
from singularity_scheduler.agent.memory import return_memory, set_up_allocator

def held():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

set_up_allocator()
before = held()
pages = [b"%048d" % number for number in range(400_000)]
most = held()
kept = pages[::5000]  # what stays lies between what goes
pages.clear()
return_memory()
print(most - before, held() - before)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc"
)
def test_small_objects_leave_nothing_between_what_stays() -> None:
    command = [sys.executable, "-c", SMALL_OBJECTS]
    env = {**ALLOCATOR, **os.environ}
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env).stdout
    most, left = map(int, said.split())
    assert most > 30_000, "kB"
    assert left < most / 10, f"of {most} kB, {left} kB stayed"


NAMES = """
import sys
from singularity_scheduler.agent.memory import return_memory

return_memory()
before = sys.getallocatedblocks()
names = [f"name-{number}" for number in range(3000)]
for name in names:
    getattr(object, name, None)
names.clear()
kept = sys.getallocatedblocks() - before
return_memory()
print(kept, sys.getallocatedblocks() - before)
"""


def test_names_that_the_interpreter_remembers_are_freed() -> None:
    command = [sys.executable, "-c", NAMES]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    kept, left = map(int, said.split())
    assert kept > 300
    assert left < kept / 10, f"{left} of {kept} blocks stayed"


FREED_IN_THREADS = """
import ctypes, threading
from singularity_scheduler.agent.memory import return_memory, set_up_allocator

class Blocks(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

in_use = ctypes.CDLL(None).mallinfo2
in_use.restype = Blocks
set_up_allocator()
before = in_use().uordblks
freed, go = threading.Barrier(9), threading.Event()

def work():
    blocks = [bytes(size) for size in range(16, 1000, 8) for _ in range(10)]
    blocks.clear()
    freed.wait()
    go.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
freed.wait()
return_memory()
print(in_use().uordblks - before)
go.set()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library")
def test_threads_keep_nothing_that_was_freed() -> None:
    def kept(chosen: dict[str, str]) -> int:
        command = [sys.executable, "-c", FREED_IN_THREADS]
        env = {**os.environ, "PYTHONMALLOC": "malloc", **chosen}
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env).stdout)

    assert kept({}) - kept(ALLOCATOR) > 200_000, "bytes"


THREADS = """
import ctypes, sys, threading
from singularity_scheduler.agent.memory import set_up_allocator

if sys.argv[1] == "set up":
    set_up_allocator()
together = threading.Barrier(8)

def work():
    together.wait()
    blocks = [bytearray(5000) for _ in range(200)]
    together.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library")
def test_threads_share_the_heaps() -> None:
    def heaps(how: str) -> int:
        command = [sys.executable, "-c", THREADS, how]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        return said.count(b"<heap nr=")

    assert heaps("default") > ARENAS
    assert heaps("set up") <= ARENAS
