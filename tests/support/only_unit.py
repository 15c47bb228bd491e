"""Holds unit tests to what they are: one that starts a process or opens a connection fails."""

from __future__ import annotations

import contextlib
import platform
import sys
import threading
from collections.abc import Iterator
from typing import Any

_REFUSED = {
    "subprocess.Popen": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "os.exec": "becomes another program",
    "socket.bind": "opens a socket",
    "socket.connect": "opens a socket",
}
"""Audit events of Python, and what a test does that raises one. A pair of sockets, which every
event loop has, raises none of them."""

_test: str | None = None
_installed = threading.Event()


class NotUnit(RuntimeError):
    """A unit test did what unit tests do not."""


seen: list[str] = []
"""What was refused in this run: code under test may have caught the error."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _test is not None and event in _REFUSED:
        sentence = (
            f"{_test} {_REFUSED[event]} ({event} {arguments[:1]}), which no test of tier 'unit'"
            " does; put its file into another tier in tests/support/tiers.py"
        )
        seen.append(sentence)
        raise NotUnit(sentence)


@contextlib.contextmanager
def hold_to_unit(test: str) -> Iterator[None]:
    """Refuse processes and sockets while the test of that id runs in this process."""
    global _test
    if not _installed.is_set():
        _installed.set()
        platform.processor()  # asks a program, once in a process; libraries do when first imported
        sys.addaudithook(_audit)  # cannot be taken off again, so it is put on when first needed
    _test = test
    try:
        yield
    finally:
        _test = None
