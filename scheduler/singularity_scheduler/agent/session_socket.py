"""The two sockets inside a session's folder: calls (magics, workers) and the doorbell.

Both have rights on this one session only, and only its uid may use them. They are bound in the
agent's private folder and then renamed into the session's: that folder belongs to the user, and a
`chown` there would follow a link that the user put in the socket's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable

from singularity_proxy.wire import rpc
from singularity_proxy.wire.limits import SESSION, Held

MAX_DATAGRAMS = 64
"""Doorbell datagrams read in one turn of the event loop."""


class SessionSocket:
    """Serves `handlers` at `<folder>/agent.sock` and reads rings at `<folder>/doorbell`."""

    def __init__(
        self,
        folder: str,
        private_dir: str,
        *,
        uid: int,
        gid: int,
        handlers: dict[str, rpc.Handler],
        on_need: Callable[[str], None],
        within: Held,
    ) -> None:
        self._folder = folder
        self._private = private_dir
        self._uid = uid
        self._owner = (uid, gid) if os.geteuid() == 0 else None
        self._handlers = handlers
        self._on_need = on_need
        self._within = within
        """What all sessions of this user hold of the agent's memory."""
        self._server: asyncio.AbstractServer | None = None
        self._doorbell: socket.socket | None = None
        self._peers: set[rpc.Peer] = set()

    @property
    def path(self) -> str:
        return os.path.join(self._folder, "agent.sock")

    @property
    def doorbell_path(self) -> str:
        return os.path.join(self._folder, "doorbell")

    async def start(self) -> None:
        """Listen. After an agent restart it replaces the dead sockets under the same names."""
        first = self._private_path()
        self._server = await rpc.serve(
            first,
            self._handlers,
            allowed_uids={self._uid},
            owner=self._owner,
            on_connect=self._peers.add,
            on_close=self._peers.discard,
            limits=SESSION,
            within=self._within,
        )
        os.rename(first, self.path)
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            first = self._private_path()
            old_mask = os.umask(0o177)
            try:
                bell.bind(first)
            finally:
                os.umask(old_mask)
            if self._owner:
                os.chown(first, *self._owner)
            bell.setblocking(False)
            bell.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            os.rename(first, self.doorbell_path)
        except BaseException:
            bell.close()
            raise
        self._doorbell = bell
        asyncio.get_running_loop().add_reader(bell.fileno(), self._ring)

    async def reopen(self) -> None:
        """Listen again after `close`; nothing happens when it does."""
        if self._server is None:
            await self.start()

    def _private_path(self) -> str:
        return os.path.join(self._private, f"new-{os.urandom(4).hex()}")

    def _ring(self) -> None:
        assert self._doorbell is not None
        size = struct.calcsize("3i")
        for _ in range(MAX_DATAGRAMS):
            try:
                data, extra, _, _ = self._doorbell.recvmsg(128, socket.CMSG_SPACE(size))
            except (BlockingIOError, InterruptedError):
                return
            uid = None
            for level, kind, value in extra:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    _, uid, _ = struct.unpack("3i", value[:size])
            word, _, ring_id = data.decode("ascii", "replace").strip("\0\n ").partition(" ")
            if uid == self._uid and word == "need":
                self._on_need(ring_id)

    async def close(self) -> None:
        """Stop serving, disconnect everybody, remove both sockets."""
        if self._doorbell:
            asyncio.get_running_loop().remove_reader(self._doorbell.fileno())
            self._doorbell.close()
            self._doorbell = None
        if self._server:
            self._server.close()
            for peer in list(self._peers):
                await peer.close()
            self._server = None
        for path in (self.path, self.doorbell_path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
