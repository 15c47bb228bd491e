"""A connection between two bridges: whole frames, both ways.

A protocol of its own and not a pair of streams, because what ranks bring is long. A body is read
from the TLS layer to where it stays, and leaves in pieces: of one long write all that is left is
moved for each piece that the socket takes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable

from singularity_proxy.errors import BadRequest

from .frames import HEADER, Kind, head

WRITE_BYTES = 256 << 10
"""Of a long body at a time."""
AHEAD = 2
"""Frames that have come and were not taken; then nothing more is read."""


class Connection(asyncio.BufferedProtocol):
    """Made by `create_connection` and `create_server` of the running loop, over TLS; `made` is
    called with it when the other end is known. One task reads, several may send."""

    def __init__(self, made: Callable[[Connection], object] | None = None) -> None:
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lost = self._loop.create_future()
        self._head = bytearray(HEADER.size)
        self._kind = 0
        self._body: bytearray | None = None
        """Of the frame that is coming; None: its head is not whole yet."""
        self._at = 0
        """So many bytes of that, or of the head, are there."""
        self._frames: collections.deque[tuple[int, bytearray]] = collections.deque()
        self._came = asyncio.Event()
        self._heard = 0.0
        self._room = asyncio.Event()
        self._room.set()
        self._long = asyncio.Lock()
        """Held while a long frame is written."""
        self._behind: list[bytes] = []
        """Short ones that wait for that."""

    # ---- for tasks

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def read(self, silence_s: float) -> tuple[Kind, bytearray]:
        """The next frame: kind and body. Raises TimeoutError when nothing at all comes for
        `silence_s` seconds, EOFError at the end, BadRequest for a kind that there is not."""
        began = self._loop.time()
        while not self._frames:
            if self._lost.done():
                raise EOFError
            left = max(self._heard, began) + silence_s - self._loop.time()
            if left <= 0:
                raise TimeoutError
            self._came.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._came.wait()
        kind, body = self._frames.popleft()
        if len(self._frames) == AHEAD - 1 and self._transport is not None:
            self._transport.resume_reading()
        try:
            return Kind(kind), body
        except ValueError:
            raise BadRequest(f"a bridge sent a frame of kind {kind}, which is unknown") from None

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """A short frame; lost when the connection is."""
        if self._transport is None or self._transport.is_closing():
            return
        frame = head(kind, body) + body
        if self._long.locked():
            self._behind.append(frame)
        else:
            self._transport.write(frame)

    async def send_long(self, kind: Kind, body: bytes, silence_s: float | None = None) -> None:
        """A frame of any length, behind those that were sent before; returns when there is room for
        more. Raises ConnectionResetError when the connection has ended, and TimeoutError when the
        other end takes nothing for `silence_s` seconds (None: as long as the connection lives);
        there is no connection any more then."""
        async with asyncio.timeout(silence_s):
            await self._long.acquire()
        try:
            self._write(head(kind, body))
            whole = memoryview(body)
            for at in range(0, len(whole), WRITE_BYTES):
                self._write(whole[at : at + WRITE_BYTES])
                async with asyncio.timeout(silence_s):
                    await self._room.wait()
            for frame in self._behind:
                self._write(frame)
        except BaseException:  # half a frame was sent
            self.abort()
            raise
        finally:
            self._behind.clear()
            self._long.release()

    def _write(self, piece: bytes | memoryview) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection has ended")
        self._transport.write(piece)

    def close(self) -> None:
        """When what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once; a good end would wait for an answer."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._lost)

    # ---- for the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._made is not None:
            self._made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._head if self._body is None else self._body)[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
        self._at += nbytes
        if self._body is None:
            if self._at < HEADER.size:
                return
            self._kind, length = HEADER.unpack(self._head)
            try:
                self._body, self._at = bytearray(length), 0
            except (MemoryError, OverflowError):
                return self.abort()
        if self._at < len(self._body):
            return
        self._frames.append((self._kind, self._body))
        self._body, self._at = None, 0
        self._came.set()
        if len(self._frames) == AHEAD and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        self._room.set()
        self._came.set()
