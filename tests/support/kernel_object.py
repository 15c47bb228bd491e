"""What the kinds of kernel objects are made with; see `kernel_objects`."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from typing import Any

Check = Callable[[], None]
KINDS: dict[str, Callable[[], Check]] = {}
"""Name -> what makes it and returns the check; filled by `kind`."""
libc = ctypes.CDLL(None, use_errno=True)
KEEP: list[Any] = []
"""What must not be closed."""


def kind(make: Callable[[], Check]) -> Callable[[], Check]:
    """Declares a kind, named as its function."""
    KINDS[make.__name__] = make
    return make


def call(number: int, *words: Any) -> int:
    """A system call. Raises `OSError`."""
    answer = int(libc.syscall(number, *words))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def same(found: object, expected: object) -> None:
    """Raises AssertionError, which names both, when they are not."""
    assert found == expected, f"{found!r} is not {expected!r}"


def folder(name: str) -> str:
    """A new folder of the session's own /tmp."""
    path = f"/tmp/objects-{name}"
    os.mkdir(path)
    return path


def in_child(do: Callable[[], None]) -> int:
    """Do that in a forked child, which then exits; its pid."""
    pid = os.fork()
    if pid == 0:
        do()
        os._exit(0)
    return pid


def sleeper() -> subprocess.Popen[bytes]:
    """Start a child that does nothing for hours."""
    child = subprocess.Popen(["sleep", str(4 * 3600)])
    KEEP.append(child)
    return child
