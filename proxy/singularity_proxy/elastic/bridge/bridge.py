"""One end of the bridges between the parts of a gang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from singularity_proxy.errors import BadRequest, SingularityError

from . import frames, peers
from .frames import Hello, Kind
from .identity import contexts
from .streams import LOOPBACK, Streams

log = logging.getLogger("singularity.bridge")

PIECE_BYTES = 4 << 20
"""About so much of what ranks brought goes into one frame."""
GREET_SECONDS = 10.0
PING_SECONDS = 2.0
SILENCE_SECONDS = 10.0
"""A link over which nothing came for so long is given up; a new one is made."""
RETRY_SECONDS = 0.3
PEERS_SECONDS = 0.3
"""How often the file with the addresses of the others is looked at."""
FAREWELL_SECONDS = 2.0
"""So long at most a part that is over tells the others."""
AGAIN_SECONDS = 0.5
"""After the files could not be read or written (no room): a new try."""


@dataclass(frozen=True)
class Settings:
    """What a bridge is for; see `__main__` for how it is said."""

    folder: Path
    """Of the session's rings and exchange files."""
    part: int
    parts: int
    key: bytes = field(repr=False)
    host: str
    """Address of this node where it listens for other parts."""
    port: int = 0
    """0: any that is free."""
    master_port: int = 0
    """Where ranks of this part meet, on the loopback; 0: any that is free."""
    peers: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise BadRequest(f"a gang of {self.parts} parts has no part {self.part}")


