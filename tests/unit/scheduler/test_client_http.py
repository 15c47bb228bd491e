"""The client's own HTTP against servers that answer well, badly, late or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Callable

import pytest
from singularity_proxy.errors import Unavailable, Unreached
from singularity_scheduler.client import ServiceClient, stream
from singularity_scheduler.client.http import Broken, request

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def answering(*parts: bytes | float, stay: bool = False) -> AsyncIterator[str]:
    """A server that sends `parts` (numbers: pauses in seconds) and closes, or stays."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for part in parts:
                if isinstance(part, bytes):
                    writer.write(part)
                    await writer.drain()
                else:
                    await asyncio.sleep(part)
        if stay:
            await done.wait()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        done.set()
        server.close()
        await server.wait_closed()


async def body(url: str, timeout: float = 5.0) -> bytes:
    async with request("GET", url, {}, timeout=timeout) as answer:
        return await answer.body()


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([OK + b"Content-Length: 5\r\n\r\nhello"], b"hello"),
        ([OK + b"content-LENGTH: 5\r\n", b"\r\nhe", 0.02, b"llo"], b"hello"),
        ([OK + b"\r\nhello"], b"hello"),
        ([OK + b"Content-Length: 0\r\n\r\n"], b""),
        ([b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK + b"\r\nhi"], b"hi"),
        (
            [CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"],
            b"hello",
        ),
        ([CHUNKED + b"1\r\na\r\n0\r\nTrailer: x\r\n\r\n"], b"a"),
    ],
)
@pytest.mark.asyncio
async def test_answers_of_every_form(parts: list[bytes | float], found: bytes) -> None:
    async with answering(*parts) as url:
        assert await body(url) == found


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([], "closed before the answer was complete"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "."),
        ([b"HTTP/1.1 abc\r\n\r\n"], "."),
        ([OK + b"Content-Length: 5\r\n\r\nhel"], "closed before the answer was complete"),
        ([CHUNKED + b"5\r\nhel"], "closed before the answer"),
        ([CHUNKED + b"xyz\r\n"], "."),
        ([OK + b"X: " + b"x" * 3_000_000], "."),
    ],
)
@pytest.mark.asyncio
async def test_answers_that_break(parts: list[bytes | float], sentence: str) -> None:
    async with answering(*parts) as url:
        with pytest.raises(Broken, match=sentence):
            await body(url)
        client = ServiceClient(url, "t")
        with pytest.raises(Unavailable, match="the scheduler service does not answer"):
            await client.cluster()


@pytest.mark.asyncio
async def test_a_lost_answer_is_no_refusal() -> None:
    """What was asked may have been done, unless the service was not even reached."""
    async with answering() as url:
        client = ServiceClient(url, "t")
        with pytest.raises(Unreached, match="whether it did what was asked is not known"):
            await client.park("a")
        with pytest.raises(Unavailable, match="nothing was changed") as looked:
            await client.get_session("a")
    with pytest.raises(Unavailable, match="nothing was changed") as refused:
        await client.park("a")
    assert {type(looked.value), type(refused.value)} == {Unavailable}


@pytest.mark.parametrize("line", [b"503 Service Unavailable", b"404 Not Found"])
@pytest.mark.asyncio
async def test_a_proxy_that_answers_may_have_lost_the_answer(line: bytes) -> None:
    page = b"HTTP/1.1 " + line + b"\r\nConnection: close\r\n\r\n<html>503</html>"
    kinds = []
    for call in ("park", "get_session"):
        async with answering(page) as url:
            with pytest.raises(Unavailable, match="something in between answered") as caught:
                await getattr(ServiceClient(url, "t"), call)("a")
            kinds.append(type(caught.value))
    assert kinds == [Unreached if line.startswith(b"5") else Unavailable, Unavailable]


@pytest.mark.asyncio
async def test_a_silent_server_is_given_up() -> None:
    async with answering(stay=True) as url:
        with pytest.raises(Broken, match=r"no answer within 0.1 s"):
            await body(url, timeout=0.1)
        with pytest.raises(Unavailable):
            await ServiceClient(url, "t", timeout=0.1).cluster()
    async with answering(OK + b"\r\nhel", stay=True) as url, request("GET", url, {}) as answer:
        with pytest.raises(Broken, match=r"nothing came for 0.1 s"):
            _ = [chunk async for chunk in answer.chunks(0.1)]


@pytest.mark.asyncio
async def test_an_answer_that_is_not_of_the_service() -> None:
    pages: dict[bytes, Callable[[Unavailable], bool]] = {
        b"<html>welcome</html>": lambda e: e.fields["status"] == 200,
        json.dumps([1]).encode(): lambda e: e.fields["status"] == 200,
    }
    for page, right in pages.items():
        async with answering(OK + b"\r\n" + page) as url:
            with pytest.raises(Unavailable, match="something in between") as caught:
                await ServiceClient(url, "t").cluster()
            assert right(caught.value)


@pytest.mark.asyncio
async def test_leaving_in_the_middle_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with request("GET", url, {}) as answer:
        assert await anext(answer.chunks()) == b"hello"
    await asyncio.wait_for(gone.wait(), 5)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.asyncio
async def test_a_log_that_falls_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    monkeypatch.setattr(stream, "SILENCE_S", 0.1)
    monkeypatch.setattr(stream, "WITHOUT_SERVICE_S", 0.0)
    async with answering(CHUNKED + b"5\r\nhello\r\n", stay=True) as url:
        log = ServiceClient(url, "t").logs("a", follow=follow)
        assert await anext(log) == "hello"
        assert log.offset == 5
        with pytest.raises(Unavailable, match=r"the log cannot be read now \(nothing came for"):
            await asyncio.wait_for(anext(log), 5)


@pytest.mark.asyncio
async def test_a_log_knows_where_to_go_on() -> None:
    head = OK + b"Singularity-Log-Offset: 100\r\n\r\n"
    async with answering(head + "aü".encode() + b"\xe2\x82") as url:
        log = ServiceClient(url, "t").logs("a", offset=7)
        assert log.offset == 7
        assert "".join([text async for text in log]) == "aü\N{REPLACEMENT CHARACTER}"
        assert log.offset == 105


@pytest.mark.asyncio
async def test_heartbeats_move_where_events_go_on() -> None:
    first = b"id: x-1\nevent: a\ndata: 1\n\nid: x-2\nevent: a\ndata: 2\n\n"
    beat = b": heartbeat\nid: x-9\n\n"
    async with answering(OK + b"\r\n" + first, 0.02, beat) as url:
        events = ServiceClient(url, "t").events("x-0")
        assert events.last_id == "x-0"
        assert (await anext(events))["data"] == 1
        assert events.last_id == "x-1"  # and not what has come, but is not read
        assert (await anext(events))["data"] == 2
        with pytest.raises(Unavailable, match="the scheduler's event stream ended"):
            await anext(events)
        assert events.last_id == "x-9"


@pytest.mark.asyncio
async def test_a_stream_that_nobody_reads_any_more_is_closed() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"\r\nid: x-1\ndata: 1\n\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    gc.disable()
    try:
        assert (await anext(ServiceClient(url, "t").events()))["id"] == "x-1"
        await asyncio.wait_for(gone.wait(), 5)
    finally:
        gc.enable()
        server.close()
        await server.wait_closed()
