"""What goes over the connection between two bridges: frames of a header and a body."""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass

from singularity_proxy.errors import BadRequest

VERSION = 1
"""A bridge that speaks another one is refused with a sentence."""

HEADER = struct.Struct("!BxxxxxxxQ")
"""kind, bytes of the body; network byte order."""


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    """First, both ways: JSON object with version, part, parts."""
    FILES = 2
    """What `Mirror.changes` said, for `Mirror.apply`."""
    MEET = 3
    """From the rendezvous of one part to that of the other, see `lanes`; it may be lost."""
    PING = 4
    """Nothing to say; the connection lives."""
    OVER = 5
    """The part is over: all of its ranks have ended."""


@dataclass(frozen=True)
class Hello:
    """Who is at the other end."""

    part: int
    parts: int

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, "part": self.part, "parts": self.parts}).encode()

    @classmethod
    def decode(cls, body: bytes) -> Hello:
        """Raises BadRequest with a sentence when it is not one that this side understands."""
        try:
            said = json.loads(body)
            version, part, parts = (int(said[k]) for k in ("version", "part", "parts"))
        except (ValueError, TypeError, KeyError):
            raise BadRequest("what connected to the bridge does not speak its protocol") from None
        if version != VERSION:
            raise BadRequest(
                f"the bridge of part {part} speaks version {version} of the protocol, this one "
                f"{VERSION}: use the same jupyter-singularity on all nodes"
            )
        return cls(part, parts)


def head(kind: Kind, body: bytes = b"") -> bytes:
    """What goes before the body."""
    return HEADER.pack(kind, len(body))
