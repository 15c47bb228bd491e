"""HTTP/1.1 for `ServiceClient`: one request per connection, on asyncio's streams alone.

A command of the command line has to answer at once, so nothing heavy is imported here; and an
unfinished answer (the event stream, a log) has to end when its reader leaves, so closing the
block closes the socket at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CONNECT_S = 10.0
SILENCE_S = 60.0
"""No byte for this long in the middle of an answer means that its sender is gone."""
_BUFFER_BYTES = 1 << 20
"""Read at once; headers have at most as much."""


class Broken(Exception):
    """The connection could not be made, or broke before the answer was complete. `sent`: whether
    the other end may have the request."""

    def __init__(self, told: str, sent: bool = True) -> None:
        super().__init__(told)
        self.sent = sent


@dataclass
class Answer:
    """Status and headers (names in lower case) of an answer; the body is read by `chunks`."""

    status: int
    reason: str
    headers: dict[str, str]
    _reader: asyncio.StreamReader

    async def chunks(self, silence_s: float | None = None) -> AsyncIterator[bytes]:
        """The body as it comes; `Broken` when it ends early or nothing comes for `silence_s`
        seconds (None: for ever)."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunked()
        else:
            body = self._plain(self.headers.get("content-length"))
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    chunk = await anext(body, None)
            except TimeoutError:
                raise Broken(f"nothing came for {silence_s:g} s") from None
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                raise Broken(_told(error)) from None
            if chunk is None:
                return
            yield chunk

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self.chunks(SILENCE_S)])

    async def _plain(self, length: str | None) -> AsyncIterator[bytes]:
        left = None if length is None else int(length)
        while left is None or left > 0:
            chunk = await self._reader.read(
                _BUFFER_BYTES if left is None else min(left, _BUFFER_BYTES)
            )
            if not chunk:
                if left is None:
                    return
                raise EOFError("the connection was closed in the middle of the answer")
            if left is not None:
                left -= len(chunk)
            yield chunk

    async def _chunked(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if size:
                chunk = await self._reader.readexactly(size)
                await self._reader.readexactly(2)
                yield chunk
                continue
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return


@contextlib.asynccontextmanager
async def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    timeout: float = 60.0,
) -> AsyncIterator[Answer]:
    """An ``async with`` block with the answer; its end closes the connection. `Broken` when there
    is none within `timeout` seconds."""
    target = urlsplit(url)
    secure = target.scheme == "https"
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                target.hostname or "",
                target.port or (443 if secure else 80),
                ssl=_tls() if secure else None,
                limit=_BUFFER_BYTES,
            )
    except TimeoutError:
        raise Broken(f"no connection within {CONNECT_S:g} s", sent=False) from None
    except OSError as error:
        raise Broken(_told(error), sent=False) from None
    try:
        path = f"{target.path or '/'}?{target.query}" if target.query else target.path or "/"
        sent = {"Host": target.netloc.rpartition("@")[2], "Connection": "close", **headers}
        if body is not None or method in ("POST", "PUT"):
            sent["Content-Length"] = str(len(body or b""))
        head = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.items()), "", ""]
        try:
            writer.write("\r\n".join(head).encode("latin-1") + (body or b""))
            async with asyncio.timeout(timeout):
                answer = await _answer(reader)
        except TimeoutError:
            raise Broken(f"no answer within {timeout:g} s") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Broken(_told(error)) from None
        yield answer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    status = 100
    while 100 <= status < 200:  # what comes before the answer itself
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, code, *reason = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise ValueError(f"this is not HTTP: {first[:40]!r}")
        status = int(code)
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Answer(status, reason[0] if reason else "", headers, reader)


def _tls() -> Any:
    import ssl  # only now: it takes a while to load

    return ssl.create_default_context()


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, EOFError):
        return "the connection was closed before the answer was complete"
    return str(error) or type(error).__name__
