"""The CUDA driver's own process checkpoint: a device proxy leaves its GPU and comes back as it was.

`cuCheckpointProcess*` of libcuda (driver 570 and newer) move all GPU memory of another process into
that process's host memory and back, addresses included. `Driver` calls them by ctypes; because a
call may never return, `DriverHelper` makes them in a process of its own that can be killed, which
also pays the slow `cuInit` once. `park` and `unpark` are the two sequences.

A process whose checkpoint failed half-way cannot be used any more (`DriverLost`): its caller kills
it and rebuilds the device state from snapshot and journal, so nothing is parked this way without
those.

    python -m singularity_proxy.checkpoint.device.driver [--library PATH] [PID]

says whether the driver can do it (and what state PID is in), as JSON; with --serve it is the
helper.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import enum
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from singularity_proxy.errors import SingularityError, Unsupported, from_wire, to_wire

MODULE = "singularity_proxy.checkpoint.device.driver"
LIBRARY = "libcuda.so.1"
LOCK_SECONDS = 10.0
"""How long the driver may wait for work that was submitted before."""
COPY_SECONDS = 120.0
"""How long moving the memory may take, without what its size allows for."""
END_SECONDS = 5.0
"""How long is waited for the end of a helper that was killed."""
SLOWEST_BYTES_PER_S = 500 << 20
"""The least rate at which memory moves before a call counts as hung."""

_NOT_READY = 600
_S = TypeVar("_S", bound="DriverHelper")


class DriverUnavailable(Unsupported):
    """This machine's driver cannot checkpoint a process."""

    reason = "driver_unavailable"


class DriverFailed(SingularityError):
    """The driver refused, and the process runs on as before: park it by a copy."""

    reason = "driver_failed"


class DriverLost(SingularityError):
    """The process is in no usable state: end it and rebuild its device state."""

    reason = "driver_lost"


class DriverState(enum.IntEnum):
    """What `cuCheckpointProcessGetState` answers (CUprocessState)."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3


class _LockArgs(ctypes.Structure):
    _fields_ = [
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    ]


class _NoArgs(ctypes.Structure):
    """Checkpoint, restore and unlock arguments: 64 bytes of zeros."""

    _fields_ = [("words", ctypes.c_uint64 * 8)]


assert ctypes.sizeof(_LockArgs) == ctypes.sizeof(_NoArgs) == 64


class Driver:
    """The calls themselves, in this process. They may block for ever: see DriverHelper.

    Raises DriverUnavailable when there is no driver, it has no such functions, or cuInit fails.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise DriverUnavailable(
                f"no CUDA driver can be loaded here ({error}), so a device is parked by a copy."
            ) from error
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise DriverUnavailable(
                "this CUDA driver has no process checkpoint (570 and newer have it), so a device "
                "is parked by a copy."
            )
        if code := self._cuda.cuInit(0):
            raise DriverUnavailable(
                f"the CUDA driver does not start ({self._name(code)}), so a device is parked by "
                "a copy."
            )

    def version(self) -> int:
        """The driver's API version, 12080 for 12.8; 0 when it does not say."""
        number = ctypes.c_int()
        return number.value if self._cuda.cuDriverGetVersion(ctypes.byref(number)) == 0 else 0

    def state(self, pid: int) -> DriverState:
        number = ctypes.c_int(-1)
        self._check("GetState", pid, number)
        try:
            return DriverState(number.value)
        except ValueError:
            raise DriverFailed(
                f"the driver says that process {pid} is in state {number.value}, which is unknown",
                pid=pid,
            ) from None

    def lock(self, pid: int, timeout_ms: int) -> None:
        """RUNNING -> LOCKED: waits for submitted work, then holds every CUDA call it makes."""
        self._check("Lock", pid, _LockArgs(timeout_ms=timeout_ms))

    def checkpoint(self, pid: int) -> None:
        """LOCKED -> CHECKPOINTED: all its GPU memory moves to its host memory."""
        self._check("Checkpoint", pid, _NoArgs())

    def restore(self, pid: int) -> None:
        """CHECKPOINTED -> LOCKED, on the same GPUs."""
        self._check("Restore", pid, _NoArgs())

    def unlock(self, pid: int) -> None:
        """LOCKED -> RUNNING."""
        self._check("Unlock", pid, _NoArgs())

    def _check(self, what: str, pid: int, argument: ctypes.Structure | ctypes.c_int) -> None:
        call = getattr(self._cuda, f"cuCheckpointProcess{what}")
        code = call(ctypes.c_int(pid), ctypes.byref(argument))
        if code:
            busy = " (its work did not end in time)" if code == _NOT_READY else ""
            raise DriverFailed(
                f"the CUDA driver's {what.lower()} of process {pid} failed: "
                f"{self._name(code)}{busy}",
                pid=pid,
                code=code,
            )

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        with contextlib.suppress(AttributeError):
            self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        return text.value.decode() if text.value else f"CUDA error {code}"


