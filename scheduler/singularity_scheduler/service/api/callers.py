"""What callers may take of the service: connections, time for headers, bodies and answers, and how
much each user has open at once.

Nobody has to show a token to connect, so a connection that has not sent its headers makes room for
a new one when there are too many. Users are counted by their tokens, as all of them come through
the Hub's proxy. Services, such as the Hub's spawner, ask for all users and are not counted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import TooMany, Unavailable
from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import RequestHandler

from .auth import Caller
from .problems import problem

MAX_HEADER_BYTES = 32 << 10
"""All headers of a request."""

READ_BYTES = 1 << 20
"""What came on a connection and was not looked at yet."""


@dataclass(frozen=True)
class Bounds:
    """The settings of `SchedulerApp` about callers, which has the help."""

    connections: int = 2048
    header_s: float = 20.0
    body_s: float = 60.0
    answer_s: float = 60.0
    requests: int = 128
    streams: int = 32
    body_bytes: int = 32 << 20
    """Of the requests that one user has open."""


# ---- connections


class BoundedServer(HTTPServer):
    """The server of the service's port."""

    def initialize(  # type: ignore[override]
        self, door: HTTPServerConnectionDelegate, bounds: Bounds, max_body_size: int
    ) -> None:
        super().initialize(
            door,
            max_header_size=MAX_HEADER_BYTES,
            idle_connection_timeout=bounds.header_s,
            body_timeout=bounds.body_s,
            max_body_size=max_body_size,
            max_buffer_size=READ_BYTES,
        )
        self._bounds = bounds
        self._silent: dict[object, None] = {}
        """Connections without the headers of a request, those that wait longest first."""

    def handle_stream(  # type: ignore[override]
        self, stream: IOStream, address: tuple[Any, ...]
    ) -> Awaitable[None] | None:
        if len(self._connections) >= self._bounds.connections and not self._make_room():
            return _refuse(stream, self._bounds.connections)
        super().handle_stream(stream, address)
        return None

    def _make_room(self) -> bool:
        """Close the connection that has waited longest without a request."""
        for one in list(self._silent):
            assert isinstance(one, HTTP1ServerConnection)
            del self._silent[one]
            if not one.stream.closed():
                one.stream.close()
                return True
        return False

    def start_request(
        self, server_conn: object, request_conn: HTTPConnection
    ) -> HTTPMessageDelegate:
        self._silent[server_conn] = None
        return _Noticed(super().start_request(server_conn, request_conn), self, server_conn)

    def speaks(self, server_conn: object) -> None:
        """The headers of a request have come."""
        self._silent.pop(server_conn, None)

    def on_close(self, server_conn: object) -> None:
        self.speaks(server_conn)
        super().on_close(server_conn)


class _Noticed(HTTPMessageDelegate):
    """Passes a request on, and says when its headers have come."""

    def __init__(self, inner: HTTPMessageDelegate, server: BoundedServer, connection: object):
        self._inner, self._server, self._connection = inner, server, connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._server.speaks(self._connection)
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


async def _refuse(stream: IOStream, connections: int) -> None:
    error = Unavailable(
        f"the scheduler service has {connections} connections already, so nothing was done: try "
        "again in a moment"
    )
    body = json.dumps(problem(error, 503)).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\n"
        f"Retry-After: 5\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(5.0):
            await stream.write(head.encode() + body)
    except (StreamClosedError, TimeoutError):
        pass
    finally:
        stream.close()


# ---- users


@dataclass
class _Open:
    """What one user has open."""

    requests: int = 0
    streams: int = 0
    body_bytes: int = 0


@dataclass
class Seat:
    """A request that is counted, until `leave`."""

    open: _Open
    stream: bool
    body_bytes: int


class Callers:
    """Counts what users have open; one per service."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._open: dict[str, _Open] = {}

    def enter(self, caller: Caller, *, stream: bool, body_bytes: int) -> Seat | None:
        """Count a request; None: it is not. Raises `TooMany`."""
        if not caller.is_user:
            return None
        found, bounds = self._open.get(caller.name) or _Open(), self.bounds
        if found.requests >= bounds.requests:
            raise TooMany(
                f"{caller.name} has {bounds.requests} requests open already, so nothing was done: "
                "wait for some of them, and try again",
                requests=bounds.requests,
            )
        if stream and found.streams >= bounds.streams:
            raise TooMany(
                f"{caller.name} follows {bounds.streams} streams of events and logs already: "
                "close a page or a command that follows some, and try again",
                streams=bounds.streams,
            )
        if found.body_bytes and found.body_bytes + body_bytes > bounds.body_bytes:
            raise TooMany(
                f"the requests that {caller.name} has open have {bounds.body_bytes >> 20} MiB "
                "already, so nothing was done: wait for some of them, and try again",
                largest_bytes=bounds.body_bytes,
            )
        self._open[caller.name] = found
        found.requests += 1
        found.streams += stream
        found.body_bytes += body_bytes
        return Seat(found, stream, body_bytes)

    def leave(self, seat: Seat) -> None:
        """The request is over."""
        seat.open.requests -= 1
        seat.open.streams -= seat.stream
        seat.open.body_bytes -= seat.body_bytes
        if not seat.open.requests:
            self._open = {name: one for name, one in self._open.items() if one is not seat.open}

    def count(self, user: str) -> int:
        """Requests that the user has open."""
        return self._open[user].requests if user in self._open else 0


class Counted(RequestHandler):
    """A handler whose requests count as their caller's until the answer has been taken, or given
    up because nobody took it in time."""

    _callers: Callers
    _seat: Seat | None = None
    _working = 0
    _over = False

    def count_in(self, callers: Callers, caller: Caller, *, stream: bool, body_bytes: int) -> None:
        """Called once it is known who asks. Raises `TooMany`."""
        self._callers = callers
        self._seat = callers.enter(caller, stream=stream, body_bytes=body_bytes)

    def begin(self) -> None:
        """The handler works: also when its client has gone it counts until `end`."""
        self._working += 1

    def end(self) -> None:
        """It does not work any more."""
        self._working -= 1
        self._leave()

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> asyncio.Future[None]:
        sent = super().finish(chunk)
        self._leaving = asyncio.ensure_future(self._see_off(sent))
        return sent

    async def push(self) -> None:
        """Send what was written of a stream; a client that does not take it in time is left."""
        try:
            async with asyncio.timeout(self._answer_s):
                await self.flush()
        except TimeoutError:
            self.cut()
            raise StreamClosedError from None

    def cut(self) -> None:
        """End an answer that has begun and cannot be completed."""
        connection = self.request.connection
        if isinstance(connection, HTTP1Connection):
            connection.close()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._over = True
        self._leave()

    @property
    def _answer_s(self) -> float:
        return self._callers.bounds.answer_s if self._seat else Bounds.answer_s

    async def _see_off(self, sent: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(self._answer_s):
                await asyncio.shield(sent)
        except TimeoutError:
            self.cut()
        except StreamClosedError:
            pass
        finally:
            self._over = True
            self._leave()

    def _leave(self) -> None:
        if self._over and not self._working and self._seat is not None:
            self._callers.leave(self._seat)
            self._seat = None
