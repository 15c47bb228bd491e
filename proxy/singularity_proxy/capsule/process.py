"""Other processes, named so that a recycled pid is never mistaken for them.

A process is (pid, start time): the pair stays true across a restart of the node agent, which then
is no longer the parent of what it started. Whether it lives is told by a pidfd (pidfd_open(2)),
which also wakes the event loop when it ends. `kill(pid, 0)` tells neither: it takes a zombie for
alive and a recycled pid for the old process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of this boot; `start` is field 22 of /proc/PID/stat (ticks since boot)."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The process that has `pid` now; raises ProcessLookupError when there is none (a zombie
        still is one: its pid cannot be taken by another)."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessLookupError(f"there is no process {pid}") from None
        return cls(pid, int(fields[19]))

    def to_json(self) -> list[int]:
        return [self.pid, self.start]

    @classmethod
    def from_json(cls, data: Any) -> ProcessIdentity | None:
        """The identity behind `to_json`'s list; None stays None."""
        return None if data is None else cls(int(data[0]), int(data[1]))


def uid_of(pid: int) -> int:
    """The real uid of process `pid`; raises ProcessLookupError when there is none."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Uid:"):
                    return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    raise ProcessLookupError(f"there is no process {pid}")


EXIT_FILE = "exit"
"""In a session's folder: the exit code of its run, which the run writes down as its last act."""


def write_exit_code(code: int, environ: Mapping[str, str]) -> None:
    """Write down how the run of the session of `environ` ended, for a node agent that was away when
    it did. Where that cannot be, the agent says that the code is not known."""
    folder = os.path.dirname(environ.get("SINGULARITY_SOCKET", ""))
    if not folder:
        return
    partial = os.path.join(folder, f".{EXIT_FILE}.{os.getpid()}.part")
    with contextlib.suppress(OSError):
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(str(code))
        os.replace(partial, os.path.join(folder, EXIT_FILE))


def read_exit_code(folder: str, uid: int) -> int | None:
    """The exit code that the run of the session with `folder` has written down; None: it has not.
    It counts for nothing but that session, whose user may have written anything."""
    try:
        path = os.path.join(folder, EXIT_FILE)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        plain = stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == uid
        text = os.read(fd, 8) if plain else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    return int(text) if re.fullmatch(rb"[0-9]{1,3}", text) else None


_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_CODE_EVERY_S = 0.05
_CODE_LIMIT_S = 3.0


def _status_of_stranger(pidfd: int) -> int | None:
    """The wait status of a process that somebody else reaped (Linux >= 6.15); None when it was not
    reaped yet, OSError where the kernel cannot tell."""
    info = bytearray(64)
    struct.pack_into("<Q", info, 0, _PIDFD_INFO_EXIT)
    fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    known = struct.unpack_from("<Q", info, 0)[0] & _PIDFD_INFO_EXIT
    return int(struct.unpack_from("<i", info, 60)[0]) if known else None


class ProcessWatch:
    """Watches one process until it ends: capsules, workers, proxies, relays, owners alike.

    Made on the event loop. A process that is already gone (or whose pid now belongs to another
    one) is a watch that has ended from the start. A child is reaped as soon as it ends. The exit
    code of a process that is not our child stays unknown (None), unless `learn_code` is set and
    the kernel can tell: then the end is told once the process was reaped, at most 3 s later.
    """

    _watched: ClassVar[dict[int, list[ProcessWatch]]] = {}

    def __init__(
        self,
        identity: ProcessIdentity,
        on_exit: Callable[[ProcessWatch], None] | None = None,
        *,
        learn_code: bool = False,
    ) -> None:
        self.identity = identity
        self.exit_code: int | None = None
        """Exit status of a child; negative: the signal that ended it; None: unknown."""
        self._on_exit = on_exit
        self._learn_code = learn_code
        self._give_up_at: float | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        try:
            fd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            self._loop.call_soon(self._end)
            return
        # Opened first, compared second: then the descriptor cannot be that of a later process.
        try:
            same = ProcessIdentity.of(identity.pid) == identity
        except ProcessLookupError:
            same = False
        if not same:
            os.close(fd)
            self._loop.call_soon(self._end)
            return
        self._fd = fd
        self._watched.setdefault(identity.pid, []).append(self)
        self._loop.add_reader(fd, self._readable)

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def alive(self) -> bool:
        """False as soon as the end was noticed (one turn of the loop after it happened)."""
        return self._fd >= 0

    @classmethod
    def settle(cls, pid: int) -> bool:
        """Called by whoever reaps children: if `pid` is watched, its watches end now (and reap
        it). False: nobody watches it and the caller has to reap it."""
        watches = list(cls._watched.get(pid, ()))
        for watch in watches:
            watch._readable()
        return bool(watches)

    def _readable(self) -> None:
        if self._fd < 0 or self._give_up_at is not None:
            return
        try:
            result = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            if self._learn_code:
                self._loop.remove_reader(self._fd)
                self._give_up_at = self._loop.time() + _CODE_LIMIT_S
                self._ask_code()
                return
        else:
            if result is not None:
                normal = result.si_code == os.CLD_EXITED
                self.exit_code = result.si_status if normal else -result.si_status
        self._release()
        self._end()

    def _ask_code(self) -> None:
        if self._fd < 0 or self._give_up_at is None:
            return  # closed meanwhile
        try:
            status = _status_of_stranger(self._fd)
        except OSError:
            status, self._give_up_at = None, 0.0
        if status is None and self._loop.time() < self._give_up_at:
            self._loop.call_later(_CODE_EVERY_S, self._ask_code)
            return
        if status is not None:
            self.exit_code = os.waitstatus_to_exitcode(status)
        self._release()
        self._end()

    def _release(self) -> None:
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        others = self._watched.get(self.pid, [])
        others.remove(self)
        for other in others:  # two watches of one child: only the first could reap it
            other.exit_code = self.exit_code
        if not others:
            self._watched.pop(self.pid, None)

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        if self._on_exit:
            self._on_exit(self)

    def signal(self, signum: int) -> bool:
        """Send `signum` to exactly this process; False when it is gone."""
        if self._fd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._fd, signum)
        except ProcessLookupError:
            return False
        return True

    def signal_group(self, signum: int) -> bool:
        """Send `signum` to the process group that this process leads; False when all are gone.
        The group outlives its leader, but then its number may be anybody's: only while alive."""
        if self._fd < 0:
            return False
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return False
        return True

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the process has ended; False when `timeout` seconds passed first."""
        try:
            await asyncio.wait_for(self._ended.wait(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Stop watching; the process goes on and `on_exit` is not called."""
        self._on_exit = None
        self._release()


def processes_with(
    marker: bytes, *, in_environment: bool, beside_us: bool = False
) -> Iterator[ProcessIdentity]:
    """Find the processes whose initial environment holds the entry `marker`, or
    (in_environment=False) whose command line holds it as one argument; `beside_us`: only those in
    this process's own pid namespace. Looks at all of /proc once; used at the end of a session and
    at the start of an agent, for what escaped its process group or its ledger."""
    name = "environ" if in_environment else "cmdline"
    own = os.stat("/proc/self/ns/pid").st_ino if beside_us else None
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            identity = ProcessIdentity.of(int(entry))
            with open(f"/proc/{entry}/{name}", "rb") as file:
                found = marker in file.read().split(b"\0")
            if found and own is not None:
                found = os.stat(f"/proc/{entry}/ns/pid").st_ino == own
        except OSError:
            continue  # it ended, or is not ours to look at
        if found:
            yield identity
