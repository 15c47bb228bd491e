"""Reading the service's server-sent events (text/event-stream) with tornado's client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from singularity_proxy.errors import Unavailable
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

SILENCE_S = 60.0
"""No byte for this long (heartbeats come every 15 s) means the service is gone."""


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


async def event_stream(url: str, headers: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of the stream at `url`; raises the service's typed error when it refuses
    and `Unavailable` when the stream ends. Closing the iterator closes the connection."""
    from .api import problem_to_error

    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    client = SimpleAsyncHTTPClient(force_instance=True)
    request = HTTPRequest(
        url,
        headers={**headers, "Accept": "text/event-stream"},
        streaming_callback=chunks.put_nowait,
        connect_timeout=10.0,
        request_timeout=0,
        follow_redirects=False,
    )
    done = asyncio.ensure_future(client.fetch(request, raise_error=False))
    buffer, status_known = "", False
    try:
        while True:
            chunk = await _next_chunk(chunks, done)
            if chunk is None:
                break
            if not status_known and chunk[:1] == b"{":  # a problem document, not a stream
                with contextlib.suppress(OSError, HTTPClientError):
                    response = await done
                    response._body = chunk
                    raise problem_to_error(response)
                break
            status_known = True
            buffer += chunk.decode()
            events, buffer = parse_events(buffer)
            for event in events:
                yield event
        raise Unavailable("the scheduler's event stream ended: it will be there again shortly")
    finally:
        done.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, HTTPClientError):
            await done
        client.close()


async def _next_chunk(
    chunks: asyncio.Queue[bytes], done: asyncio.Future[HTTPResponse]
) -> bytes | None:
    """The next bytes; None when the connection is over or silent for too long."""
    getter = asyncio.ensure_future(chunks.get())
    waiting: set[asyncio.Future[Any]] = {getter, done}
    try:
        await asyncio.wait(waiting, timeout=SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
        return getter.result() if getter.done() else None
    finally:
        getter.cancel()
