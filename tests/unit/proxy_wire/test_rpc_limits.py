"""What a peer may take of the process behind a unix socket: lines, connections, memory, time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, NotFound, TooLarge, Unavailable, Unreached
from singularity_proxy.wire import rpc
from singularity_proxy.wire.limits import SESSION, Held, Limits, Pace, read_message

pytestmark = pytest.mark.asyncio

SMALL = Limits(
    line_bytes=4096, peers=3, held_bytes=64 << 10, unsent_bytes=256 << 10, calls=2, depth=8
)


class Box:
    """A server with two methods: `echo`, and `wait`, which is answered once `go` is set."""

    def __init__(self, path: Path, limits: Limits, within: Held | None) -> None:
        self.path, self.limits, self.within = path, limits, within
        self.go = asyncio.Event()
        self.waiting = self.served = 0
        self.trouble: list[dict[str, Any]] = []
        self.clients: list[rpc.Peer | asyncio.StreamWriter] = []
        self.peers: set[rpc.Peer] = set()

    async def echo(self, _: rpc.Peer, params: dict[str, Any]) -> Any:
        self.served += 1
        return params

    async def wait(self, _: rpc.Peer, params: dict[str, Any]) -> Any:
        self.waiting += 1
        await self.go.wait()
        return {}

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(str(self.path), limit=1 << 24)
        self.clients.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    @property
    def live(self) -> int:
        """How many of those that came are there still, as far as the server has heard."""
        return sum(not peer.closed.is_set() for peer in self.peers)

    async def peer(self) -> rpc.Peer:
        made = await rpc.connect(self.path)
        self.clients.append(made)
        return made


@contextlib.asynccontextmanager
async def served(
    folder: Path, limits: Limits = SMALL, within: Held | None = None
) -> AsyncIterator[Box]:
    box = Box(folder / "s", limits, within)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: box.trouble.append(context))
    server = await rpc.serve(
        box.path,
        {"echo": box.echo, "wait": box.wait},
        allowed_uids={os.getuid()},
        on_connect=box.peers.add,
        limits=limits,
        within=within,
    )
    try:
        yield box
        assert box.trouble == []
    finally:
        box.go.set()
        server.close()
        for client in box.clients:
            client.transport.abort() if isinstance(
                client, asyncio.StreamWriter
            ) else await client.close()
        for peer in box.peers:
            await peer.close()
        await asyncio.sleep(0.01)
        loop.set_exception_handler(None)


async def told(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The one line that comes before the end of the connection: its error."""
    lines = (await asyncio.wait_for(reader.read(), 10)).splitlines()
    assert len(lines) == 1, lines
    error: dict[str, Any] = json.loads(lines[0])["error"]
    return error


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"[" * 2000,
        b'{"a":' * 500,
        b'{"method": null}',
        b'{"method": ["echo"], "id": 1}',
        b'{"method": "echo", "id": 1, "params": null}',
        b'{"method": "echo", "id": 1, "params": []}',
        b'{"method": "echo", "id": [], "params": {}}',
        b'{"method": "echo", "id": 1.5, "params": {}}',
        b'{"method": "echo", "id": 1, "params": ' + b'{"a":' * 9 + b"1" + b"}" * 10,
        b'{"id": {}}',
        b'{"id": 1, "error": "no"}',
        b"\xff\xfe",
        b"{",
        b"",
    ],
    ids=lambda line: line[:40].decode("ascii", "replace"),
)
async def test_what_is_no_message_gets_one_sentence(short_dir: Path, line: bytes) -> None:
    async with served(short_dir) as box:
        reader, writer = await box.raw(line + b"\n")
        assert (await told(reader))["type"] == "BadRequest"
        writer.close()
        other = await box.peer()
        assert await other.call("echo", a=1) == {"a": 1}
        await other.close()


async def test_200000_brackets_are_a_refusal_and_not_an_exception(short_dir: Path) -> None:
    async with served(short_dir, SESSION) as box:
        reader, _ = await box.raw(b"[" * 200_000 + b"\n")
        assert (await told(reader))["message"] == "the line is not JSON, or nested too deeply"


async def test_a_line_has_an_end(short_dir: Path) -> None:
    async with served(short_dir) as box:
        whole, _ = await box.raw(json.dumps({"method": "echo", "id": 1}).encode().ljust(4097))
        assert (await told(whole))["type"] == "TooLarge"
        peer = await box.peer()
        with pytest.raises(TooLarge, match="a line on this socket has at most 4096 bytes"):
            await peer.call("echo", text="x" * 5000)
        with rpc.SyncPeer(box.path) as sync, pytest.raises(TooLarge):
            await asyncio.to_thread(sync.call, "echo", text="x" * 5000)


async def test_a_line_that_is_not_ended_in_time(short_dir: Path) -> None:
    async with served(short_dir, replace(SMALL, line_s=0.2)) as box:
        reader, writer = await box.raw(b'{"method": ')
        error = await told(reader)
        assert error["message"].startswith("the line that was begun was not ended within 0.2 s")
        writer.close()
        peer = await box.peer()  # an idle one, and one that talks, stay
        for _ in range(5):
            await asyncio.sleep(0.1)
            await peer.call("echo")


async def test_an_answer_that_does_not_come_in_time_is_not_a_refusal(short_dir: Path) -> None:
    async with served(short_dir) as box:
        with rpc.SyncPeer(box.path, timeout=0.1) as sync, pytest.raises(Unreached):
            await asyncio.to_thread(sync.call, "wait")


