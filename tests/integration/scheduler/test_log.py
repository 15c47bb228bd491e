"""Logs over the API: parts, following to the end, breaks on the way, what is not kept any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import NotFound, Unavailable
from singularity_scheduler.client import stream as client_stream
from singularity_scheduler.service.operations import streams
from support.scheduler_service import Platform, platform, until
from tornado.httpclient import AsyncHTTPClient

TEXT = "".join(f"line {n}: ü\n" for n in range(200))


async def printed(p: Platform, text: str = TEXT, who: str = "alice") -> str:
    session = await p.kernel(who)
    p.agent.logs[session] = text.encode()
    return session


def reads_of(p: Platform) -> list[int]:
    """The offsets from which the node's logs are read, from now on."""
    asked: list[int] = []
    real = p.agent._session_log

    def read(params: dict[str, Any]) -> Any:
        asked.append(params["offset"])
        return real(params)

    p.agent._session_log = read  # type: ignore[method-assign]
    return asked


async def whole(p: Platform, session: str, **options: Any) -> str:
    return "".join([text async for text in p.client().logs(session, **options)])


@pytest.mark.asyncio
async def test_a_log_is_read_in_parts_and_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LOG_CHUNK_BYTES", 100)
    text = "abc" * 1000
    async with platform(tmp_path) as p:
        session = await printed(p, text)
        assert await whole(p, session) == text
        assert await whole(p, session, offset=2990) == text[2990:]
        assert await whole(p, session, offset=10**6) == ""
        answer = await AsyncHTTPClient().fetch(
            f"{p.url}api/v1/sessions/{session}/log?offset=10&limit=250",
            headers={"Authorization": "token alice-token"},
        )
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.headers["Singularity-Log-Offset"] == "10"
        assert answer.body.decode() == text[10:260]
        with pytest.raises(NotFound):
            _ = [x async for x in p.client("bob").logs(session)]
        with pytest.raises(NotFound, match="no log"):
            await whole(p, await p.kernel())


@pytest.mark.asyncio
async def test_a_limit_is_never_gone_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with platform(tmp_path) as p:
        session = await printed(p, "ab" + "\U0001f600" * 100)
        real = p.agent._session_log

        def read(asked: dict[str, Any]) -> Any:
            """No character is cut, as by the real agent."""
            narrow = 0 if asked["offset"] else 2
            wide = (asked["limit"] - narrow) // 4 * 4
            return real({**asked, "limit": narrow + wide or 4})

        p.agent._session_log = read  # type: ignore[method-assign]
        for limit in (4, 7, 101, 200):
            answer = await AsyncHTTPClient().fetch(
                f"{p.url}api/v1/sessions/{session}/log?limit={limit}",
                headers={"Authorization": "token alice-token"},
            )
            assert limit - 4 < len(answer.body) <= limit


@pytest.mark.asyncio
async def test_following_ends_with_the_session(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session, reads = await printed(p, "first\n"), reads_of(p)
        following = asyncio.ensure_future(whole(p, session, follow=True))
        await until(lambda: len("first\n") in reads, "the first line is read")
        p.agent.logs[session] += b"second\n"
        await until(lambda: len("first\nsecond\n") in reads, "the second line is read")
        assert not following.done()
        p.agent.logs[session] += b"last\n"
        await p.client().end_session(session)
        assert await asyncio.wait_for(following, 10) == "first\nsecond\nlast\n"


@pytest.mark.asyncio
async def test_a_queued_run_is_followed_from_its_start(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        run = {"notebook": "/home/alice/a.ipynb"}
        before = await p.client().submit(run=run, devices=2)
        after = await p.client().submit(run=run, devices=2)
        assert after["state"] == "queued"
        following = asyncio.ensure_future(whole(p, after["id"], follow=True))
        await asyncio.sleep(0.3)
        p.agent.logs[after["id"]] = b"it runs\n"
        p.agent.exit(before["id"], 0)
        await p.state(after["id"], "ready")
        p.agent.exit(after["id"], 0)
        assert await asyncio.wait_for(following, 10) == "it runs\n"


@pytest.mark.asyncio
async def test_a_broken_connection_is_made_again_where_it_broke(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await printed(p)
        following = p.client().logs(session, follow=True)
        text = await anext(following)
        await p.stop()
        p.agent.logs[session] += b"printed while the service was away\n"
        rest = asyncio.ensure_future(_rest(following))
        await asyncio.sleep(0.2)
        await p.start()
        await p.ready()
        p.agent.exit(session, 0)
        text += await asyncio.wait_for(rest, 20)
        assert text == TEXT + "printed while the service was away\n"


async def _rest(following: Any) -> str:
    return "".join([text async for text in following])


@pytest.mark.asyncio
async def test_a_service_that_stays_away_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_stream, "WITHOUT_SERVICE_S", 0.5)
    async with platform(tmp_path) as p:
        session = await printed(p)
        following = p.client().logs(session, follow=True)
        await anext(following)
        await p.stop()
        with pytest.raises(Unavailable, match="the log cannot be read now") as caught:
            await _rest(following)
        assert caught.value.fields["offset"] == len(TEXT.encode())
        await p.start()
        await p.ready()


@pytest.mark.asyncio
async def test_a_node_that_is_away_for_a_moment_does_not_end_a_followed_log(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session, reads = await printed(p, "first\n"), reads_of(p)
        following = asyncio.ensure_future(whole(p, session, follow=True))
        await until(lambda: len("first\n") in reads, "the first line is read")
        await p.agent.stop()
        await until(lambda: not p.controller.state.nodes["local"].connected, "away")
        p.agent.logs[session] += b"second\n"
        await asyncio.sleep(0.5)
        await p.agent.start()
        await p.ready()
        p.agent.exit(session, 0)
        assert await asyncio.wait_for(following, 20) == "first\nsecond\n"


@pytest.mark.asyncio
async def test_what_is_cut_off_meanwhile_is_skipped(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await printed(p, "0123456789")
        real, cut = p.agent._session_log, 0

        def read(asked: dict[str, Any]) -> Any:
            return real({**asked, "offset": max(asked["offset"], cut)})

        p.agent._session_log = read  # type: ignore[method-assign]
        reads = reads_of(p)
        following = p.client().logs(session, follow=True)
        assert await anext(following) == "0123456789"
        cut = 15
        p.agent.logs[session] += b"abcdefghij"
        rest = asyncio.ensure_future(_rest(following))
        await until(lambda: 20 in reads, "what is left is read")
        p.agent.exit(session, 0)
        assert await asyncio.wait_for(rest, 20) == "fghij"
