"""Room that writers of one folder store have set aside, whichever process they are in.

Each reservation is a file that its writer holds locked (`flock`), with the bytes that it still
needs. One that nobody holds is of a writer that was killed, and counts no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from .base import Reservation

_WIDTH = 20
"""Digits of a figure: it is overwritten in place, which takes no room."""


class HeldRoom(Reservation):
    """`need` bytes, until they are used or released."""

    def __init__(self, folder: str, need: int) -> None:
        """Raises OSError: there is no room even for this."""
        self._need = need
        self._path = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}")
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._write(need)
        except BaseException:
            self.release()
            raise

    def use(self, sent: int) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # then it counts for more than it is
                self._write(max(0, self._need - sent))

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(fd)

    def _write(self, left: int) -> None:
        os.pwrite(self._fd, f"{left:0{_WIDTH}d}".encode(), 0)


def reserved_bytes(folder: str) -> int:
    """What living writers still need; files of dead ones are removed. The caller keeps others from
    reserving meanwhile. Raises OSError."""
    return sum(_left(path) for path in _files(folder))


def _files(folder: str) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            yield item.path


def _left(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return 0
        text = os.pread(fd, _WIDTH, 0)
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)
