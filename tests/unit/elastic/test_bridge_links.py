"""Connections between bridges: what is told over them when one is replaced, and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from singularity_proxy.elastic.bridge import bridge as module
from singularity_proxy.elastic.bridge import frames, identity
from singularity_proxy.elastic.bridge.bridge import Bridge, Link, Settings
from singularity_proxy.elastic.bridge.connection import Connection
from singularity_proxy.elastic.bridge.frames import Kind
from support.agent import until
from support.bridge_connections import feed

KEY = bytes(range(32))
MUCH = 3 * module.PIECE_BYTES


class Folder:
    """In the place of the native mirror: what is told, and what was heard."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.tells: dict[int, list[bytes]] = {}
        self.heard: dict[int, int] = {}
        self.over: list[int] = []
        self.broken = False

    def bell(self) -> int:
        return self._bell

    def say(self, peer: int, body: bytes) -> None:
        self.tells.setdefault(peer, []).append(body)
        os.eventfd_write(self._bell, 1)

    def rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        if self.broken:
            raise RuntimeError("group-0 is not the file of a process group")

    def changes(self, peer: int, most: int) -> bytes:
        told = self.tells.get(peer, [])
        return told.pop(0) if told else b""

    def forget(self, peer: int) -> None: ...

    def away(self, peer: int) -> None: ...

    def apply(self, peer: int, told: bytes) -> None:
        self.heard[peer] = self.heard.get(peer, 0) + len(told)

    def ended(self, peer: int) -> None:
        self.over.append(peer)


class Parts:
    """Bridges of a gang in this process."""

    def __init__(self, tmp_path: Path, parts: int) -> None:
        self.peers = tmp_path / "peers.json"
        self.folders = [Folder() for _ in range(parts)]
        self.bridges: list[Bridge] = []

    async def begin(self, number: int, port: int = 0) -> Bridge:
        settings = Settings(
            *(Path("/nowhere"), number, len(self.folders), KEY, "127.0.0.1"),
            port=port,
            peers=self.peers,
        )
        bridge = Bridge(settings, self.folders[number])
        await bridge.start()
        return bridge

    async def connected(self, number: int) -> None:
        links = self.bridges[number]._links
        await until(lambda: len(links) == len(self.folders) - 1)


@contextlib.asynccontextmanager
async def parts(tmp_path: Path, count: int) -> AsyncIterator[Parts]:
    gang = Parts(tmp_path, count)
    for number in range(count):
        gang.bridges.append(await gang.begin(number))
    where = {str(n): f"127.0.0.1:{bridge.port}" for n, bridge in enumerate(gang.bridges)}
    gang.peers.write_text(json.dumps(where))
    try:
        for number in range(count):
            await gang.connected(number)
        yield gang
    finally:
        for bridge in gang.bridges:
            await bridge.stop()
        for folder in gang.folders:
            os.close(folder.bell())


async def crash(bridge: Bridge) -> None:
    """As by SIGKILL: nobody is told anything."""
    for link in bridge._links.values():
        link.connection.abort()
    bridge._met.clear()
    await bridge.stop()


def test_all_are_told_of_the_end_though_one_is_lost_in_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, 3) as gang:
            last = gang.bridges.pop()
            gang.folders[2].tells = {1: [bytes(module.PIECE_BYTES)] * 3}
            await crash(gang.bridges.pop(0))
            await last.stop()
            assert gang.folders[1].heard == {2: MUCH}
            assert gang.folders[1].over == [2]

    asyncio.run(go())


def test_one_that_is_not_connected_at_the_end_is_waited_for(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, 2) as gang:
            first, second = gang.bridges
            gang.bridges.clear()
            await crash(first)
            await until(lambda: not second._links)
            gang.folders[1].tells = {0: [bytes(MUCH)]}
            ends = asyncio.create_task(second.stop())
            await asyncio.sleep(0.3)
            gang.bridges.append(await gang.begin(0, first.port))
            await ends
            assert gang.folders[0].heard == {1: MUCH}
            assert gang.folders[0].over == [1]

    asyncio.run(go())


def test_all_end_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAREWELL_SECONDS", 60.0)

    async def go() -> None:
        async with parts(tmp_path, 3) as gang:
            began = asyncio.get_running_loop().time()
            await asyncio.gather(*(bridge.stop() for bridge in gang.bridges))
            assert asyncio.get_running_loop().time() - began < module.FAREWELL_SECONDS
            gang.bridges.clear()

    asyncio.run(go())


def test_a_part_that_is_over_does_not_come_back(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, 2) as gang:
            await gang.bridges.pop().stop()
            assert gang.folders[0].over == [1]
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", gang.bridges[0].port, ssl=gang.bridges[0]._connects
            )
            hello = frames.Hello(1, 2).encode()
            body = frames.head(Kind.FILES, b"again") + b"again"
            writer.write(frames.head(Kind.HELLO, hello) + hello + body)
            await asyncio.wait_for(reader.read(), 5.0)
            writer.close()
            assert gang.folders[0].heard == {}

    asyncio.run(go())


def test_a_connection_that_was_replaced_neither_takes_nor_brings_anything(tmp_path: Path) -> None:
    """What it takes would be missing on the new one, and what it brings is older."""

    async def go() -> None:
        async with parts(tmp_path, 2) as gang:
            bridge, folder = gang.bridges[0], gang.folders[0]
            now = bridge._links[1]
            old = Link(1, now.connection)
            folder.tells[1] = [b"new"]
            await bridge._tell_all(old)
            assert folder.tells[1] == [b"new"]
            old = Link(1, Connection())
            feed(old.connection, frames.head(Kind.FILES, b"old") + b"old" + frames.head(Kind.OVER))
            await asyncio.wait_for(bridge._listen(old), 5.0)
            assert (folder.heard, folder.over) == ({}, [])

    asyncio.run(go())


def test_one_that_fell_silent_is_connected_to_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)

    async def go() -> None:
        writers: list[asyncio.StreamWriter] = []

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            hello = frames.Hello(0, 2).encode()
            writer.write(frames.head(Kind.HELLO, hello) + hello)
            await writer.drain()
            writer.transport.pause_reading()  # type: ignore[attr-defined]

        listens, _ = identity.contexts(KEY)
        server = await asyncio.start_server(silent, "127.0.0.1", 0, ssl=listens)
        gang = Parts(tmp_path, 2)
        port = server.sockets[0].getsockname()[1]
        gang.peers.write_text(json.dumps({"0": f"127.0.0.1:{port}"}))
        bridge = await gang.begin(1)
        await until(lambda: len(writers) > 2, timeout=10.0)
        await crash(bridge)
        server.close()
        for writer in writers:
            writer.transport.abort()
        for folder in gang.folders:
            os.close(folder.bell())

    asyncio.run(go())


def test_others_are_told_though_a_file_cannot_be_read(tmp_path: Path) -> None:
    async def go() -> None:
        async with parts(tmp_path, 2) as gang:
            gang.folders[0].broken = True
            gang.folders[0].say(1, b"news")
            await until(lambda: gang.folders[1].heard == {0: 4})

    asyncio.run(go())
