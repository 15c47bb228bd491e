"""Programs on several nodes: who has not a gang's key, and other users where ranks meet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy import build
from singularity_proxy.elastic.bridge import bridge as module
from singularity_proxy.elastic.bridge.bridge import Bridge, Settings
from singularity_proxy.elastic.bridge.rendezvous import LOOPBACK, Rendezvous
from singularity_proxy.elastic.ranks import free_port
from support.agent import until
from support.attacks import as_uid, attack
from support.uids import needs_own_uids

Measured = Callable[[str], None]

STRANGER = 1_900_009_993
"""A uid that nobody has."""


@attack(
    "bridge-without-a-word",
    "300 connections to a bridge that say nothing, send garbage, or shake hands without the key, "
    "and to its inner port without the token",
    "each is closed when its time is over; a part that has the key is let in meanwhile",
    root=False,
)
def test_bridge_without_a_word(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GREET_SECONDS", 3.0)
    key = secrets.token_bytes(32)
    loopback = "127.0.0.1"
    unknown = ssl.create_default_context()
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE

    async def end(reader: asyncio.StreamReader) -> bytes:
        """What came until the other side closed."""
        with contextlib.suppress(OSError, ssl.SSLError):
            async with asyncio.timeout(30):
                return await reader.read()
        return b""

    async def go() -> None:
        for name in ("0", "1"):
            (tmp_path / name).mkdir()
        peers, inner = tmp_path / "peers.json", tmp_path / "rendezvous.json"
        settings = [
            Settings(
                *(tmp_path / str(n), n, 2, key, loopback),
                peers=peers,
                rendezvous=inner if n == 0 else None,
            )
            for n in range(2)
        ]
        mirrors = [build.load().Mirror(str(one.folder), one.part) for one in settings]
        async with Bridge(settings[0], mirrors[0]) as first:
            local = first._local.sockets[0].getsockname()[1]
            readers, writers = [], []
            for number in range(300):
                port = local if number % 3 == 2 else first.port
                reader, writer = await asyncio.open_connection(loopback, port)
                readers.append(reader)
                writers.append(writer)
                if number % 3 == 1:
                    writer.write(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(100))
            keyless = 0
            for _ in range(20):
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(
                        loopback, first.port, ssl=unknown
                    )
                    writers.append(writer)
                    keyless += len(await end(reader))
            assert keyless == 0
            peers.write_text(f'{{"0": "{loopback}:{first.port}"}}')
            async with Bridge(settings[1], mirrors[1]):
                await until(lambda: 1 in first._links, timeout=20.0)
                said = await asyncio.gather(*map(end, readers))
            # A TLS alert at most; no greeting of the bridge and nothing of its rendezvous.
            assert max(map(len, said)) <= 16, max(said, key=len)
            for writer in writers:
                writer.transport.abort()

    asyncio.run(go())
    measured("300 closed, none greeted; the part with the key was let in")


@attack(
    "rendezvous-of-ranks",
    "another user connects to the port at which ranks of a part meet, and waits for an answer",
    "it is disconnected and nothing is said to the other parts; the ranks' own user is let in",
)
@needs_own_uids
def test_rendezvous_of_ranks(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
    import socket, sys
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5) as one:
        one.settimeout(10)
        try:
            one.sendall(b"x" * 100)
            print("got", one.recv(100))
        except ConnectionError:
            print("got b''")
    """

    async def go() -> None:
        port = free_port()
        meeting = Rendezvous(1, port, tmp_path / "nowhere")
        said: list[int] = []
        monkeypatch.setattr(meeting, "_say", lambda part, what, number, data=b"": said.append(what))
        await meeting.start()
        for _ in range(5):
            got = await asyncio.to_thread(as_uid, STRANGER, code, str(port))
            assert got == "got b''\n"
        assert said == []
        # Who cannot be looked up is nobody's rank.
        with monkeypatch.context() as patch:
            patch.setattr(
                "singularity_proxy.elastic.bridge.rendezvous.uid_of_peer",
                lambda _: (_ for _ in ()).throw(OSError("not connected")),
            )
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            assert said == []
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        await until(lambda: said == [1])
        writer.close()
        await meeting.stop()

    asyncio.run(go())
    measured("6 of 6 refused")
