"""The few things the relay has to know about Jupyter's messages, which otherwise pass unread.

A message is [routing prefix ..., DELIMITER, signature, header, parent header, metadata, content,
buffers ...]. The relay reads message types, drops requests without the session's signature as the
kernel would (anybody on the machine can reach its ports, and requests take disk space), and signs
the two kinds of messages that it sends itself: the welcome for a client that subscribes, and
answers to `kernel_info_request` while the kernel is away. Pure functions, standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

DELIMITER = b"<IDS|MSG>"


def split(parts: Sequence[bytes]) -> tuple[list[bytes], list[bytes]] | None:
    """Routing prefix and message from the signature on; None when it is not a Jupyter message."""
    try:
        place = list(parts).index(DELIMITER)
    except ValueError:
        return None
    message = list(parts[place + 1 :])
    return (list(parts[:place]), message) if len(message) >= 5 else None


def header(parts: Sequence[bytes]) -> dict[str, Any]:
    """The header of a message, {} when it has none that can be read."""
    return _header(parts, 1)


def parent(parts: Sequence[bytes]) -> dict[str, Any]:
    """The parent header of a message, {} when it has none that can be read."""
    return _header(parts, 2)


def _header(parts: Sequence[bytes], place: int) -> dict[str, Any]:
    found = split(parts)
    if found is None:
        return {}
    try:
        value = json.loads(found[1][place])
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Signer:
    """Makes signed messages in the name of the kernel."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._key = str(connection.get("key") or "").encode()
        scheme = str(connection.get("signature_scheme") or "hmac-sha256")
        self._digest = scheme.removeprefix("hmac-")
        hashlib.new(self._digest)  # ValueError for one that does not exist
        self._session = uuid.uuid4().hex

    def message(
        self,
        prefix: Sequence[bytes],
        msg_type: str,
        content: Mapping[str, Any] | bytes,
        parent_header: Mapping[str, Any],
        like: Mapping[str, Any],
    ) -> list[bytes]:
        """A message of `msg_type` behind the routing `prefix`, with the fields of the header
        `like` that say which kernel speaks (session, username, version)."""
        head = {
            "session": self._session,
            "username": "kernel",
            "version": "5.4",
            **{k: like[k] for k in ("session", "username", "version", "subshell_id") if k in like},
            "msg_id": uuid.uuid4().hex,
            "msg_type": msg_type,
            "date": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
        }
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        signed = [json.dumps(head).encode(), json.dumps(parent_header).encode(), b"{}", body]
        return [*prefix, DELIMITER, self._sign(signed), *signed]

    def valid(self, parts: Sequence[bytes]) -> bool:
        """Whether a message carries the session's signature; without a key every one does."""
        if not self._key:
            return True
        found = split(parts)
        if found is None:
            return False
        signature, *rest = found[1]
        return hmac.compare_digest(signature, self._sign(rest[:4]))

    def signed(self, parts: Sequence[bytes]) -> list[bytes]:
        """The same message with this signature; what is none stays as it is."""
        found = split(parts)
        if found is None:
            return list(parts)
        prefix, (_, *rest) = found
        return [*prefix, DELIMITER, self._sign(rest[:4]), *rest]

    def _sign(self, parts: Sequence[bytes]) -> bytes:
        if not self._key:
            return b""
        made = hmac.new(self._key, digestmod=self._digest)
        for part in parts:
            made.update(part)
        return made.hexdigest().encode()
