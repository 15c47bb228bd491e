"""What callers may take of the service: connections, time, and what each user has open."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import BadRequest, TooMany
from singularity_scheduler.service.api.callers import Callers
from support.scheduler_service import Platform, RawConnections, platform, raw_request, until

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def bounded(tmp_path: Path, **app: Any) -> AsyncIterator[Platform]:
    async with platform(tmp_path, app=app) as p:
        yield p


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What comes until the service closes the connection."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1 << 20), 20)
    return b""


async def test_headers_and_bodies_have_their_time(tmp_path: Path) -> None:
    async with (
        bounded(tmp_path, header_timeout_s=0.5, body_timeout_s=0.5) as p,
        RawConnections(p.port) as raw,
    ):
        half = [await raw.open(b"GET /services/sing") for _ in range(300)]
        silent = await raw.open(b"")
        body = raw_request("sessions", method="POST", more="Content-Length: 100\r\n")
        begun = await raw.open(body + b'{"kind": ')
        assert await p.client().cluster()  # nobody else waits
        assert {await closed(one) for one in (*half, silent, begun)} == {b""}
        idle = await raw.open(raw_request("cluster"))
        assert (await idle.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await closed(idle)


async def test_headers_have_a_size(tmp_path: Path) -> None:
    async with bounded(tmp_path) as p, RawConnections(p.port) as raw:
        reader = await raw.open(b"GET / HTTP/1.1\r\nX: " + b"x" * (64 << 10))
        assert await closed(reader) == b""


async def test_one_connection_more_takes_the_place_of_a_silent_one(tmp_path: Path) -> None:
    async with bounded(tmp_path, max_connections=16) as p, RawConnections(p.port) as raw:
        first = await raw.open(raw_request("cluster")[:-2])
        await asyncio.sleep(0.1)
        for _ in range(40):
            await raw.open(b"GET ")
        assert await closed(first) == b""
        assert await p.client().cluster()


async def test_without_a_silent_one_it_is_refused_in_a_sentence(tmp_path: Path) -> None:
    async with bounded(tmp_path, max_connections=16) as p, RawConnections(p.port) as raw:
        for n in range(16):
            stream = await raw.open(raw_request("events", who=("alice", "bob")[n % 2]))
            await stream.readuntil(b"\r\n\r\n")
        refused = (await closed(await raw.open(b""))).decode()
        assert refused.startswith("HTTP/1.1 503 ")
        problem = json.loads(refused.partition("\r\n\r\n")[2])
        assert problem["detail"].startswith("the scheduler service has 16 connections already")


async def test_a_user_has_so_many_requests_and_streams(tmp_path: Path) -> None:
    async with (
        bounded(tmp_path, max_requests_per_user=4, max_streams_per_user=3) as p,
        RawConnections(p.port) as raw,
    ):
        callers = p.services.callers
        streams = [await raw.open(raw_request("events")) for _ in range(3)]
        for stream in streams:
            await stream.readuntil(b"\r\n\r\n")
        with pytest.raises(TooMany, match="alice follows 3 streams of events and logs already"):
            await anext(p.client().events())
        assert await p.client().cluster()
        body = raw_request("sessions", method="POST", more="Content-Length: 100\r\n")
        await raw.open(body)
        await until(lambda: callers.count("alice") == 4, "four are open")
        with pytest.raises(TooMany, match="alice has 4 requests open already"):
            await p.client().cluster()
        assert await p.client("bob").cluster()
    assert callers.count("alice") == 0


async def test_who_takes_no_answer_is_left(tmp_path: Path) -> None:
    async with bounded(tmp_path, answer_timeout_s=0.5) as p, RawConnections(p.port) as raw:
        stream = await raw.open(raw_request("events"))
        await stream.readuntil(b"\r\n\r\n")
        feed = p.services.feed
        while feed.listeners:  # nothing of it is read: what the kernel does not take waits
            feed.add("alice", "session", json.dumps("x" * 100_000))
            await asyncio.sleep(0.01)
        await until(lambda: p.services.callers.count("alice") == 0, "it is left")


async def test_a_body_is_not_nested_without_end(tmp_path: Path) -> None:
    async with bounded(tmp_path) as p:
        deep: dict[str, Any] = {}
        for _ in range(80):
            deep = {"a": deep}
        with pytest.raises(BadRequest, match="more than 64 lists or objects in each other"):
            await p.client().create_session(kind="batch", launch=deep)


async def test_services_are_not_counted_and_nothing_is_left_of_a_request() -> None:
    from singularity_scheduler.service.api.auth import Caller

    callers = Callers()
    assert callers.enter(Caller("hub", False, True), stream=True, body_bytes=9) is None
    seat = callers.enter(Caller("alice", True, False), stream=True, body_bytes=9)
    assert seat is not None
    assert callers.count("alice") == 1
    callers.leave(seat)
    assert callers.count("alice") == 0
