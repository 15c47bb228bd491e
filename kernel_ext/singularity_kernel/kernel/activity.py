"""Busy and idle reports of a kernel to its node agent, over the per-session socket.

The scheduler parks idle notebooks first, so it must know when a cell runs. IPython calls
`Activity.before` and `Activity.after` around every cell, in whatever thread the cell runs in
(ipykernel's subshells have their own). A report is one line written to a non-blocking socket: some
microseconds, never an exception, never a wait. A daemon thread sleeps on the same socket; when the
agent ends it connects again and tells the present state, because a restarted agent knows none.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any

from singularity_kernel.provision.environment import NESTED

RECONNECT_S = 0.2
RECONNECT_MAX_S = 5.0
"""Between two tries to reach an agent that is away: starts at the first, doubles to the second."""


class Activity:
    """Counts running cells of one shell and reports the changes. `start` and `stop` once each."""

    def __init__(self, ip: Any, path: str) -> None:
        self._ip = ip
        self._path = path
        self._lock = threading.Lock()
        self._cells: dict[int, tuple[Any, int]] = {}  # id(info) -> (info, thread); keeps ids unique
        self._sock: socket.socket | None = None
        self._told: bool | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._stay_connected, name="singularity-activity", daemon=True
        )
        self._starting_cell = _in_a_cell(ip)

    @classmethod
    def from_environment(cls, ip: Any) -> Activity | None:
        """The reporter of this kernel; None outside a session and in kernels nested in one."""
        path = os.environ.get("SINGULARITY_SOCKET")
        return cls(ip, path) if path and not os.environ.get(NESTED) else None

    def start(self) -> None:
        """Register with IPython and connect. A kernel that loads this at its start is idle; one
        that loads it in a cell is busy until that cell ends."""
        self._ip.events.register("pre_run_cell", self.before)
        self._ip.events.register("post_run_cell", self.after)
        with self._lock:
            self._connect()
        self._thread.start()

    def stop(self) -> None:
        """Leave IPython, close the connection, end the thread."""
        self._ip.events.unregister("pre_run_cell", self.before)
        self._ip.events.unregister("post_run_cell", self.after)
        self._stopping.set()
        with self._lock:
            self._disconnect()
        self._thread.join(timeout=5)

    @property
    def busy(self) -> bool:
        return self._starting_cell or bool(self._cells)

    def before(self, info: Any) -> None:
        """A cell starts (IPython's pre_run_cell)."""
        with self._lock:
            self._cells[id(info)] = (info, threading.get_ident())
            self._tell()

    def after(self, result: Any) -> None:
        """A cell ended (IPython's post_run_cell). Also called for empty cells, which never
        started, and with None for cancelled ones: then it is this thread's newest."""
        with self._lock:
            self._starting_cell = False
            if result is not None:
                self._cells.pop(id(result.info), None)
            else:
                here = threading.get_ident()
                mine = [key for key, (_, thread) in self._cells.items() if thread == here]
                if mine:
                    del self._cells[mine[-1]]
            self._tell()

    # -- the connection; all with the lock held ---------------------------------------------

    def _tell(self) -> None:
        if self._sock is None or self._told == self.busy:
            return
        line = json.dumps({"method": "activity", "params": {"busy": self.busy}}) + "\n"
        try:
            if self._sock.send(line.encode(), socket.MSG_DONTWAIT) == len(line):
                self._told = self.busy
                return
        except OSError:
            pass
        self._disconnect()  # away, or so far behind that its buffer is full: the thread reconnects

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            return
        sock.setblocking(True)  # the thread sleeps in recv; `_tell` never waits
        self._sock, self._told = sock, None
        self._tell()

    def _disconnect(self) -> None:
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread
            except OSError:
                pass
            self._sock.close()
        self._sock, self._told = None, None

    def _stay_connected(self) -> None:
        pause = RECONNECT_S
        while not self._stopping.is_set():
            with self._lock:
                # A duplicate: the original may be closed, and its number reused, while we sleep.
                watched = self._sock.dup() if self._sock is not None else None
            if watched is not None:
                connected_at = time.monotonic()
                with watched:
                    _wait_for_end(watched)
                with self._lock:
                    self._disconnect()
                if time.monotonic() - connected_at > RECONNECT_MAX_S:  # else it refuses us
                    pause = RECONNECT_S
            if self._stopping.wait(pause):
                return
            pause = min(pause * 2, RECONNECT_MAX_S)
            with self._lock:
                if self._sock is None and not self._stopping.is_set():
                    self._connect()


def _wait_for_end(sock: socket.socket) -> None:
    """Block until the other end of `sock` closes; notifications are never answered, so whatever
    else comes is dropped."""
    try:
        while sock.recv(4096):
            pass
    except OSError:
        pass


def _in_a_cell(ip: Any) -> bool:
    """True while the shell executes a request: the extension is being loaded by a cell."""
    kernel = getattr(ip, "kernel", None)
    try:
        return bool(kernel is not None and kernel.get_parent("shell"))
    except Exception:  # no kernel of ipykernel's: nothing is known, and the first cell will tell
        return False
