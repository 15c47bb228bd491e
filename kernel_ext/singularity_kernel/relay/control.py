"""The relay's control socket: how the node agent asks it and hears from it.

The protocol of `singularity_proxy.wire.rpc` (JSON lines over a unix socket, 0600, the peer's uid is
checked), served without asyncio from the relay's own loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Collection
from typing import Any

from singularity_proxy.errors import BadRequest, Forbidden, NotFound, SingularityError, to_wire
from singularity_proxy.wire.limits import (
    RELAY,
    line_too_long,
    line_too_slow,
    read_message,
    too_many_peers,
)

Handler = Callable[[dict[str, Any]], Any]


class _Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.read = b""
        self.began = 0.0
        """When the line began that is not ended yet."""
        self.unsent = b""


class Control:
    """The listening socket and its connections; the relay's loop polls `descriptors`."""

    def __init__(self, path: str, uids: Collection[int], handlers: dict[str, Handler]) -> None:
        self._handlers = handlers
        self._uids = uids
        self._path = path
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        old_mask = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(old_mask)
        self._listener.listen(8)
        self._listener.setblocking(False)
        self._peers: dict[int, _Peer] = {}

    def descriptors(self) -> dict[int, bool]:
        """What to wait for: descriptor -> also until it can be written."""
        found = {self._listener.fileno(): False}
        return found | {fd: bool(peer.unsent) for fd, peer in self._peers.items()}

    def serve(self, fd: int) -> None:
        """Something happened on descriptor `fd`."""
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._peers:
            self._exchange(self._peers[fd])

    def notify(self, method: str, **params: Any) -> None:
        """Tell everyone who is connected; dropped when nobody is."""
        for peer in list(self._peers.values()):
            self._send(peer, {"method": method, "params": params})

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        peer = _Peer(sock)
        self._drop_slow()
        full = len(self._peers) >= RELAY.peers
        self._peers[sock.fileno()] = peer
        who = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid = struct.unpack("3i", who)[1]
        if uid not in self._uids:
            self._refuse(peer, Forbidden(f"uid {uid} may not use this socket", uid=uid))
        elif full:
            self._refuse(peer, too_many_peers(RELAY))

    def _refuse(self, peer: _Peer, error: SingularityError) -> None:
        """Say why, and end the connection."""
        self._send(peer, {"id": 1, "error": to_wire(error)})
        self._drop(peer)

    def _drop_slow(self) -> None:
        """Make room: end connections whose line was not ended in time."""
        before = time.monotonic() - RELAY.line_s
        for peer in [one for one in self._peers.values() if one.read and one.began < before]:
            self._refuse(peer, line_too_slow(RELAY))

    def _exchange(self, peer: _Peer) -> None:
        if peer.unsent:
            self._write(peer)
        try:
            data = peer.sock.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        if not peer.read or b"\n" in data:
            peer.began = time.monotonic()
        *lines, peer.read = (peer.read + data).split(b"\n")
        for line in lines:
            if self._peers.get(peer.sock.fileno()) is peer:  # not refused meanwhile
                self._answer(peer, line)
        if len(peer.read) > RELAY.line_bytes:
            self._refuse(peer, line_too_long(RELAY))

    def _answer(self, peer: _Peer, line: bytes) -> None:
        try:
            message = read_message(line, RELAY)
            method, params = message["method"], message["params"]
        except (BadRequest, KeyError) as error:
            wrong = error if isinstance(error, BadRequest) else BadRequest("'method' is missing")
            self._refuse(peer, wrong)
            return
        call_id = message.get("id")
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise NotFound(f"the relay has no method '{method}'", method=method)
            answer = {"id": call_id, "result": handler(params)}
        except SingularityError as error:
            answer = {"id": call_id, "error": to_wire(error)}
        except (KeyError, TypeError, ValueError) as error:
            wrong = BadRequest(f"'{method}' was asked wrongly ({type(error).__name__}: {error})")
            answer = {"id": call_id, "error": to_wire(wrong)}
        if call_id is not None:
            self._send(peer, answer)

    def _send(self, peer: _Peer, message: dict[str, Any]) -> None:
        peer.unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._write(peer)

    def _write(self, peer: _Peer) -> None:
        try:
            sent = peer.sock.send(peer.unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._drop(peer)
            return
        peer.unsent = peer.unsent[sent:]
        if len(peer.unsent) > RELAY.unsent_bytes:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.sock.fileno(), None):
            peer.sock.close()

    def close(self) -> None:
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
