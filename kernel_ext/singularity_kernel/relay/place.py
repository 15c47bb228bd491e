"""The folder of a relay's unix sockets, held by one relay at a time.

Binding a unix socket takes its name from whoever has it, and a relay that leaves removes the names
of its sockets. After a restart of a kernel the relay before this one may still be at that, so each
holds a lock on the folder, and the next one waits for it.

The folder around it is the user's alone (0700), and who made it has checked that; so this one may
come and go: nobody else can put one in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from .clients import CHANNELS, EXIT_BUSY, EXIT_USAGE, RelayError


class Place:
    """What a relay holds from before it listens until its sockets are closed."""

    def __init__(self, info: Mapping[str, Any], wait_s: float) -> None:
        """Make and lock the folder for the connection file `info`; nothing for TCP. Waits `wait_s`
        seconds for another relay to leave. Raises `RelayError`."""
        self._folder = os.path.dirname(str(info["ip"])) if info["transport"] == "ipc" else ""
        self._names = [f"{info['ip']}-{info[f'{channel}_port']}" for channel in CHANNELS]
        self._fd = -1
        deadline = time.monotonic() + wait_s
        while self._folder and not self._take():
            if time.monotonic() >= deadline:
                raise RelayError(
                    f"the sockets in {self._folder} are taken by another process: the kernel was "
                    "not connected, start it again to get other ones",
                    EXIT_BUSY,
                )
            time.sleep(0.05)

    def _take(self) -> bool:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if os.path.isdir(os.path.dirname(self._folder)):
                return False  # the relay before this one has just removed it
            raise self._unusable("the folder around it is gone") from None
        except OSError as error:
            raise self._unusable(error.strerror) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.fstat(fd)
            if not os.path.samestat(ours, os.lstat(self._folder)):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return False
        if ours.st_uid != os.geteuid() or stat.S_IMODE(ours.st_mode) & 0o077:
            os.close(fd)
            raise self._unusable("other users can enter it, or it is somebody else's")
        self._fd = fd
        return True

    def _unusable(self, why: object) -> RelayError:
        return RelayError(
            f"the folder {self._folder} cannot hold the kernel's sockets ({why})", EXIT_USAGE
        )

    def leave(self) -> None:
        """Give it back, after the sockets are closed."""
        if self._fd >= 0:
            for name in self._names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
            with contextlib.suppress(OSError):  # something else of its user's is in it
                os.rmdir(self._folder)
            os.close(self._fd)
            self._fd = -1
