"""What bridges are made of: frames, greetings, keys, addresses."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
from singularity_proxy.elastic.bridge import frames, identity, peers
from singularity_proxy.elastic.bridge.bridge import Settings
from singularity_proxy.elastic.bridge.frames import Hello, Kind
from singularity_proxy.errors import BadRequest

KEY, OTHER = bytes(range(32)), bytes(32)


def read(data: bytes) -> tuple[Kind, bytes]:
    async def work() -> tuple[Kind, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await frames.read(reader, 1.0)

    return asyncio.run(work())


@pytest.mark.parametrize("size", [0, 1, frames.PIECE_BYTES, 2 * frames.PIECE_BYTES + 7])
def test_a_frame_comes_as_it_was_sent(size: int) -> None:
    body = bytes(size)
    assert read(frames.head(Kind.FILES, body) + body) == (Kind.FILES, body)


def test_frames_that_cannot_be_read() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        read(frames.head(Kind.FILES, b"four") + b"two")
    with pytest.raises(BadRequest, match="kind 99, which is unknown"):
        read(frames.HEADER.pack(99, 0))


def test_silence_is_noticed() -> None:
    async def work() -> None:
        await frames.read(asyncio.StreamReader(), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(work())


def test_greetings() -> None:
    assert Hello.decode(Hello(2, 5).encode()) == Hello(2, 5)
    newer = Hello(2, 5).encode().replace(b'"version": 1', b'"version": 9')
    with pytest.raises(BadRequest, match="version 9 of the protocol, this one 1: use the same"):
        Hello.decode(newer)
    for wrong in (b"GET / HTTP/1.1", b"[]", b'{"version": 1}', b'{"version": [], "part": 1}'):
        with pytest.raises(BadRequest, match="does not speak its protocol"):
            Hello.decode(wrong)


@pytest.mark.parametrize("text", ["", "00", "g" * 64, "0" * 66])
def test_keys_that_are_none(text: str) -> None:
    with pytest.raises(BadRequest, match="64 hexadecimal digits"):
        identity.read_key(text)


async def greet(listens: bytes, connects: bytes | None) -> bytes:
    """What comes over a connection between holders of these keys."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(
        accepted, "127.0.0.1", 0, ssl=identity.contexts(identity.read_key(listens.hex()))[0]
    )
    port = server.sockets[0].getsockname()[1]
    async with server:
        if connects is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context = identity.contexts(connects)[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            return await reader.read()
        finally:
            writer.close()


def test_one_key_is_one_identity() -> None:
    assert asyncio.run(greet(KEY, KEY)) == b"hello"


def test_another_key_is_let_in_nowhere() -> None:
    with pytest.raises(ssl.SSLError):
        asyncio.run(greet(KEY, OTHER))
    said = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        said = asyncio.run(greet(KEY, None))  # no certificate at all
    assert said == b""


def test_where_the_others_are(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    assert peers.read(file, 2) == {}
    file.write_text('{"0": "127.0.0.1:5", "1": "[::1]:6"}')
    assert peers.read(file, 2) == {0: ("127.0.0.1", 5), 1: ("::1", 6)}
    with pytest.raises(BadRequest, match="names a part that there is not among 1"):
        peers.read(file, 1)
    for wrong in ("", "[]", '{"a": "h:1"}', '{"0": "nowhere"}', '{"0": 5}', '{"0": "h:65536"}'):
        file.write_text(wrong)
        with pytest.raises(BadRequest, match="does not say where the parts are"):
            peers.read(file, 2)


def test_a_part_that_there_is_not() -> None:
    with pytest.raises(BadRequest, match="a gang of 2 parts has no part 2"):
        Settings(Path("/nowhere"), 2, 2, KEY, "127.0.0.1")