class DriverHelper:
    """The driver's calls made by another process, each with a time limit. Thread-safe.

    Used by whoever owns device proxies (the node agent, `standalone`, `gpu`); make one per machine
    and keep it. `library` is the driver; the process is started at the first call. `on_start` is
    told its pid before it is asked anything; what it raises is raised by the call.
    """

    def __init__(
        self, library: str = LIBRARY, on_start: Callable[[int], None] | None = None
    ) -> None:
        self._library = library
        self._on_start = on_start
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the helper process, also in the middle of a call."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)  # inside the driver a process may not be killable
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def call(self, what: str, timeout_s: float, **params: Any) -> Any:
        """One call of `Driver` by name. Raises what it raises; DriverLost when it takes longer."""
        with self._lock:
            process = self._process  # `close` in another thread may take it away at any moment
            if process is None or process.poll() is not None:
                self.close()
                process = self._start()
            assert process.stdin is not None
            try:
                question = {"call": what, "limit_s": timeout_s, **params}
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
                line = self._lines.get(timeout=timeout_s)
            except (OSError, ValueError, queue.Empty):  # ValueError: it was closed
                line = ""
            if not line:
                self.close()
                raise DriverLost(
                    f"the CUDA driver's {what} did not return within {timeout_s:.0f} s", **params
                )
        answer = json.loads(line)
        if "error" in answer:
            raise from_wire(answer["error"])
        return answer["result"]

    def _start(self) -> subprocess.Popen[str]:
        lines: queue.Queue[str] = queue.Queue()
        self._lines = lines
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--serve", "--library", self._library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not end it in the middle of a call
        )

        def pump() -> None:
            assert process.stdout is not None
            with contextlib.suppress(ValueError, OSError):
                for line in process.stdout:
                    lines.put(line)
            lines.put("")

        threading.Thread(target=pump, name="driver-helper", daemon=True).start()
        if self._on_start is not None:
            try:
                self._on_start(process.pid)
            except BaseException:
                self.close()
                raise
        return process


@dataclass(frozen=True)
class Moved:
    """How long a park or unpark took, in seconds."""

    wait_s: float
    """Until the device's work had ended (park), or until it went on (unpark)."""
    copy_s: float

    @property
    def seconds(self) -> float:
        return self.wait_s + self.copy_s


def copy_limit(device_bytes: int) -> float:
    """Seconds that moving so many bytes may take before the driver counts as hung."""
    return COPY_SECONDS + device_bytes / SLOWEST_BYTES_PER_S


def host_free_bytes(pid: int | None = None) -> int:
    """Memory that process `pid` (default: this one) may still take: what the host has available
    (MemAvailable), and at most what the limits of its control groups (v2) leave; 0 when nobody
    says."""
    free = 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid or 'self'}/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                group = Path("/sys/fs/cgroup") / line[4:]
                for folder in (group, *group.parents):
                    free = min(free, _left_in(folder))
    return free


