"""Until when a capsule may run: a word in a small file that the agent writes and pid 1 obeys.

The file holds three little-endian 64-bit numbers (`lease.h` has the same places): the end, in
nanoseconds of CLOCK_BOOTTIME, 0 for no end; the number of the agent's newest question whether that
is obeyed; and that of the newest one which pid 1 has answered. It belongs to the agent and lies
where the session's user cannot reach it. It is written in place and never replaced, because pid 1
has it open for as long as the capsule lives, whichever agent looks after it.
"""

from __future__ import annotations

import os
import signal
import struct
import time

from .process import ProcessIdentity
from .tree import has_ended, send

_WORD = struct.Struct("<Q")
_END, _ASKED, _OBEYED = (n * _WORD.size for n in range(3))
_SIZE = 3 * _WORD.size

ALWAYS_OVER = 0.0
"""An end that has come, of whatever boot."""


class LeaseWord:
    """The word of one capsule. Made by the agent before it starts the capsule."""

    def __init__(self, path: str) -> None:
        """Open the file, making it with no end if it is not there. Raises OSError."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.fstat(self._fd).st_size < _SIZE:
            os.pwrite(self._fd, bytes(_SIZE), 0)  # no hole: a later write needs no space

    def write(self, end: float | None) -> None:
        """The capsule may run until `end` (seconds of CLOCK_BOOTTIME); None: without an end."""
        self._put(_END, 0 if end is None else max(1, int(end * 1e9)))

    def read(self) -> float | None:
        """What was written last, by this agent or the one before."""
        nanoseconds = self._get(_END)
        return nanoseconds / 1e9 if nanoseconds else None

    def obeyed(self, init: ProcessIdentity, limit_s: float) -> bool:
        """Have pid 1 of the capsule look at the word now; False when it has not done what that says
        within `limit_s` seconds. After True it has let go all that it had stopped, or the time is
        over; a capsule that has ended obeys. Blocks, for less than a millisecond as a rule."""
        number = self._get(_ASKED) + 1
        self._put(_ASKED, number)
        send(init, signal.SIGRTMAX)
        deadline = time.monotonic() + limit_s
        while self._get(_OBEYED) < number:
            if has_ended(init):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0002)
        return True

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, place: int, value: int) -> None:
        os.pwrite(self._fd, _WORD.pack(value), place)

    def _get(self, place: int) -> int:
        [value] = _WORD.unpack(os.pread(self._fd, _WORD.size, place))
        return int(value)
