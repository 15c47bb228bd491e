"""What bridges are made of: frames, greetings, keys, addresses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import pytest
from singularity_proxy.elastic.bridge import frames, identity, peers
from singularity_proxy.elastic.bridge.bridge import Settings
from singularity_proxy.elastic.bridge.connection import Connection
from singularity_proxy.elastic.bridge.frames import Hello, Kind
from singularity_proxy.errors import BadRequest
from support.attacks import attack
from support.bridge_connections import feed

KEY, OTHER = bytes(range(32)), bytes(32)


def read(data: bytes, frames: int = 1) -> list[tuple[Kind, bytearray]]:
    """What is read of a connection that ends behind this."""

    async def work() -> list[tuple[Kind, bytearray]]:
        connection = Connection()
        feed(connection, data)
        connection.connection_lost(None)
        return [await connection.read(1.0) for _ in range(frames)]

    return asyncio.run(work())


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (2 << 20) + 7])
def test_a_frame_comes_as_it_was_sent(size: int) -> None:
    body = os.urandom(size)
    assert read(frames.head(Kind.FILES, body) + body) == [(Kind.FILES, body)]


def test_frames_that_cannot_be_read() -> None:
    with pytest.raises(EOFError):
        read(frames.head(Kind.FILES, b"four") + b"two")
    with pytest.raises(BadRequest, match="kind 99, which is unknown"):
        read(frames.HEADER.pack(99, 0))


def test_silence_is_noticed() -> None:
    async def silent() -> None:
        await Connection().read(0.01)

    async def slow() -> tuple[Kind, bytearray]:
        """Each piece of a frame says that the other end is there."""
        connection = Connection()
        reading = asyncio.create_task(connection.read(0.2))
        for byte in frames.head(Kind.PING, b"slow") + b"slow":
            await asyncio.sleep(0.02)
            feed(connection, bytes([byte]))
        return await reading

    with pytest.raises(TimeoutError):
        asyncio.run(silent())
    assert asyncio.run(slow()) == (Kind.PING, b"slow")


class Ends:
    """Two ends of a connection on the loopback."""

    async def __aenter__(self) -> tuple[Connection, Connection]:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[Connection] = loop.create_future()
        listens, connects = identity.contexts(KEY)
        self._server = await loop.create_server(
            lambda: Connection(accepted.set_result), "127.0.0.1", 0, ssl=listens
        )
        port = self._server.sockets[0].getsockname()[1]
        _, self._one = await loop.create_connection(Connection, "127.0.0.1", port, ssl=connects)
        self._other = await accepted
        return self._one, self._other

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for end in (self._one, self._other):
            end.abort()
            await end.wait_closed()


def test_short_frames_come_between_long_ones_and_not_within() -> None:
    async def work() -> None:
        bodies = [os.urandom(3 << 20) for _ in range(4)]
        async with Ends() as (one, other):

            async def send() -> None:
                for body in bodies:
                    await one.send_long(Kind.FILES, body)

            async def ping(sending: asyncio.Task[None]) -> int:
                sent = 0
                while not sending.done():
                    one.send(Kind.PING, b"short")
                    sent += 1
                    await asyncio.sleep(0.001)
                return sent

            sending = asyncio.create_task(send())
            pinging = asyncio.create_task(ping(sending))
            came: list[bytes] = []
            pings = 0
            while len(came) < len(bodies) or not pinging.done() or pings < pinging.result():
                kind, body = await other.read(5.0)
                if kind is Kind.FILES:
                    came.append(bytes(body))
                    await asyncio.sleep(0.05)  # a slow reader
                else:
                    assert (kind, body) == (Kind.PING, b"short")
                    pings += 1
            assert came == bodies
            assert pings > 1

    asyncio.run(work())


def test_what_was_sent_before_the_end_comes() -> None:
    async def work() -> None:
        body = os.urandom(9 << 20)
        async with Ends() as (one, other):
            await one.send_long(Kind.FILES, body)
            await one.send_long(Kind.OVER, b"")
            one.close()
            await asyncio.sleep(0.2)
            assert await other.read(5.0) == (Kind.FILES, body)
            assert await other.read(5.0) == (Kind.OVER, b"")
            with pytest.raises(EOFError):
                await other.read(5.0)
            with pytest.raises(ConnectionResetError, match="has ended"):
                await one.send_long(Kind.FILES, body)
            one.send(Kind.PING)  # lost, as is said

    asyncio.run(work())


def test_one_that_takes_nothing_is_given_up() -> None:
    async def work() -> None:
        async with Ends() as (one, other):
            assert other._transport is not None
            other._transport.pause_reading()
            with pytest.raises(TimeoutError):
                await one.send_long(Kind.FILES, bytes(64 << 20), 0.3)
            assert one.is_closing

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


@attack(
    "key-of-another-gang",
    "a bridge that has no certificate, or that of another gang, connects to a gang's",
    "it gets no greeting, at either end",
    root=False,
)
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
