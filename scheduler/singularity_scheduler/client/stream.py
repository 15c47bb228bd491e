"""Reading the service's server-sent events (text/event-stream) over a connection of its own.

Tornado's HTTP client cannot give an unfinished answer up: cancelling the fetch leaves the
connection open until the server's next byte. So the stream speaks HTTP/1.1 through tornado's own
connection class, and closing the iterator closes the socket at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from singularity_proxy.errors import SingularityError, Unavailable
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.httputil import (
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import StreamClosedError
from tornado.tcpclient import TCPClient

SILENCE_S = 60.0
"""No byte for this long (heartbeats come every 15 s) means the service is gone."""

CONNECT_S = 10.0


def parse_events(buffer: str) -> tuple[list[dict[str, Any]], str]:
    """Complete events of `buffer` as ``{"event", "data"}`` and the rest that is still incomplete.

    Comments (heartbeats) and events without data give nothing.
    """
    *blocks, rest = buffer.split("\n\n")
    events = []
    for block in blocks:
        name, data = "message", []
        for line in block.split("\n"):
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].strip())
        if data:
            events.append({"event": name, "data": json.loads("\n".join(data))})
    return events, rest


class _Answer(HTTPMessageDelegate):
    """Puts what tornado reads into a queue: the start line, then bytes, then None at the end."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[ResponseStartLine | bytes | None] = asyncio.Queue()

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self.parts.put_nowait(start_line)

    def data_received(self, chunk: bytes) -> None:
        self.parts.put_nowait(chunk)

    def finish(self) -> None:
        self.parts.put_nowait(None)

    def on_connection_close(self) -> None:
        self.parts.put_nowait(None)


async def event_stream(url: str, headers: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of the stream at `url`; raises the service's typed error when it refuses
    and `Unavailable` when the stream ends. Closing the iterator closes the connection."""
    target = urlsplit(url)
    port = target.port or (443 if target.scheme == "https" else 80)
    tls = ssl.create_default_context() if target.scheme == "https" else None
    client = TCPClient()
    try:
        stream = await client.connect(
            target.hostname or "", port, ssl_options=tls, timeout=CONNECT_S
        )
    except (OSError, asyncio.TimeoutError, StreamClosedError) as error:
        raise Unavailable(f"the scheduler service does not answer ({error})", url=url) from None
    finally:
        client.close()
    answer = _Answer()
    connection = HTTP1Connection(stream, True, HTTP1ConnectionParameters(decompress=False))
    reading: asyncio.Future[bool] | None = None
    try:
        path = f"{target.path}?{target.query}" if target.query else target.path
        sent = {"Host": target.netloc, **headers, "Accept": "text/event-stream"}
        with contextlib.suppress(StreamClosedError):
            await connection.write_headers(
                RequestStartLine("GET", path, "HTTP/1.1"), HTTPHeaders(sent)
            )
            connection.finish()
        reading = asyncio.ensure_future(connection.read_response(answer))
        start = await _next(answer)
        if isinstance(start, ResponseStartLine) and start.code != 200:
            raise await _refusal(url, start, answer)
        buffer = ""
        while isinstance(chunk := await _next(answer), bytes):
            buffer += chunk.decode()
            events, buffer = parse_events(buffer)
            for event in events:
                yield event
        raise Unavailable("the scheduler's event stream ended: it will be there again shortly")
    finally:
        stream.close()
        if reading is not None:
            with contextlib.suppress(HTTPInputError, StreamClosedError):
                await reading


async def _next(answer: _Answer) -> ResponseStartLine | bytes | None:
    with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
        return await asyncio.wait_for(answer.parts.get(), SILENCE_S)
    return None


async def _refusal(url: str, start: ResponseStartLine, answer: _Answer) -> SingularityError:
    """The typed error behind an answer that is no stream."""
    from .api import problem_to_error

    body = b""
    while isinstance(chunk := await _next(answer), bytes):
        body += chunk
    return problem_to_error(
        HTTPResponse(HTTPRequest(url), start.code, buffer=io.BytesIO(body), reason=start.reason)
    )