def _left_in(group: Path) -> int:
    """Bytes below the memory limit of a control group; very many where there is none."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        # What is cached of files is given up under pressure.
        for line in (group / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1])
    except (OSError, ValueError):
        return sys.maxsize
    return sys.maxsize if limit == "max" else max(0, int(limit) - used)


def park(helper: DriverHelper, pid: int, device_bytes: int) -> Moved:
    """Take process `pid` off its GPU. Its CUDA calls block until `unpark`.

    Raises DriverFailed (it runs on as before), DriverLost (kill it), DriverUnavailable.
    """
    start = time.monotonic()
    helper.call("lock", LOCK_SECONDS + 30, pid=pid, timeout_ms=int(LOCK_SECONDS * 1000))
    locked = time.monotonic()
    try:
        helper.call("checkpoint", copy_limit(device_bytes), pid=pid)
    except DriverFailed as error:
        _back_to_running(helper, pid, error)
        raise
    return Moved(locked - start, time.monotonic() - locked)


def unpark(helper: DriverHelper, pid: int, device_bytes: int) -> Moved:
    """Put a parked process back on its GPU. Raises DriverLost (kill it)."""
    start = time.monotonic()
    try:
        helper.call("restore", copy_limit(device_bytes), pid=pid)
        restored = time.monotonic()
        helper.call("unlock", LOCK_SECONDS + 30, pid=pid)
    except SingularityError as error:
        if isinstance(error, DriverLost):
            raise
        raise DriverLost(f"process {pid} cannot go back to its GPU: {error.message}") from error
    return Moved(time.monotonic() - restored, restored - start)


def _back_to_running(helper: DriverHelper, pid: int, error: DriverFailed) -> None:
    """After a failed checkpoint: unlock, if the driver says that this is all that is needed."""
    try:
        if helper.call("state", LOCK_SECONDS, pid=pid) == DriverState.LOCKED:
            helper.call("unlock", LOCK_SECONDS, pid=pid)
        if helper.call("state", LOCK_SECONDS, pid=pid) == DriverState.RUNNING:
            return
    except DriverFailed:
        pass
    raise DriverLost(f"{error.message}, and it does not run any more", pid=pid) from error


def _serve(library: str) -> int:
    """The helper: one JSON object per line in and out, until stdin ends. "limit_s" is how long the
    call may take."""
    driver: Driver | None = None
    questions: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def pump() -> None:
        until = 0.0
        for line in sys.stdin:
            question = json.loads(line)
            until = time.monotonic() + question.pop("limit_s")  # the one before was answered
            questions.put(question)
        questions.put(None)
        # Whoever asked is gone: what was begun may end, a call that hangs may not stay for ever.
        time.sleep(max(0.0, until - time.monotonic()))
        os._exit(1)

    threading.Thread(target=pump, daemon=True).start()
    while question := questions.get():
        what = question.pop("call")
        try:
            driver = driver or Driver(library)
            answer = {"result": getattr(driver, what)(**question)}
        except SingularityError as error:
            answer = {"error": to_wire(error)}
        print(json.dumps(answer), flush=True)
    return 0


def describe(library: str = LIBRARY, pid: int | None = None) -> dict[str, Any]:
    """What the driver can do, for reports: {"available", "reason" or "version"}; "conclusive" is
    False when its helper did not get to answer."""
    if library == LIBRARY and not Path("/dev/nvidiactl").exists():
        return {"available": False, "reason": "there is no NVIDIA device here"}
    with DriverHelper(library) as helper:
        try:
            found: dict[str, Any] = {"available": True, "version": helper.call("version", 60)}
            if pid is not None:
                found["state"] = DriverState(helper.call("state", 60, pid=pid)).name.lower()
            return found
        except SingularityError as error:
            lost = isinstance(error, DriverLost)
            return {"available": False, "reason": error.message, "conclusive": not lost}


def main(arguments: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m singularity_proxy.checkpoint.device.driver")
    parser.add_argument("--library", default=LIBRARY)
    parser.add_argument("--serve", action="store_true", help="answer calls on stdin")
    parser.add_argument("pid", nargs="?", type=int)
    options = parser.parse_args(arguments)
    if options.serve:
        return _serve(options.library)
    print(json.dumps(describe(options.library, options.pid)))
    return 0


if __name__ == "__main__":
    os.environ.pop("SINGULARITY_SESSION", None)
    sys.exit(main())
