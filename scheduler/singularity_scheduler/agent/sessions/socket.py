"""The two sockets inside a session's folder: calls (magics, workers) and the doorbell.

At the doorbell a worker says `need RING`, when it waits for a device, and `guard` with two
descriptors: a TCP socket that gets a filter (see `worker.store_guard`), and the end of a socket
pair for the answer, "y", or "n" where the agent may not either.

Both have rights on this one session only, and only its uid may use them. They are bound in the
agent's private folder and then renamed into the session's: that folder belongs to the user, and a
`chown` there would follow a link that the user put in the socket's place.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Sequence

from singularity_proxy.wire import rpc
from singularity_proxy.wire.limits import SESSION, Held
from singularity_proxy.wire.peers import attach_no_data_filter

MAX_DATAGRAMS = 64
"""Doorbell datagrams read in one turn of the event loop."""

MAX_GUARDS, PAUSE_S = 4, 0.1
"""Sockets of one session that get a filter at a time; while there are more, its doorbell is left
alone."""

_CREDENTIALS = struct.Struct("3i")
_EXTRA = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(2 * struct.calcsize("i"))
"""Room for who sent a datagram and for two descriptors; the kernel closes more of them."""


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
        self._guards: list[threading.Thread] = []

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
        for _ in range(MAX_DATAGRAMS):
            if sum(thread.is_alive() for thread in self._guards) >= MAX_GUARDS:
                self._pause()
                return
            try:
                data, extra, _, _ = self._doorbell.recvmsg(128, _EXTRA, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            uid, descriptors = None, array.array("i")
            for level, kind, value in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    _, uid, _ = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    whole = len(value) - len(value) % descriptors.itemsize
                    descriptors.frombytes(value[:whole])
            word, _, ring_id = data.decode("ascii", "replace").strip("\0\n ").partition(" ")
            if descriptors:
                self._guard(list(descriptors), uid == self._uid and word == "guard")
            elif uid == self._uid and word == "need":
                self._on_need(ring_id)

    def _guard(self, descriptors: Sequence[int], wanted: bool) -> None:
        """Beside the loop: to close what somebody else has opened may take its time."""
        thread = threading.Thread(target=_guard, args=(descriptors, wanted), daemon=True)
        thread.start()
        self._guards = [*(one for one in self._guards if one.is_alive()), thread]

    def _pause(self) -> None:
        """Leave the doorbell alone for a moment."""
        loop = asyncio.get_running_loop()
        bell = self._doorbell
        assert bell is not None
        loop.remove_reader(bell.fileno())

        def listen_again() -> None:
            if self._doorbell is bell:
                loop.add_reader(bell.fileno(), self._ring)

        loop.call_later(PAUSE_S, listen_again)

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


def _guard(descriptors: Sequence[int], wanted: bool) -> None:
    """Attach the filter of stores to the TCP socket that is the first of two `descriptors`, if that
    is `wanted`, answer at the second, and close them. Blocks."""
    try:
        if not wanted or len(descriptors) != 2 or not _are_sockets(descriptors):
            return
        with socket.socket(fileno=os.dup(descriptors[0])) as listener:
            if listener.family not in (socket.AF_INET, socket.AF_INET6):
                return
            try:
                attach_no_data_filter(listener)
                answer = b"y"
            except PermissionError:
                answer = b"n"
        with socket.socket(fileno=os.dup(descriptors[1])) as end:
            end.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        pass  # it was handed something else, or has gone: the worker asks again
    finally:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _are_sockets(descriptors: Sequence[int]) -> bool:
    return all(stat.S_ISSOCK(os.fstat(one).st_mode) for one in descriptors)
