"""The one string that lets a machine join a fleet: where, as which node, and whom to believe.

    singularity-join://TOKEN@ADDRESS:PORT/NODE/sha256:HASH

HASH is of the public key of the fleet's authority: whoever answers at the address must show a
certificate of that one, before the token is said. No character of it means anything to a shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from singularity_proxy.errors import BadRequest
from singularity_proxy.wire.tls import format_place

SCHEME = "singularity-join"

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a node can be called; it fits into a certificate's common name (64 characters)."""


@dataclass(frozen=True)
class JoinString:
    """What the string says."""

    address: str
    port: int
    node: str
    token: str
    pin: str
    """SHA-256 of the authority's public key, in hexadecimal digits."""

    def __str__(self) -> str:
        return (
            f"{SCHEME}://{self.token}@{format_place(self.address, self.port)}/{self.node}"
            f"/sha256:{self.pin}"
        )

    @classmethod
    def parse(cls, text: str) -> JoinString:
        """Read the string; raises `BadRequest`, which repeats nothing of it: it holds a secret."""
        text = text.strip()
        try:
            parts = urlsplit(text)
            address, port, token = parts.hostname, parts.port, parts.username
        except ValueError:
            address = port = token = None
        path = re.fullmatch(r"/([^/]+)/sha256:([0-9a-f]{64})", parts.path) if address else None
        if (
            not text.startswith(f"{SCHEME}://")
            or not (address and port and path)
            or not re.fullmatch(r"[0-9a-f]{16,128}", token or "")
            or not NODE_NAME.fullmatch(path[1])
        ):
            raise BadRequest(
                "this is not a whole join string, so nothing was sent: copy all of the line that "
                f"`jupyter singularity fleet token NODE` printed, from {SCHEME}:// to its end"
            )
        return cls(address, port, path[1], token or "", path[2])