class Link:
    """A connection to the bridge of another part, from its greeting on."""

    def __init__(self, peer: int, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        self.writer = writer
        self.changed = asyncio.Event()
        self.streams = Streams(self.send)

    def send(self, kind: Kind, body: bytes = b"", stream: int = 0) -> None:
        if not self.writer.is_closing():
            self.writer.write(frames.head(kind, body, stream))
            if body:
                self.writer.write(body)


class Bridge:
    """Of one part. `async with` it, or `start` and `stop` it; all in one event loop.

    `mirror` is the native module's, of the same folder and part.
    """

    def __init__(self, settings: Settings, mirror: Any) -> None:
        self._is = settings
        self._mirror = mirror
        self._listens, self._connects = contexts(settings.key)
        self._links: dict[int, Link] = {}
        self._linked: dict[int, asyncio.Event] = {}
        self._where: dict[int, peers.Address] = {}
        self._over: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.master_port = 0

    async def start(self) -> None:
        """Listen, and connect to those parts whose place is known. Raises OSError when a port is
        taken."""
        one = self._is
        self._server = await asyncio.start_server(
            self._accepted, one.host, one.port, ssl=self._listens, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._meeting: asyncio.Server | None = None
        if one.part:
            self._meeting = await asyncio.start_server(self._rank, LOOPBACK, one.master_port)
            self.master_port = self._meeting.sockets[0].getsockname()[1]
        else:
            self.master_port = one.master_port or _free_port()
        asyncio.get_running_loop().add_reader(self._mirror.bell(), self._rung)
        self._spawn(self._watch_peers())
        for peer in range(one.part):
            self._spawn(self._keep_connected(peer))

    async def stop(self) -> None:
        """The part is over: the others are told, if they can be within `FAREWELL_SECONDS`."""
        self._server.close()
        if self._meeting:
            self._meeting.close()
        links = list(self._links.values())
        with contextlib.suppress(TimeoutError, OSError, SingularityError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await asyncio.gather(*(self._part_with(link) for link in links))
        asyncio.get_running_loop().remove_reader(self._mirror.bell())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Bridge:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- links

    async def _watch_peers(self) -> None:
        """Know where the others are; one that moved gets a new connection."""
        said = ""
        while self._is.peers is not None:
            try:
                before, self._where = self._where, peers.read(self._is.peers, self._is.parts)
                for peer, link in self._links.items():
                    if peer < self._is.part and self._where.get(peer) != before.get(peer):
                        link.writer.close()
            except (SingularityError, OSError) as error:
                if str(error) != said:
                    log.warning("%s", error)
                    said = str(error)
            await asyncio.sleep(PEERS_SECONDS)

    async def _keep_connected(self, peer: int) -> None:
        """To a part with a lower number; those with higher ones connect to this one."""
        said = ""
        while peer not in self._over:
            if peer in self._where:
                try:
                    await self._connect(peer)
                    said = ""
                except (OSError, TimeoutError, SingularityError) as error:
                    sentence = f"part {peer} cannot be reached ({error or type(error).__name__})"
                    if sentence != said:
                        log.warning("%s", sentence)
                        said = sentence
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self, peer: int) -> None:
        host, port = self._where[peer]
        async with asyncio.timeout(GREET_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._connects)
        await self._serve(reader, writer, lambda hello: hello.part == peer)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            try:
                await self._serve(reader, writer, lambda hello: hello.part > self._is.part)
            except SingularityError as error:
                log.warning("%s", error)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        expected: Callable[[Hello], bool],
    ) -> None:
        """A connection from its greeting to its end."""
        link: Link | None = None
        try:
            greeting = Hello(self._is.part, self._is.parts).encode()
            writer.write(frames.head(Kind.HELLO, greeting) + greeting)
            kind, _, body = await frames.read(reader, GREET_SECONDS)
            if kind is not Kind.HELLO:
                raise BadRequest("what connected to the bridge did not greet first")
            hello = Hello.decode(body)
            if hello.parts != self._is.parts or not expected(hello):
                raise BadRequest(
                    f"part {hello.part} of {hello.parts} connected to part {self._is.part} of "
                    f"{self._is.parts}, which did not expect it"
                )
            link = self._open(hello.part, writer)
            talk = [self._spawn(self._tell(link)), self._spawn(self._ping(link))]
            try:
                await self._listen(link, reader)
            finally:
                for task in talk:
                    task.cancel()
        except asyncio.IncompleteReadError:
            pass
        finally:
            if link is not None:
                self._close(link)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _open(self, peer: int, writer: asyncio.StreamWriter) -> Link:
        if (before := self._links.get(peer)) is not None:  # its end was not noticed yet
            before.writer.close()
            before.streams.close()
        link = self._links[peer] = Link(peer, writer)
        self._mirror.forget(peer)
        link.changed.set()
        self._linked.setdefault(peer, asyncio.Event()).set()
        log.info("connected to part %d", peer)
        return link

    def _close(self, link: Link) -> None:
        link.streams.close()
        if self._links.get(link.peer) is not link:
            return
        del self._links[link.peer]
        self._linked[link.peer].clear()
        if link.peer in self._over:
            return
        self._mirror.away(link.peer)
        log.info("the connection to part %d has ended", link.peer)

    # ---- what is said over a link

    def _rung(self) -> None:
        self._mirror.rung()
        for link in self._links.values():
            link.changed.set()

    async def _tell(self, link: Link) -> None:
        while True:
            await link.changed.wait()
            link.changed.clear()
            try:
                await self._tell_all(link)
            except (OSError, RuntimeError) as error:
                log.warning("part %d cannot be told what ranks brought (%s)", link.peer, error)
                await asyncio.sleep(AGAIN_SECONDS)
                link.writer.close()
                return

    async def _tell_all(self, link: Link) -> None:
        while body := self._mirror.changes(link.peer, PIECE_BYTES):
            link.send(Kind.FILES, body)
            await link.writer.drain()

    async def _ping(self, link: Link) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            link.send(Kind.PING)

    async def _listen(self, link: Link, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                kind, stream, body = await frames.read(reader, SILENCE_SECONDS)
            except TimeoutError:
                log.warning("nothing came from part %d for %g s", link.peer, SILENCE_SECONDS)
                return
            if kind is Kind.FILES:
                try:
                    self._mirror.apply(link.peer, body)
                except (OSError, RuntimeError) as error:
                    log.warning("what part %d brought cannot be kept (%s)", link.peer, error)
                    await asyncio.sleep(AGAIN_SECONDS)
                    return
            elif kind is Kind.OPEN and self._is.part == 0:
                link.streams.opened(stream, self.master_port)
            elif kind is Kind.DATA:
                link.streams.came(stream, body)
            elif kind is Kind.CLOSE:
                link.streams.came(stream, b"")
            elif kind is Kind.OVER:
                self._over.add(link.peer)
                self._mirror.ended(link.peer)

    async def _part_with(self, link: Link) -> None:
        self._mirror.rung()
        await self._tell_all(link)
        link.send(Kind.OVER)
        await link.writer.drain()
        link.writer.close()
        await link.writer.wait_closed()

    # ---- where ranks meet

    async def _rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A rank of this part has connected to the place where ranks meet."""
        await self._linked.setdefault(0, asyncio.Event()).wait()
        link = self._links.get(0)
        if link is None:
            writer.close()
            return
        await link.streams.carry(reader, writer)


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])
