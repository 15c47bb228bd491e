"""Who else writes to files that sessions have open for writing: a watch by fanotify.

A session that goes back to an older checkpoint cuts a file that has grown since, so that what it
writes again is there once. That is right only for bytes of its own, and the system tells of each
write by which process it was done, to root alone. `WriterWatch.begin` is called at a checkpoint,
`foreign` at the way back. Without root, on another machine of a shared storage and for the time in
which no agent ran nothing is known; nor of what is written through memory (`mmap`).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import struct
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.tree import namespace_of

from .record import Record

_FAN_CLOEXEC = 1
_FAN_MARK_ADD, _FAN_MARK_REMOVE = 1, 2
_FAN_MODIFY, _FAN_Q_OVERFLOW = 2, 0x4000
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")
"""Length, version, reserved, length of this, mask, descriptor, pid."""

_READ_BYTES = 1 << 16
_DRAIN_S = 2.0

Inode = tuple[int, int]


@dataclass
class _File:
    path: str
    foreign_at: float = 0.0
    """When somebody else wrote last, in seconds since 1970."""


class WriterWatch:
    """One object per agent. Its thread begins with the first file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, dict[Inode, _File]] = {}
        self._namespaces: dict[str, str] = {}
        self._fd: int | None = None
        self._refused = os.geteuid() != 0
        self._libc = ctypes.CDLL(None, use_errno=True)

    def begin(self, session: str, capsule: NamespaceCapsule, record: Record) -> None:
        """Watch the files of `record` that the frozen `capsule` has open for writing. Raises
        nothing: what cannot be watched is not known."""
        wanted = {
            one.path: held
            for one in record.files
            if (one.place, one.use) == ("outside", "write")
            for held in one.held
            if held.writes
        }
        if not wanted or not self._is_open():
            return
        with self._lock:
            self._namespaces[session] = namespace_of(capsule.init.pid, "pid")
        for path, held in wanted.items():
            with contextlib.suppress(OSError):
                process = capsule.host_process(held.pid)
                if process is not None:
                    self._watch(session, path, f"/proc/{process.pid}/fd/{held.number}")

    def foreign(self, session: str, since: float) -> frozenset[str]:
        """Return the paths of this session's files to which somebody else wrote after `since`
        (seconds since 1970)."""
        with self._lock:
            found = self._files.get(session, {}).values()
            return frozenset(one.path for one in found if one.foreign_at > since)

    @contextlib.contextmanager
    def ignoring(self, session: str) -> Iterator[None]:
        """Count nothing as somebody else's that is written to the session's files meanwhile: what
        the agent does to them itself."""
        with self._lock:
            before = {id(one): one.foreign_at for one in self._files.get(session, {}).values()}
        try:
            yield
        finally:
            if before and self._fd is not None:
                self._drain(self._fd)
                with self._lock:
                    for one in self._files.get(session, {}).values():
                        one.foreign_at = before.get(id(one), one.foreign_at)

    @staticmethod
    def _drain(fd: int) -> None:
        """Wait until the thread has read what was there."""
        waiting = array.array("i", [1])
        deadline = time.monotonic() + _DRAIN_S
        while waiting[0] and time.monotonic() < deadline:
            time.sleep(0.005)
            fcntl.ioctl(fd, termios.FIONREAD, waiting)

    def forget(self, session: str) -> None:
        """Watch the files of a session no longer."""
        with self._lock:
            files = self._files.pop(session, {})
            self._namespaces.pop(session, None)
            gone = {
                inode: one
                for inode, one in files.items()
                if not any(inode in others for others in self._files.values())
            }
        for one in gone.values():
            self._mark(_FAN_MARK_REMOVE, one.path)

    def _is_open(self) -> bool:
        with self._lock:
            if self._fd is None and not self._refused:
                fd = self._libc.fanotify_init(_FAN_CLOEXEC, os.O_RDONLY | os.O_CLOEXEC)
                if fd < 0:
                    self._refused = True
                else:
                    self._fd = fd
                    threading.Thread(target=self._read, name="writers", daemon=True).start()
            return self._fd is not None

    def _watch(self, session: str, path: str, link: str) -> None:
        info = os.stat(link)
        with self._lock:
            files = self._files.setdefault(session, {})
            files.setdefault((info.st_dev, info.st_ino), _File(path))
        self._mark(_FAN_MARK_ADD, link)

    def _mark(self, what: int, path: str) -> None:
        mask = ctypes.c_uint64(_FAN_MODIFY)
        self._libc.fanotify_mark(self._fd, what, mask, _AT_FDCWD, os.fsencode(path))

    def _read(self) -> None:
        assert self._fd is not None
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except OSError:
                continue  # a file that cannot be opened for its event
            at = 0
            while at < len(data):
                length, _, _, _, mask, fd, pid = _EVENT.unpack_from(data, at)
                at += length
                if mask & _FAN_Q_OVERFLOW:
                    self._note(None, 0)
                if fd >= 0:
                    try:
                        info = os.fstat(fd)
                        self._note((info.st_dev, info.st_ino), pid)
                    finally:
                        os.close(fd)

    def _note(self, inode: Inode | None, pid: int) -> None:
        """Note a write to `inode` by `pid`; None: events were lost, so anybody may have written."""
        # "" of a process that has ended: it was not the session's main one.
        writer = namespace_of(pid, "pid") if pid else ""
        with self._lock:
            for session, files in self._files.items():
                if writer and writer == self._namespaces.get(session):
                    continue
                for known, one in files.items():
                    if inode is None or inode == known:
                        one.foreign_at = time.time()
