"""The place where ranks meet, in each part of a gang: `MASTER_PORT` on its loopback.

The store of `torch.distributed` is at this port on part 0. On the others it is this program, which
carries each connection to the `Rendezvous` of part 0, by way of the bridges, and that connects to
the store. It runs in a process of the capsule: so ranks are connected with nothing outside of it,
their connections travel in its image, and neither a move nor the death of a bridge breaks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

from singularity_proxy.elastic.ranks import part_of
from singularity_proxy.errors import SingularityError
from singularity_proxy.wire.peers import uid_of_peer

from .lanes import Lane

FILE = "rendezvous.json"
"""Where the bridge is, in the session's folder: {"port", "token"}. Written anew by each bridge."""

LOOPBACK = "127.0.0.1"
LOCAL = struct.Struct("!II")
"""Between here and the bridge: part, bytes that follow. With no bytes the bridge says of its own
part that a second has passed, and of another one that there is a new connection to it."""

PIECE_BYTES = 64 << 10
RETRY_SECONDS = 0.2
END_SECONDS = 2.0
MEET_SECONDS = 60.0
"""So long part 0 tries to reach the store: its ranks may start later."""

_MESSAGE = struct.Struct("!BI")
_OPEN, _DATA, _CLOSE = 1, 2, 3


class Rendezvous:
    """Of part `part`; `file` says where its bridge is. `run` it in an event loop to its end."""

    def __init__(self, part: int, port: int, file: Path) -> None:
        self._part = part
        self._port = port
        self._file = file
        self._lanes: dict[int, Lane] = {}
        self._streams: dict[tuple[int, int], asyncio.Queue[bytes]] = {}
        """(part, number) -> what came for the connection here; b"": it was closed there."""
        self._numbers = 0
        self._bridge: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        if self._part:
            self._server = await asyncio.start_server(self._rank, LOOPBACK, self._port)
        self._spawn(self._keep_connected())

    async def stop(self) -> None:
        """What ranks have said last still goes out, if that takes no longer than `END_SECONDS`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while any(lane.waits for lane in self._lanes.values()):
                    await asyncio.sleep(0.02)
        if self._server:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the bridge

    async def _keep_connected(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, SingularityError):
                await self._connected()
            await asyncio.sleep(RETRY_SECONDS)

    async def _connected(self) -> None:
        said = json.loads(await asyncio.to_thread(self._file.read_text))
        reader, writer = await asyncio.open_connection(LOOPBACK, int(said["port"]))
        try:
            writer.write(bytes.fromhex(said["token"]))
            self._bridge = writer
            for part, lane in self._lanes.items():
                lane.rewind()
                self._send(part)
            while True:
                part, length = LOCAL.unpack(await reader.readexactly(LOCAL.size))
                if length:
                    self._came(part, await reader.readexactly(length))
                elif part == self._part:
                    self._tick()
                elif part in self._lanes:
                    self._lanes[part].rewind()
                    self._send(part)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            self._bridge = None
            writer.close()

    def _tick(self) -> None:
        for part, lane in self._lanes.items():
            lane.tick()
            self._send(part)

    def _send(self, part: int) -> None:
        """What a lane has goes out; without a bridge it waits for the next one."""
        if self._bridge is not None and not self._bridge.is_closing():
            for frame in self._lanes[part].take():
                self._bridge.write(LOCAL.pack(part, len(frame)) + frame)

    def _say(self, part: int, what: int, number: int, data: bytes = b"") -> None:
        self._lanes.setdefault(part, Lane()).put(_MESSAGE.pack(what, number) + data)
        self._send(part)

    def _came(self, part: int, frame: bytes) -> None:
        lane = self._lanes.setdefault(part, Lane())
        era = lane.era
        message = lane.came(frame)
        if lane.era != era:  # images that did not fit: what was said is lost
            for stream in [one for one in self._streams if one[0] == part]:
                self._streams.pop(stream).put_nowait(b"")
        self._send(part)
        if message is None or len(message) < _MESSAGE.size:
            return
        what, number = _MESSAGE.unpack_from(message)
        if what == _OPEN and self._part == 0:
            came = self._streams[part, number] = asyncio.Queue[bytes]()
            self._spawn(self._meet(part, number, came))
        elif (part, number) in self._streams:
            data = message[_MESSAGE.size :] if what == _DATA else b""
            self._streams[part, number].put_nowait(data)

    # ---- connections

    async def _rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A rank of this part wants to meet the others; nobody else may."""
        try:
            uid = uid_of_peer(writer.get_extra_info("socket"))
        except OSError:  # gone already, or it cannot be looked up
            uid = None
        if uid != os.geteuid():
            writer.close()
            return
        self._numbers += 1
        number = self._numbers
        came = self._streams[0, number] = asyncio.Queue[bytes]()
        self._say(0, _OPEN, number)
        await self._carry(0, number, came, reader, writer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _meet(self, part: int, number: int, came: asyncio.Queue[bytes]) -> None:
        """One of another part does."""
        for _ in range(int(MEET_SECONDS / RETRY_SECONDS)):
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
                break
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self._end(part, number, came)
            return
        await self._carry(part, number, came, reader, writer)

    async def _carry(
        self,
        part: int,
        number: int,
        came: asyncio.Queue[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        out = asyncio.create_task(self._out(part, number, reader))
        into = asyncio.create_task(self._into(came, writer))
        try:
            await asyncio.wait({out, into}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (out, into):
                task.cancel()
            await asyncio.gather(out, into, return_exceptions=True)
            self._end(part, number, came)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _out(self, part: int, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                self._say(part, _DATA, number, data)

    async def _into(self, queue: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await queue.get():
                writer.write(data)
                await writer.drain()

    def _end(self, part: int, number: int, came: asyncio.Queue[bytes]) -> None:
        # Images that did not fit may have two connections of one number, one after the other.
        if self._streams.get((part, number)) is came:
            del self._streams[part, number]
            self._say(part, _CLOSE, number)


@contextlib.contextmanager
def kept(environ: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile there is a rendezvous in this process, if `environ` says that its session is a part
    of a gang. Called by the first process of a capsule, around what it runs. Raises OSError when
    somebody has its port."""
    part, parts = part_of(environ)
    if parts == 1:
        yield
        return
    file = Path(os.path.dirname(environ["SINGULARITY_SOCKET"])) / FILE
    one = Rendezvous(part, int(environ["MASTER_PORT"]), file)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="rendezvous", daemon=True)
    thread.start()

    def call(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(2 * END_SECONDS)

    try:
        call(one.start())
        try:
            yield
        finally:
            with contextlib.suppress(TimeoutError):  # what ran has ended, however long this takes
                call(one.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
