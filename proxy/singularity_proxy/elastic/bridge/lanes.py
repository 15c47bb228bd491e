"""Messages from one process to another, each once and in order, over a way that loses some: what
passes between the rendezvous of two parts. No sockets and no clock.

Messages are numbered from 1 and kept until the other side has confirmed them. When nothing is
confirmed for a while all that is kept is sent again; what comes twice, or out of order, is dropped.
Everything is in this process, so it travels in its image, and no bridge keeps anything.

Images of two processes that were taken while both went on may not fit: one may have got what the
other, as it is now, has never sent. So each side keeps a digest of all messages until then, each
way, and sends it along. Where two digests differ both begin a new `era`, with nothing in it.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque

from singularity_proxy.errors import BadRequest

_HEAD = struct.Struct("!BIQ16s")
"""Kind, era, number, and the digest: of a message of those before it, of a confirmation of all that
it confirms."""
_MESSAGE, _CONFIRMED = 1, 2
_NONE = bytes(16)

STRAYS = 3
WINDOW = 256
"""Most messages that are on their way without a confirmation."""


class Lane:
    """Both directions between this process and one other."""

    def __init__(self) -> None:
        self.era = 0
        """Counts how often everything began anew, on either side. Whoever sees that it has changed
        knows that messages were lost, and that nothing more comes of what was said before."""
        self._begin()

    def _begin(self) -> None:
        self._kept: deque[tuple[bytes, bytes]] = deque()
        """(digest of all messages before, message) of those that were not confirmed."""
        self._digest = self._received_digest = _NONE
        self._confirmed = self._sent = self._received = 0
        self._told = 0
        """What was received when the other side was told; -1: tell again."""
        self._before = 0
        """What was confirmed at the last tick."""
        self._stray = 0
        """How often less was confirmed than before: once may be a frame of an old connection."""

    @property
    def waits(self) -> bool:
        """Whether something was not confirmed yet."""
        return bool(self._kept)

    def put(self, message: bytes) -> None:
        """Send this."""
        self._kept.append((self._digest, message))
        self._digest = _after(self._digest, message)

    def take(self) -> list[bytes]:
        """What is to go over the way now."""
        out = []
        if self._told != self._received:
            self._told = self._received
            out.append(_HEAD.pack(_CONFIRMED, self.era, self._received, self._received_digest))
        last = min(self._confirmed + len(self._kept), self._confirmed + WINDOW)
        while self._sent < last:
            before, message = self._kept[self._sent - self._confirmed]
            self._sent += 1
            out.append(_HEAD.pack(_MESSAGE, self.era, self._sent, before) + message)
        return out

    def came(self, frame: bytes) -> bytes | None:
        """What `take` of the other side gave; the message in it if it is the next one. Raises
        BadRequest for anything else."""
        if len(frame) < _HEAD.size:
            raise BadRequest("what came for the rendezvous of ranks is no message")
        kind, era, number, digest = _HEAD.unpack_from(frame)
        if kind not in (_MESSAGE, _CONFIRMED):
            raise BadRequest("what came for the rendezvous of ranks is no message")
        if era > self.era:
            self._begin_anew(era)
        if era < self.era:  # it learns of this one
            self._told = -1
            return None
        if kind == _CONFIRMED:
            self._confirm(number, digest)
            return None
        if number != self._received + 1:
            self._told = -1  # it is told again what there is
            return None
        if digest != self._received_digest:
            self._begin_anew(self.era + 1)
            return None
        self._received = number
        message = frame[_HEAD.size :]
        self._received_digest = _after(digest, message)
        return message

    def _confirm(self, number: int, digest: bytes) -> None:
        """The other side has all messages up to this one."""
        last = self._confirmed + len(self._kept)
        if number < self._confirmed:
            self._stray += 1
            if self._stray < STRAYS:
                return
        lacks, never_sent = number < self._confirmed, number > last
        if lacks or never_sent or digest != self._digest_at(number):
            self._begin_anew(self.era + 1)
            return
        self._stray = 0
        while self._confirmed < number:
            self._kept.popleft()
            self._confirmed += 1
        self._sent = max(self._sent, self._confirmed)

    def _digest_at(self, number: int) -> bytes:
        """Of all messages up to this one, which is among the kept ones or the last before them."""
        place = number - self._confirmed
        return self._kept[place][0] if place < len(self._kept) else self._digest

    def _begin_anew(self, era: int) -> None:
        self._begin()
        self.era = era
        self._told = -1

    def rewind(self) -> None:
        """What was sent may be lost."""
        self._sent = self._confirmed
        self._told = -1

    def tick(self) -> None:
        """Some time has passed: what was not confirmed in it is sent again."""
        if self._kept and self._sent > self._confirmed == self._before:
            self.rewind()
        self._before = self._confirmed


def _after(digest: bytes, message: bytes) -> bytes:
    """The digest with one more message."""
    return hashlib.blake2b(digest + message, digest_size=16).digest()
