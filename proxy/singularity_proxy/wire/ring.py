"""The ring file of one (worker process, virtual device), seen from Python.

The node agent creates ring files, watches their header and deletes them; workers and device
proxies map the same file from C++ (`wire/ring.h` describes the same layout). Everything here goes
through `pread`/`pwrite` on the descriptor, never through a mapping that is read by the caller: the
file belongs to the session's user, who may truncate it, and touching a mapped page behind the end
of a file would end the agent, with the sessions of all other users, by SIGBUS. The one mapping
made is handed to the kernel alone, for `futex` wake-ups, which answers EFAULT instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import mmap
import os
import platform
import stat
import struct
from dataclasses import dataclass

from singularity_proxy.errors import BadRequest, Conflict, NoSpace

MAGIC = 0x53494E4752494E47
VERSION = 1
HEADER_BYTES = 64 << 10
REQUEST_BYTES = 8 << 20
"""Default size of the worker -> proxy ring, in bytes (a power of two)."""
REPLY_BYTES = 2 << 20
"""Default size of the proxy -> worker ring, in bytes (a power of two)."""

FAILURE_OFFSET = 1024
FAILURE_BYTES = 7168

STEPS_OFFSET = FAILURE_OFFSET + FAILURE_BYTES
"""Behind what `wire/ring.h` describes, in a page of its own: how many optimizer steps the worker
has done (64 bits). The worker counts in Python (`worker.steps`), the agent reads it here."""

_STATE = 64
_FUTEX_WAKE = 1
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}


class RingState(enum.IntEnum):
    """The futex word at offset 64. The agent moves it to `moving`, `failed` and `closed`; the
    device proxy to `attached` (after a restore) and back to `detached` (after a park)."""

    DETACHED = 0
    ATTACHED = 1
    MOVING = 2
    FAILED = 3
    CLOSED = 4


_U32 = {
    "version": 8,
    "virtual_device": 12,
    "state": _STATE,
    "generation": 68,
    "device_type": 88,
    "worker_waiting": 92,
    "capability": 768,
    "multiprocessors": 772,
}
_U64 = {
    "magic": 0,
    "request_bytes": 16,
    "reply_bytes": 24,
    "epoch": 72,
    "heartbeat_ns": 80,
    "memory_capacity": 96,
    "memory_current": 104,
    "memory_peak": 112,
    "last_record_ns": 120,
    "request_head": 128,
    "request_tail": 192,
    "reply_head": 384,
    "reply_tail": 448,
    "done_seq": 640,
    "error_seq": 648,
    "executing_seq": 664,
    "replied_seq": 704,
    "ring_memory_current": 728,
    "ring_memory_peak": 736,
    "ring_memory_reserved": 744,
    "device_memory": 752,
    "cudnn_version": 760,
}
_TEXT = {"device_name": (776, 48), "proxy_torch": (824, 32), "worker_torch": (856, 32)}
"""NUL terminated: offset and length in bytes."""

DEVICE_TYPES = {"cpu": 0, "cuda": 1}


@dataclass(frozen=True)
class RingHeader:
    """One look at the header; the words are read one after another while both sides work."""

    virtual_device: int
    state: RingState
    generation: int
    epoch: int
    worker_waiting: bool
    heartbeat_ns: int
    last_record_ns: int
    memory_current: int
    memory_peak: int
    done_seq: int
    error_seq: int
    executing_seq: int
    """The record that the proxy executes, or was executing when it was killed; 0: none."""
    replied_seq: int
    ring_memory_current: int
    pending: bool
    """The worker published requests that the proxy has not finished."""


@dataclass(frozen=True)
class RingPulse:
    """The words that tell whether a ring's proxy lives and works; see `RingFile.pulse`."""

    state: RingState
    heartbeat_ns: int
    executing_seq: int
    published: int = 0
    """Bytes of requests that the worker has ever published: it grows with every device call."""


