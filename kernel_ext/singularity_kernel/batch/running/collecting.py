"""Carries what a run records to its node agent, at most once a second.

An agent that is away is tried again; the newest value of each name waits meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from singularity_proxy.errors import BadRequest, SingularityError
from singularity_proxy.wire.rpc import SyncPeer

from singularity_kernel.kernel.recording import RECORDED, line_of

SEND_S = 1.0
LAST_S = 2.0
"""So long the end of a run waits for an agent that is away: the run itself may be being ended."""
ANSWER_S = 5.0
MAX_READ = 1 << 20
"""Most bytes of the file that are looked at in one go."""

FILE = "recorded"
"""Its name in the session's folder, which travels with the session."""


class Collector:
    """Takes values by `put` and from the file, and sends them. One per run."""

    def __init__(self, socket: str, say: Callable[[str], None]) -> None:
        """`say` is told of values that are not kept."""
        self._socket = socket
        self._say = say
        self.path = os.path.join(os.path.dirname(socket), FILE)
        self._waiting: dict[str, Any] = {}
        self._refused: set[str] = set()
        self._offset = 0
        self._rest = b""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorded", daemon=True)

    @classmethod
    @contextmanager
    def running(
        cls, environ: MutableMapping[str, str], say: Callable[[str], None]
    ) -> Iterator[Collector | None]:
        """Collect meanwhile; `environ` gets the file's name. None outside a session."""
        socket = environ.get("SINGULARITY_SOCKET")
        if not socket:
            yield None
            return
        collector = cls(socket, say)
        environ[RECORDED] = collector.path
        collector._offset = _size(collector.path)  # what an attempt before this one wrote
        collector._thread.start()
        try:
            yield collector
        finally:
            collector._ending.set()
            collector._thread.join()
            collector._last()

    def put(self, name: str, value: Any) -> None:
        """A value was recorded; returns at once."""
        with self._lock:
            self._waiting.pop(name, None)
            self._waiting[name] = value

    def _run(self) -> None:
        while not self._ending.wait(SEND_S):
            self._send()

    def _last(self) -> None:
        give_up_at = time.monotonic() + LAST_S
        while not self._send(last=True) and time.monotonic() < give_up_at:
            time.sleep(0.1)

    def _send(self, last: bool = False) -> bool:
        """Send what there is; False when it waits on."""
        self._read(last)
        with self._lock:
            values, self._waiting = self._waiting, {}
        if not values:
            return True
        try:
            with SyncPeer(self._socket, timeout=ANSWER_S) as peer:
                refused = peer.call("record", values=values)["refused"]
        except (BadRequest, ValueError) as error:  # what no agent would take
            refused = [f"recorded values were not kept: {error}"]
        except (SingularityError, OSError):
            with self._lock:
                self._waiting = {**values, **self._waiting}
            return False
        for sentence in refused:
            if sentence not in self._refused:
                self._refused.add(sentence)
                self._say(f"note: {sentence}")
        return True

    def _read(self, last: bool) -> None:
        """Take the new lines of the file; all there are, and one without its end, only when no more
        can come."""
        while (new := self._new_bytes()) and last and len(new) == MAX_READ:
            self._take(new, last=False)
        self._take(new, last)

    def _new_bytes(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                if _size(self.path) < self._offset:  # somebody began it anew
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                new = file.read(MAX_READ)
        except OSError:
            return b""
        self._offset += len(new)
        return new

    def _take(self, new: bytes, last: bool) -> None:
        *lines, self._rest = (self._rest + new).split(b"\n")
        if len(self._rest) > MAX_READ:  # no line that could be kept is as long
            self._rest = self._rest[:MAX_READ]
        if last:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            if found := line_of(line.decode("utf-8", "replace")):
                self.put(*found)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


__all__ = ["Collector"]
