"""One end of the bridges between the parts of a gang."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from singularity_proxy.elastic.ranks import free_port
from singularity_proxy.errors import BadRequest, SingularityError

from . import peers
from .connection import Connection
from .frames import Hello, Kind
from .identity import KEY_BYTES, contexts, token
from .rendezvous import LOCAL, LOOPBACK

log = logging.getLogger("singularity.bridge")

PIECE_BYTES = 4 << 20
"""About so much of what ranks brought goes into one frame."""
GREET_SECONDS = 10.0
PING_SECONDS = 2.0
TICK_SECONDS = 1.0
"""The rendezvous has no clock of its own: it is frozen and moved."""
SILENCE_SECONDS = 10.0
"""A link over which nothing came for so long is given up; a new one is made."""
RETRY_SECONDS = 0.3
PEERS_SECONDS = 0.3
"""How often the file with the addresses of the others is looked at."""
FAREWELL_SECONDS = 2.0
"""A part that is over gives up another one that took nothing for so long."""
FAREWELL_LOOK_SECONDS = 0.05
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
    rendezvous: Path | None = None
    """The file that tells the rendezvous of this part where its bridge is."""

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise BadRequest(f"a gang of {self.parts} parts has no part {self.part}")


class Link:
    """A connection to the bridge of another part, from its greeting on."""

    def __init__(self, peer: int, connection: Connection) -> None:
        self.peer = peer
        self.connection = connection
        self.changed = asyncio.Event()
        self.over = False
        """This part says its last."""


class Bridge:
    """Of one part. `async with` it, or `start` and `stop` it; all in one event loop.

    `mirror` is the native module's, of the same folder and part.
    """

    def __init__(self, settings: Settings, mirror: Any) -> None:
        self._is = settings
        self._mirror = mirror
        self._listens, self._connects = contexts(settings.key)
        self._links: dict[int, Link] = {}
        self._where: dict[int, peers.Address] = {}
        self._over: set[int] = set()
        """Parts that are."""
        self._met: set[int] = set()
        """Parts that there was a connection to."""
        self._told: set[int] = set()
        """Parts that know that this one is over."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._inside: asyncio.StreamWriter | None = None
        """To the rendezvous of this part."""
        self.port = 0
        self.master_port = settings.master_port or free_port()

    async def start(self) -> None:
        """Listen, and connect to those parts whose place is known. Raises OSError when a port is
        taken."""
        one = self._is
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(lambda made: self._spawn(self._accepted(made))),
            *(one.host, one.port),
            ssl=self._listens,
            ssl_handshake_timeout=GREET_SECONDS,  # who does not show the gang's certificate leaves
            ssl_shutdown_timeout=FAREWELL_SECONDS,
            reuse_address=True,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._local = await asyncio.start_server(self._came_inside, LOOPBACK, 0)
        if one.rendezvous is not None:
            port = self._local.sockets[0].getsockname()[1]
            write(one.rendezvous, {"port": port, "token": token(one.key).hex()})
        loop.add_reader(self._mirror.bell(), self._rung)
        self._spawn(self._watch_peers())
        self._spawn(self._tick())
        for peer in range(one.part):
            self._spawn(self._keep_connected(peer))

    async def stop(self) -> None:
        """The part is over: the others get what its ranks brought, and are told. One to which there
        is no connection just now gets `FAREWELL_SECONDS` to come back."""
        others = self._met - self._over
        done = await asyncio.gather(*map(self._farewell, others), return_exceptions=True)
        for peer, error in zip(others, done, strict=True):
            if error is not None:
                log.warning("part %d does not know that this one is over (%r)", peer, error)
        self._server.close()
        self._local.close()
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
                        link.connection.close()
            except (SingularityError, OSError) as error:
                if str(error) != said:
                    log.warning("%s", error)
                    said = str(error)
            await asyncio.sleep(PEERS_SECONDS)

    async def _keep_connected(self, peer: int) -> None:
        """To a part with a lower number; those with higher ones connect to this one."""
        said = ""
        while peer not in self._over | self._told:
            if peer in self._where:
                try:
                    await self._connect(peer)
                    said = ""
                except (OSError, ValueError, SingularityError) as error:
                    sentence = f"part {peer} cannot be reached ({error or type(error).__name__})"
                    if sentence != said:
                        log.warning("%s", sentence)
                        said = sentence
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self, peer: int) -> None:
        host, port = self._where[peer]
        async with asyncio.timeout(GREET_SECONDS):
            _, made = await asyncio.get_running_loop().create_connection(
                Connection,
                *(host, port),
                ssl=self._connects,
                ssl_shutdown_timeout=FAREWELL_SECONDS,
            )
        await self._serve(made, lambda hello: hello.part == peer)

    async def _accepted(self, made: Connection) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            try:
                await self._serve(made, lambda hello: hello.part > self._is.part)
            except SingularityError as error:
                log.warning("%s", error)

    async def _serve(self, made: Connection, expected: Callable[[Hello], bool]) -> None:
        """A connection from its greeting to its end."""
        link: Link | None = None
        try:
            made.send(Kind.HELLO, Hello(self._is.part, self._is.parts).encode())
            kind, body = await made.read(GREET_SECONDS)
            if kind is not Kind.HELLO:
                raise BadRequest("what connected to the bridge did not greet first")
            hello = Hello.decode(bytes(body))
            if hello.parts != self._is.parts or not expected(hello):
                raise BadRequest(
                    f"part {hello.part} of {hello.parts} connected to part {self._is.part} of "
                    f"{self._is.parts}, which did not expect it"
                )
            if hello.part in self._over:
                raise BadRequest(f"part {hello.part} connected again, but said that it is over")
            link = self._open(hello.part, made)
            talk = [self._spawn(self._tell(link)), self._spawn(self._ping(link))]
            try:
                await self._listen(link)
            finally:
                for task in talk:
                    task.cancel()
        except EOFError:
            pass
        finally:
            if link is not None:
                self._close(link)
            made.close()
            await made.wait_closed()

    def _open(self, peer: int, connection: Connection) -> Link:
        if (before := self._links.get(peer)) is not None:  # its end was not noticed yet
            before.connection.close()
        link = self._links[peer] = Link(peer, connection)
        self._met.add(peer)
        self._mirror.forget(peer)
        link.changed.set()
        self._tell_inside(peer)
        log.info("connected to part %d", peer)
        return link

    def _close(self, link: Link) -> None:
        if not self._is_last(link):
            return
        del self._links[link.peer]
        if link.peer in self._over:
            return
        self._mirror.away(link.peer)
        log.info("the connection to part %d has ended", link.peer)

    # ---- what is said over a link

    def _rung(self) -> None:
        try:
            self._mirror.rung()
        except (OSError, RuntimeError) as error:  # the others hear of what is known
            log.warning("not all that ranks brought can be looked at (%s)", error)
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
                link.connection.close()
                return

    async def _tell_all(self, link: Link) -> None:
        # What is asked for here is not told again, so never for a link that another one replaced.
        while self._is_last(link) and not link.over:
            if not (body := self._mirror.changes(link.peer, PIECE_BYTES)):
                return
            await link.connection.send_long(Kind.FILES, body)

    def _is_last(self, link: Link) -> bool:
        return self._links.get(link.peer) is link

    async def _ping(self, link: Link) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            link.connection.send(Kind.PING)

    async def _listen(self, link: Link) -> None:
        while True:
            try:
                kind, body = await link.connection.read(SILENCE_SECONDS)
            except TimeoutError:
                log.warning("nothing came from part %d for %g s", link.peer, SILENCE_SECONDS)
                link.connection.abort()
                return
            if not self._is_last(link):
                return  # over a newer one everything was told again; this is older
            if kind is Kind.FILES:
                try:
                    self._mirror.apply(link.peer, body)
                except (OSError, RuntimeError) as error:
                    log.warning("what part %d brought cannot be kept (%s)", link.peer, error)
                    await asyncio.sleep(AGAIN_SECONDS)
                    return
            elif kind is Kind.MEET:
                self._tell_inside(link.peer, bytes(body))
            elif kind is Kind.OVER:
                self._over.add(link.peer)
                self._mirror.ended(link.peer)
                return

    # ---- the end

    async def _farewell(self, peer: int) -> None:
        """Tell a part that this one is over, unless it is so itself. Raises TimeoutError when it
        does not take it."""
        clock = asyncio.get_running_loop().time
        until = clock() + FAREWELL_SECONDS
        while peer not in self._over:
            if clock() > until:
                raise TimeoutError(f"no connection for {FAREWELL_SECONDS:g} s")
            if (link := self._links.get(peer)) is not None:
                try:
                    return await self._part_with(link)
                except OSError as error:
                    log.info("part %d was lost at the end (%s)", peer, error)
                    link.connection.abort()
            await asyncio.sleep(FAREWELL_LOOK_SECONDS)

    async def _part_with(self, link: Link) -> None:
        link.over = True  # so nobody else says anything behind it
        with contextlib.suppress(OSError, RuntimeError):  # what is known goes out in any case
            self._mirror.rung()
        while self._is_last(link) and (body := self._mirror.changes(link.peer, PIECE_BYTES)):
            await link.connection.send_long(Kind.FILES, body, FAREWELL_SECONDS)
        if not self._is_last(link):
            raise ConnectionResetError("the connection ended")
        await link.connection.send_long(Kind.OVER, b"", FAREWELL_SECONDS)
        async with asyncio.timeout(FAREWELL_SECONDS):
            link.connection.close()
            await link.connection.wait_closed()
        self._told.add(link.peer)

    # ---- the rendezvous of this part

    async def _came_inside(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """It has connected, or somebody who should not."""
        try:
            async with asyncio.timeout(GREET_SECONDS):
                said = await reader.readexactly(KEY_BYTES)
            if not hmac.compare_digest(said, token(self._is.key)):
                return
            self._inside = writer
            while True:
                part, length = LOCAL.unpack(await reader.readexactly(LOCAL.size))
                body = await reader.readexactly(min(length, PIECE_BYTES))
                if (link := self._links.get(part)) is not None:
                    link.connection.send(Kind.MEET, body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            if self._inside is writer:
                self._inside = None
            writer.close()

    def _tell_inside(self, part: int, body: bytes = b"") -> None:
        if self._inside is not None and not self._inside.is_closing():
            self._inside.write(LOCAL.pack(part, len(body)) + body)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._tell_inside(self._is.part)


def write(path: Path, what: dict[str, Any]) -> None:
    """A file for its owner, at once or not at all."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(what, file)
    beside.replace(path)
