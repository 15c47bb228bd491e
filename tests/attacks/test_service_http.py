"""Whoever reaches the service's port, and users with tokens, against the service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from singularity_proxy.errors import BadRequest
from singularity_scheduler.service.operations.table import TABLE, Who
from support.attacks import Peak, attack
from support.cli_commands import Commands
from support.dashboard_pages import visitor
from support.kernel_server import server
from support.scheduler_service import PREFIX, RawConnections, platform, raw_request, until
from tornado.httpclient import AsyncHTTPClient

Measured = Callable[[str], None]

SERVICE_MIB = 128
"""How much a flood may make the service grow."""


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """What ends with the test at the latest."""
    with contextlib.ExitStack() as ends:
        yield ends


async def open_unread(raw: RawConnections, data: bytes) -> asyncio.StreamReader | None:
    """A connection of which nothing is read; None when there is none within 5 s."""
    try:
        async with asyncio.timeout(5):
            return await raw.open(data, limit=64)
    except (OSError, TimeoutError):
        return None


@attack(
    "half-sent-requests",
    "1500 connections with half of the headers of a request, and 300 with half of a body",
    f"they are closed in time, the service grows by at most {SERVICE_MIB} MiB, others are served",
    root=False,
)
async def test_half_sent_requests(measured: Measured, tmp_path: Path) -> None:
    app = {"header_timeout_s": 3.0, "body_timeout_s": 3.0, "max_connections": 512}
    async with platform(tmp_path, app=app) as p, RawConnections(p.port) as raw:
        peak = Peak(os.getpid())
        open_ = [
            await open_unread(raw, b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000) for _ in range(1500)
        ]
        body = raw_request("sessions", "alice", "POST", "Content-Length: 4000000\r\n")
        open_ += [await open_unread(raw, body + b"x" * 200_000) for _ in range(300)]
        assert await p.client("bob").cluster()

        async def ends(reader: asyncio.StreamReader) -> None:
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(4096), 20):
                    pass

        await asyncio.gather(*(ends(one) for one in open_ if one is not None))
        assert p.services.callers.count("alice") == 0
        grown = peak.grown()
        assert grown < SERVICE_MIB
        measured(f"all closed; the process of both ends grew by {grown:.0f} MiB")


@attack(
    "streams-that-nobody-reads",
    "500 event streams of one user, from the oldest event on, of which nothing is read",
    f"the 33rd is refused; the service grows by at most {SERVICE_MIB} MiB and leaves the others",
    root=False,
)
async def test_streams_that_nobody_reads(measured: Measured, tmp_path: Path) -> None:
    async with (
        platform(tmp_path, app={"answer_timeout_s": 2.0}) as p,
        RawConnections(p.port) as raw,
    ):
        feed = p.services.feed
        for number in range(1000):
            feed.add("alice", "session", json.dumps([number, "x" * 12_000]))
        peak = Peak(os.getpid())
        since = f"Last-Event-ID: {feed.id_of(1)}\r\n"
        for _ in range(500):
            await open_unread(raw, raw_request("events", "alice", more=since))
        most = p.services.callers.count("alice")
        assert most <= 128
        assert feed.listeners <= 32
        assert await p.client("bob").cluster()
        await until(lambda: feed.listeners == 0, "nobody reads, so nobody listens")
        grown = peak.grown()
        assert grown < SERVICE_MIB
        measured(f"at most 32 of 500; the process of both ends grew by {grown:.0f} MiB")


@attack(
    "streams-through-the-relay",
    "40 pages of one user's JupyterLab follow events through its Jupyter server",
    "32 are served, the others are refused with a sentence; one that leaves makes room, and other "
    "users follow theirs",
    root=False,
)
async def test_streams_through_the_relay(
    measured: Measured, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    async with platform(tmp_path / "service") as p:
        served = server(
            tmp_path,
            "--SingularityLabExtension.emit_events=False",
            SINGULARITY_API_URL=p.url,
            JUPYTERHUB_API_TOKEN="alice-token",
        )
        lab = await asyncio.to_thread(stack.enter_context, served)
        feed, pages, said = p.services.feed, [], []

        def follow() -> None:
            try:
                pages.append(stack.enter_context(lab.open("singularity/api/v1/events")))
                assert pages[-1].readline()
            except HTTPError as error:
                with error:
                    said.append((error.code, json.loads(error.read())["message"]))

        for _ in range(40):
            await asyncio.to_thread(follow)
        assert (len(pages), feed.listeners) == (32, 32)
        assert {code for code, _ in said} == {429}
        assert all("32" in sentence for _, sentence in said), said[:1]
        stream = p.client("bob").events()
        assert (await anext(stream))["event"] == "snapshot"
        await stream.aclose()
        pages.pop().close()
        await until(lambda: feed.listeners == 31, "the page that left")
        await asyncio.to_thread(follow)
        assert (len(pages), feed.listeners) == (32, 32)
        await asyncio.to_thread(stack.close)
        measured(f"32 of 40 served; {said[0][1]}")


@attack(
    "sessions-without-end",
    "a user asks for 600 runs at once, with large parameters, 80 levels of JSON and hostile names",
    "each is taken or refused with a sentence; other users are served",
    root=False,
)
async def test_sessions_without_end(measured: Measured, tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        client = AsyncHTTPClient(force_instance=True, defaults={"request_timeout": 120.0})
        run = {"notebook": "/home/alice/a.ipynb", "output": "/home/alice/b.ipynb", "folder": "/"}
        deep: Any = 1
        for _ in range(80):
            deep = {"a": deep}
        bodies = [
            {"kind": "batch", "run": {**run, "parameters": {"x": "y" * 10_000}}},
            {"kind": "batch", "run": {**run, "parameters": {"x": deep}}},
            {"kind": "batch", "run": run, "name": "\x1b[2J<script>"},
        ]
        codes: dict[int, int] = {}

        async def ask(number: int) -> None:
            response = await client.fetch(
                f"{p.url}api/v1/sessions",
                method="POST",
                headers={"Authorization": "token alice-token"},
                body=json.dumps(bodies[number % 3]),
                raise_error=False,
            )
            codes[response.code] = codes.get(response.code, 0) + 1

        asks = [asyncio.ensure_future(ask(number)) for number in range(600)]
        for _ in range(5):
            assert await p.client("bob").cluster()
        await asyncio.gather(*asks)
        assert set(codes) <= {201, 400, 409, 429}, codes
        client.close()
        measured(", ".join(f"{count} times {code}" for code, count in sorted(codes.items())))


@attack(
    "another-users-session",
    "every operation of the API on a session of another user, with a user's token; every one of "
    "administrators; all of them without a token",
    "404 as for one that does not exist, 403, 401; nothing changes",
    root=False,
)
async def test_another_users_session(measured: Measured, tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        session = await p.holder("alice", name="a")
        before = await p.client("alice").get_session(session)
        asked = 0
        for one in TABLE:
            if one.who in (Who.ANYBODY, Who.METRICS):
                continue
            path = one.path.format_map(Values(session))
            for who, right in (("", {401}), ("bob-token", {403, 404})):
                mine = "{session}" in one.path or one.who is Who.ADMIN
                if who and not mine:
                    continue
                response = await AsyncHTTPClient().fetch(
                    f"{p.url}api/v1/{path}",
                    method=one.method,
                    body=None if one.method in ("GET", "DELETE") else "{}",
                    headers={"Authorization": f"token {who}"} if who else {},
                    raise_error=False,
                )
                asked += 1
                # What is wrong with a body may be said first: that says nothing of the session.
                refused = right | {400} if one.body and who else right
                assert response.code in refused, (one.method, path, who, response.code)
                assert b"alice" not in response.body
        after = await p.client("alice").get_session(session)
        for name in ("state", "devices", "tier", "epoch", "checkpoints"):
            assert after.get(name) == before.get(name)
        measured(f"{asked} requests refused")


class Values(dict[str, str]):
    """A value for each place in an address."""

    def __init__(self, session: str) -> None:
        super().__init__(session=session)

    def __missing__(self, name: str) -> str:
        return "alice" if name == "user" else "x"


HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "{{ 7 * 7 }}${7*7}",
    "javascript:alert(1)",
    "]]></div><iframe srcdoc='x'>",
)
"""Names that a session may have; those with control characters are refused at the door."""


class Tags(HTMLParser):
    """What a browser would make of a page: its elements and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@attack(
    "hostile-names",
    "sessions named with HTML, scripts and templates, reasons of ends with terminal escapes and "
    "bidi marks besides, on pages of the dashboard and in the output of ls, why, history and show",
    "pages have no element and no attribute of theirs; control characters never reach a terminal",
    root=False,
)
async def test_hostile_names(measured: Measured, tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for name in ("a\x1b[2J", "a\nb", "a\u202eb", "a\x00", "x" * 5000):
            with pytest.raises(BadRequest):
                await p.kernel("alice", name=name)
        sessions = [await p.kernel("alice", name=name) for name in HOSTILE]
        for number, session in enumerate(sessions[:3]):
            reason = f"ended \x1b]0;owned\x07\x1b[2J\u202e{HOSTILE[number]}"
            p.controller.reports.on_event(
                "local", session, "process.exited", {"exit_code": 1, "reason": reason}
            )
            await p.state(session, "failed")
        pages = ["sessions", "", "log", "nodes", "usage", "queue"]
        pages += [f"sessions/{session}" for session in sessions]
        pages += [f"sessions?text={quote(text)}" for text in HOSTILE]
        looked = 0
        for who in ("alice", "admin"):
            async with visitor(p, who) as browser:
                for page in pages:
                    answer = await browser.get(page)
                    if answer.status_code != 200:
                        continue
                    looked += 1
                    tags = Tags()
                    tags.feed(answer.text)
                    for tag, attributes in tags.found:
                        assert tag not in ("img", "iframe"), (page, tag)
                        own = str(attributes.get("src", ""))
                        assert tag != "script" or own.startswith(PREFIX), (page, attributes)
                        for name, value in attributes.items():
                            assert not name.startswith("on"), (page, tag, name)
                            assert (
                                name == "srcdoc"
                                or "javascript:" not in str(value)
                                or (name in ("title", "value", "content", "aria-label"))
                            ), (page, tag, name, value)
                    assert "alert(1)</script>" not in answer.text
        assert looked >= 16
        jupyter = Commands(p.url, "alice-token")
        shown = [
            await jupyter(*words)
            for words in (
                ("ls", "--all"),
                ("ls",),
                *(("why", session) for session in sessions),
                *(("history", session) for session in sessions),
                *(("show", session) for session in sessions),
            )
        ]
        bad = [
            c for one in shown for c in one.out + one.err if not (c.isprintable() or c in "\n\t")
        ]
        assert bad == [], sorted(set(bad))
        measured(f"{looked} pages and {len(shown)} commands, none obeys; 5 names refused")