class RingFile:
    """An open ring file. Used by the node agent (one per worker process and virtual device).

    Keep it open while the ring lives; `close` releases the descriptor and leaves the file.
    """

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        virtual_device: int,
        device_type: str,
        memory_capacity: int,
        request_bytes: int = REQUEST_BYTES,
        reply_bytes: int = REPLY_BYTES,
        owner: tuple[int, int] | None = None,
    ) -> RingFile:
        """Make the file (0600, all its memory reserved, state detached) and hand it to `owner`
        = (uid, gid). Raises `NoSpace` when /dev/shm has no room for it: a sparse file would end
        the worker by SIGBUS later instead. Raises FileExistsError when `path` exists."""
        path = os.fspath(path)
        for name, size in (("request_bytes", request_bytes), ("reply_bytes", reply_bytes)):
            if size < mmap.PAGESIZE or size & (size - 1):
                raise BadRequest(f"{name} must be a power of two of at least one page, not {size}")
        if device_type not in DEVICE_TYPES:
            raise BadRequest(f"unknown device type '{device_type}'", device_type=device_type)
        total = HEADER_BYTES + request_bytes + reply_bytes
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, total)
            os.posix_fallocate(fd, 0, total)
            ring = cls(fd, path)
            ring._put32("version", VERSION)
            ring._put32("virtual_device", virtual_device)
            ring._put32("device_type", DEVICE_TYPES[device_type])
            ring._put64("request_bytes", request_bytes)
            ring._put64("reply_bytes", reply_bytes)
            ring._put64("memory_capacity", memory_capacity)
            ring._put64("magic", MAGIC)
            os.fchmod(fd, 0o600)
            if owner:
                os.fchown(fd, *owner)
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(
                    f"there is no room for a device ring of {total >> 20} MiB in "
                    f"{os.path.dirname(path)}; nothing was changed: free shared memory "
                    "(end a session) and try again",
                    bytes=total,
                    path=path,
                ) from None
            raise
        return ring

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RingFile:
        """Open an existing ring file; raises `Conflict` when it is not one (a link, a short
        file, another version) and FileNotFoundError when there is none."""
        path = os.fspath(path)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise Conflict(f"{path} is not a ring file", path=path) from None
            raise
        ring = cls(fd, path)
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        if not regular or ring._get64("magic") != MAGIC or ring._get32("version") != VERSION:
            ring.close()
            raise Conflict(f"{path} is not a ring file of version {VERSION}", path=path)
        return ring

    def _put32(self, name: str, value: int) -> None:
        os.pwrite(self._fd, struct.pack("<I", value), _U32[name])

    def _put64(self, name: str, value: int) -> None:
        os.pwrite(self._fd, struct.pack("<Q", value), _U64[name])

    def _get32(self, name: str) -> int:
        data = os.pread(self._fd, 4, _U32[name])
        return int.from_bytes(data, "little")

    def _get64(self, name: str) -> int:
        # A copy of eight bytes by the kernel is not one load, so two equal looks are needed.
        data = os.pread(self._fd, 8, _U64[name])
        for _ in range(8):
            again = os.pread(self._fd, 8, _U64[name])
            if again == data:
                break
            data = again
        return int.from_bytes(data, "little")

    @property
    def state(self) -> RingState:
        """The state now; a value nobody defines (the file is its user's) reads as failed."""
        try:
            return RingState(self._get32("state"))
        except ValueError:
            return RingState.FAILED

    def read(self) -> RingHeader:
        """Look at the header words once."""
        return RingHeader(
            virtual_device=self._get32("virtual_device"),
            state=self.state,
            generation=self._get32("generation"),
            epoch=self._get64("epoch"),
            worker_waiting=self._get32("worker_waiting") != 0,
            heartbeat_ns=self._get64("heartbeat_ns"),
            last_record_ns=self._get64("last_record_ns"),
            memory_current=self._get64("memory_current"),
            memory_peak=self._get64("memory_peak"),
            done_seq=self._get64("done_seq"),
            error_seq=self._get64("error_seq"),
            executing_seq=self._get64("executing_seq"),
            replied_seq=self._get64("replied_seq"),
            ring_memory_current=self._get64("ring_memory_current"),
            pending=self._get64("request_head") != self._get64("request_tail"),
        )

    def queue(self) -> tuple[int, int]:
        """(Bytes that the worker has ever published, bytes of them that the proxy has finished)."""
        return self._get64("request_head"), self._get64("request_tail")

    def pulse(self) -> RingPulse | None:
        """A cheap look, for callers that look often; None when the file was truncated."""
        data = os.pread(self._fd, _U64["executing_seq"] + 8, 0)
        if len(data) < _U64["executing_seq"] + 8:
            return None
        state = int.from_bytes(data[_STATE : _STATE + 4], "little")
        beat, executing, published = (
            int.from_bytes(data[_U64[name] : _U64[name] + 8], "little")
            for name in ("heartbeat_ns", "executing_seq", "request_head")
        )
        known = RingState(state) if state in tuple(RingState) else RingState.FAILED
        return RingPulse(known, beat, executing, published)

    def steps(self) -> int:
        """How many optimizer steps its worker shows here; 0 when it counts in another ring."""
        return int.from_bytes(os.pread(self._fd, 8, STEPS_OFFSET), "little")

    def failure(self) -> str:
        """The sentence in the header: why the ring failed, or the last asynchronous error."""
        data = os.pread(self._fd, FAILURE_BYTES, FAILURE_OFFSET)
        return data.split(b"\0", 1)[0].decode("utf-8", "replace")

    def set_state(self, state: RingState) -> None:
        """Store `state` and wake everybody who sleeps on it."""
        self._put32("state", int(state))
        self.wake()

    def set_epoch(self, epoch: int) -> None:
        """Store the lease epoch that the next attach is made under."""
        self._put64("epoch", epoch)

    def clear_executing(self) -> None:
        """Forget which record a dead proxy was executing; called once that was counted."""
        self._put64("executing_seq", 0)

    def fail(self, sentence: str) -> None:
        """Fail the ring for good: the worker's next device call raises `sentence`."""
        data = sentence.encode("utf-8")[: FAILURE_BYTES - 1]
        os.pwrite(self._fd, data + b"\0", FAILURE_OFFSET)
        self.set_state(RingState.FAILED)

    def wake(self) -> None:
        """Wake all threads, of any process, that sleep on the state word (futex(2))."""
        number = _SYS_FUTEX.get(platform.machine())
        if number is None:
            return  # sleepers look again after 50 ms at the latest
        try:
            page = mmap.mmap(self._fd, mmap.PAGESIZE)
        except (ValueError, OSError):
            return  # truncated by its owner: nobody can sleep on it
        word = ctypes.c_uint32.from_buffer(page, _STATE)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(
            ctypes.c_long(number),
            ctypes.c_void_p(ctypes.addressof(word)),
            ctypes.c_int(_FUTEX_WAKE),
            ctypes.c_int(0x7FFFFFFF),
            None,
            None,
            ctypes.c_int(0),
        )
        del word
        page.close()

    def close(self) -> None:
        """Release the descriptor; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def retire(self) -> None:
        """End the ring: state closed (its worker's calls raise), descriptor and file gone."""
        if self._fd < 0:
            return
        try:
            self.set_state(RingState.CLOSED)
        finally:
            self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
