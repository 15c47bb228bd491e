"""Connections of ranks to the place where they meet: from a port here, through a bridge's link, to
the same place on part 0."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from .frames import Kind

PIECE_BYTES = 64 << 10
MEET_SECONDS = 60.0
"""So long part 0 tries to reach the place where ranks meet: its ranks may start later."""
RETRY_SECONDS = 0.05
LOOPBACK = "127.0.0.1"

Send = Callable[[Kind, bytes, int], None]
"""Puts a frame of a stream on the link: kind, body, stream."""


class Streams:
    """Those of one link. `send` never waits: what ranks say there is little."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._numbers = 0
        self._incoming: dict[int, asyncio.Queue[bytes]] = {}
        """Stream -> what came over the link for the connection here; b"" is its end."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A rank of this part has connected; returns when either end has closed."""
        self._numbers += 1
        number = self._numbers
        self._incoming[number] = asyncio.Queue()
        self._send(Kind.OPEN, b"", number)
        await self._pump(number, reader, writer)

    def opened(self, number: int, port: int) -> None:
        """A rank of the other part wants to connect to `port` here."""
        self._incoming[number] = asyncio.Queue()
        task = asyncio.create_task(self._meet(number, port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def came(self, number: int, data: bytes) -> None:
        """From the other part; b"": it has closed. For a stream that has ended here: nothing."""
        if number in self._incoming:
            self._incoming[number].put_nowait(data)

    def close(self) -> None:
        """The link is gone."""
        for queue in self._incoming.values():
            queue.put_nowait(b"")
        for task in self._tasks:
            task.cancel()

    async def _meet(self, number: int, port: int) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + MEET_SECONDS
        while True:
            try:
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                break
            except OSError:
                if clock() > until:
                    self._end(number)
                    return
                await asyncio.sleep(RETRY_SECONDS)
        await self._pump(number, reader, writer)

    async def _pump(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        out = asyncio.create_task(self._out(number, reader))
        into = asyncio.create_task(self._into(number, writer))
        try:
            await asyncio.wait({out, into}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (out, into):
                task.cancel()
            await asyncio.gather(out, into, return_exceptions=True)
            self._end(number)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _out(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                self._send(Kind.DATA, data, number)

    async def _into(self, number: int, writer: asyncio.StreamWriter) -> None:
        queue = self._incoming[number]
        with contextlib.suppress(OSError):
            while data := await queue.get():
                writer.write(data)
                await writer.drain()

    def _end(self, number: int) -> None:
        if self._incoming.pop(number, None) is not None:
            self._send(Kind.CLOSE, b"", number)
