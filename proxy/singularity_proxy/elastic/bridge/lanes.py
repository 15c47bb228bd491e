"""Messages from one process to another, each once and in order, over a way that loses some: what
passes between the rendezvous of two parts. No sockets and no clock.

Messages are numbered from 1 and kept until the other side has confirmed them. When nothing is
confirmed for a while all that is kept is sent again; what comes twice, or out of order, is dropped.
Everything is in this process, so it travels in its image, and no bridge keeps anything.
"""

from __future__ import annotations

import struct
from collections import deque

from singularity_proxy.errors import BadRequest

_HEAD = struct.Struct("!BQ")
_MESSAGE, _CONFIRMED = 1, 2

WINDOW = 256
"""Most messages that are on their way without a confirmation."""


class Lane:
    """Both directions between this process and one other."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._confirmed = 0
        """Number of the last message that the other side has."""
        self._sent = 0
        self._received = 0
        self._told = 0
        self._before = 0
        """What was confirmed at the last tick."""

    def put(self, message: bytes) -> None:
        """Send this."""
        self._kept.append(message)

    @property
    def waits(self) -> bool:
        """Whether something was not confirmed yet."""
        return bool(self._kept)

    def take(self) -> list[bytes]:
        """What is to go over the way now."""
        out = []
        if self._told != self._received:
            self._told = self._received
            out.append(_HEAD.pack(_CONFIRMED, self._received))
        last = min(self._confirmed + len(self._kept), self._confirmed + WINDOW)
        while self._sent < last:
            message = self._kept[self._sent - self._confirmed]
            self._sent += 1
            out.append(_HEAD.pack(_MESSAGE, self._sent) + message)
        return out

    def came(self, frame: bytes) -> bytes | None:
        """What `take` of the other side gave; the message in it if it is the next one. Raises
        BadRequest for anything else."""
        if len(frame) < _HEAD.size:
            raise BadRequest("what came for the rendezvous of ranks is no message")
        kind, number = _HEAD.unpack_from(frame)
        if kind == _CONFIRMED:
            while self._confirmed < min(number, self._sent):
                self._kept.popleft()
                self._confirmed += 1
            return None
        if kind != _MESSAGE:
            raise BadRequest("what came for the rendezvous of ranks is no message")
        if number != self._received + 1:
            self._told = -1  # it is told again what there is
            return None
        self._received = number
        return frame[_HEAD.size :]

    def rewind(self) -> None:
        """What was sent may be lost."""
        self._sent = self._confirmed
        self._told = -1 if self._received else 0

    def tick(self) -> None:
        """Some time has passed: what was not confirmed in it is sent again."""
        if self._kept and self._sent > self._confirmed == self._before:
            self.rewind()
        self._before = self._confirmed