async def test_one_more_connection_is_refused_and_leaves_no_trace(short_dir: Path) -> None:
    held = Held(replace(SMALL, peers=100))
    async with served(short_dir, within=held) as box:
        first = [await box.peer() for _ in range(3)]
        for peer in first:
            await peer.call("echo")
        more = await box.peer()
        with pytest.raises(Unavailable, match="this socket has 3 connections already"):
            await more.call("echo")
        assert await first[0].call("echo", a=2) == {"a": 2}
        await first[1].close()
        while held.peers > 2 or box.live > 2:
            await asyncio.sleep(0.01)
        again = await box.peer()
        assert await again.call("echo", a=3) == {"a": 3}


async def test_unfinished_bytes_of_all_connections_together(short_dir: Path) -> None:
    user = Held(replace(SMALL, held_bytes=6000))
    async with served(short_dir, within=user) as box:
        await box.raw(b"x" * 3000)
        reader, _ = await box.raw(b"x" * 4000)
        assert (await told(reader))["type"] == "Unavailable"
        assert (user.peers, user.bytes) == (1, 3000)


async def test_calls_in_hand_are_bounded_and_the_rest_waits_in_the_socket(short_dir: Path) -> None:
    async with served(short_dir) as box:
        peer = await box.peer()
        calls = [asyncio.ensure_future(peer.call("wait")) for _ in range(20)]
        echo = asyncio.ensure_future(peer.call("echo", a=1))
        while box.waiting < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert (box.waiting, echo.done()) == (2, False)
        box.go.set()
        assert await asyncio.gather(*calls) == [{}] * 20
        assert await echo == {"a": 1}


async def test_calls_of_peers_that_left_count_until_they_are_over(short_dir: Path) -> None:
    held = Held(replace(SMALL, peers=100))
    async with served(short_dir, within=held) as box:
        for number in range(1, 41):
            before = box.waiting
            _, writer = await box.raw(b'{"method": "wait", "id": 1, "params": {}}\n')
            while len(box.peers) < number or (box.live and box.waiting == before):
                await asyncio.sleep(0.001)  # neither taken nor refused yet
            writer.close()
            while box.live:
                await asyncio.sleep(0.001)
        assert 5 < box.waiting <= SMALL.held_bytes // 4096
        box.go.set()
        while held.bytes:
            await asyncio.sleep(0.01)
        peer = await box.peer()
        assert await peer.call("echo", a=1) == {"a": 1}


async def test_for_who_reads_nothing_no_more_is_done(short_dir: Path) -> None:
    async with served(short_dir, replace(SMALL, held_bytes=1 << 20)) as box:
        line = json.dumps({"method": "echo", "id": 1, "params": {"t": "x" * 3000}}).encode()

        def flood(sock: socket.socket) -> None:
            sock.settimeout(1.0)
            with contextlib.suppress(OSError):
                sock.connect(str(box.path))
                while True:
                    sock.sendall(line + b"\n")

        with socket.socket(socket.AF_UNIX) as sock:
            await asyncio.to_thread(flood, sock)
            (flooded,) = box.peers
            while flooded._writable.is_set():  # a loaded machine may not have come so far
                await asyncio.sleep(0.01)
            for _ in range(10):  # what was begun by then
                await asyncio.sleep(0)
            before = box.served
            await asyncio.sleep(0.1)
            assert box.served == before < 2000
            peer = await box.peer()
            assert await peer.call("echo", a=1) == {"a": 1}


async def test_callers_are_held_to_a_pace_and_lose_nothing(short_dir: Path) -> None:
    async with served(short_dir, replace(SMALL, calls_per_s=100.0, burst=5)) as box:
        peer = await box.peer()
        started = asyncio.get_running_loop().time()
        got = await asyncio.gather(*(peer.call("echo", n=n) for n in range(25)))
        assert [one["n"] for one in got] == list(range(25))
        assert asyncio.get_running_loop().time() - started > 0.1


async def test_pace_counts_time() -> None:
    now = [0.0]
    pace = Pace(replace(SMALL, calls_per_s=2.0, burst=2), lambda: now[0])
    assert [pace.wait_s() for _ in range(3)] == [0.0, 0.0, 0.5]
    now[0] = 0.5
    assert pace.wait_s() == 0.0
    assert pace.wait_s() == 0.5
    now[0] = 100.0
    assert [pace.wait_s() for _ in range(3)] == [0.0, 0.0, 0.5]


async def test_both_ends_may_call_and_an_unknown_method_is_said(short_dir: Path) -> None:
    async with served(short_dir) as box:
        peer = await box.peer()
        with pytest.raises(NotFound, match="there is no method 'xxx"):
            await peer.call("x" * 1000)
        assert await peer.call("echo", a=1) == {"a": 1}


async def test_depth_is_counted() -> None:
    def nested(depth: int) -> bytes:
        return b'{"id": 1, "result": ' + b"[" * depth + b"]" * depth + b"}"

    assert read_message(nested(7), SMALL)["id"] == 1
    with pytest.raises(BadRequest, match="more than 8 lists or objects in each other"):
        read_message(nested(8), SMALL)
    flat = b'{"id": 1, "result": [' + b"[],".join([b""] * 1000) + b"[]]}"
    assert len(read_message(flat, SMALL)["result"]) == 1000


async def test_a_call_that_is_cancelled_just_when_it_is_answered_is_cancelled(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as box:
        peer = await box.peer()
        call = asyncio.ensure_future(peer.call("wait"))
        while not box.waiting:
            await asyncio.sleep(0)
        [future] = peer._waiting.values()
        future.set_result({})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        box.go.set()
