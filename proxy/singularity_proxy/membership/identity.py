"""What a node keeps of the fleet that it has joined, in the agent's state folder (0700).

The key is made here and never leaves the machine. A renewed certificate replaces the old one as a
whole, so a killed agent has the one or the other.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from singularity_proxy.errors import BadRequest, NotFound

FOLDER = "fleet"
"""In the agent's state folder, 0700."""

AUTHORITY, CERTIFICATE, KEY, MEMBERSHIP = (
    *("authority.pem", "node.pem", "node.key", "membership.json"),
)


@dataclass(frozen=True)
class Membership:
    """Which node this is, and where its service listens."""

    node: str
    address: str
    port: int
    store: str = ""
    """Folder of the checkpoint store that all nodes share, as the service names it."""


@dataclass(frozen=True)
class Identity:
    """All that a node dials with; certificates and key are PEM."""

    membership: Membership
    authority: bytes
    certificate: bytes
    key: bytes

    @property
    def pem(self) -> bytes:
        """What it shows."""
        return self.certificate + self.key

    def save(self, state_dir: str) -> None:
        """Keep it; what was kept before is replaced. May raise OSError."""
        folder = os.path.join(state_dir, FOLDER)
        os.makedirs(folder, 0o700, exist_ok=True)
        write_private(os.path.join(folder, KEY), self.key)
        write_private(os.path.join(folder, AUTHORITY), self.authority)
        write_private(os.path.join(folder, CERTIFICATE), self.certificate)
        body = json.dumps(asdict(self.membership)).encode()
        write_private(os.path.join(folder, MEMBERSHIP), body)  # last: now it has joined

    def save_certificate(self, state_dir: str) -> None:
        """Keep a renewed certificate for the same key. May raise OSError."""
        write_private(os.path.join(state_dir, FOLDER, CERTIFICATE), self.certificate)

    @classmethod
    def load(cls, state_dir: str) -> Identity:
        """Read what was kept; raises `NotFound` where nothing has joined, and `BadRequest`."""
        folder = os.path.join(state_dir, FOLDER)
        try:
            body, authority, certificate, key = (
                _read(folder, name) for name in (MEMBERSHIP, AUTHORITY, CERTIFICATE, KEY)
            )
        except OSError as error:
            raise NotFound(
                f"{folder} has nothing of a fleet that this machine has joined "
                f"({error.strerror}): `jupyter singularity node join` joins one",
                folder=folder,
            ) from None
        try:
            membership = Membership(**json.loads(body))
        except (ValueError, TypeError):
            raise BadRequest(
                f"{os.path.join(folder, MEMBERSHIP)} is damaged, so nothing was started: let this "
                "machine join again, with `jupyter singularity node join --again`"
            ) from None
        return cls(membership, authority, certificate, key)

    @staticmethod
    def kept(state_dir: str) -> bool:
        """Whether something has joined here."""
        return os.path.exists(os.path.join(state_dir, FOLDER, MEMBERSHIP))


def _read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def write_private(path: str, data: bytes) -> None:
    """Replace a file as a whole, for its owner alone (0600), durably. May raise OSError."""
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
