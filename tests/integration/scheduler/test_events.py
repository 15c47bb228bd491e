"""The event stream: resume without a gap, nobody else's events, places in the queue, the bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import BatchRun, Kind, Tier
from singularity_scheduler.service.events import feed as feed_module
from singularity_scheduler.service.events import texts as texts_module
from singularity_scheduler.service.events.feed import Feed
from singularity_scheduler.service.events.texts import Texts
from singularity_scheduler.service.operations import streams
from singularity_scheduler.service.schemas import common as schemas
from support.scheduler_service import Platform, platform, until


async def until_state(
    stream: AsyncIterator[dict[str, Any]], session: str, word: str
) -> list[dict[str, Any]]:
    """Everything up to the event that says that the session is in this state."""
    read = []
    async for event in stream:
        read.append(event)
        data = event["data"]
        if event["event"] == "session" and (data["id"], data["state"]) == (session, word):
            return read
    raise AssertionError("the stream ended")


async def work(p: Platform, session: str) -> None:
    p.agent.busy(session, True)
    p.agent.need(session)
    await p.state(session, "running")


@pytest.mark.asyncio
async def test_who_comes_back_reads_exactly_what_was_missed(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        a, b = await p.kernel("alice", name="a"), await p.kernel("bob", name="b")
        mine, everything = p.client().events(), p.client("admin").events()
        last = (await anext(mine))["id"]
        await anext(everything)
        await mine.aclose()
        await work(p, b)
        await work(p, a)
        all_of_it = await until_state(everything, a, "running")
        wanted = [e for e in all_of_it if e["event"] == "session" and e["data"]["user"] == "alice"]
        assert [e["data"]["state"] for e in wanted][-2:] == ["attaching", "running"]
        again = p.client().events(last)
        assert await until_state(again, a, "running") == wanted
        # From the middle on it is the rest, and a live stream after that.
        middle = p.client().events(wanted[0]["id"])
        assert await until_state(middle, a, "running") == wanted[1:]
        await p.client().park(a)
        assert (await until_state(middle, a, "parked"))[-1]["id"] > wanted[-1]["id"]


@pytest.mark.parametrize(
    "last", ["", "nonsense", "00000000-3", "{instance}-999999", "{instance}-x"]
)
@pytest.mark.asyncio
async def test_an_id_that_is_not_known_gives_a_snapshot(tmp_path: Path, last: str) -> None:
    async with platform(tmp_path) as p:
        a = await p.kernel("alice", name="a")
        first = await anext(p.client().events())
        instance = first["id"].partition("-")[0]
        again = await anext(p.client().events(last.format(instance=instance)))
        assert again["event"] == "snapshot"
        assert [s["id"] for s in again["data"]["sessions"]] == [a]
        assert again["id"].startswith(f"{instance}-")


@pytest.mark.asyncio
async def test_after_a_restart_comes_a_snapshot(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        await p.kernel("alice", name="a")
        first = await anext(p.client().events())
        await p.stop()
        await p.start()
        await p.ready()
        again = await anext(p.client().events(first["id"]))
        assert again["event"] == "snapshot"
        assert again["id"].partition("-")[0] != first["id"].partition("-")[0]


@pytest.mark.asyncio
async def test_a_change_tells_others_only_their_new_places(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        for who in ("alice", "bob"):
            await p.holder(who, name="holds")
        everything = p.client("admin").events()
        await anext(everything)
        waiting = {}
        for number in range(4):
            who = ("alice", "bob")[number % 2]
            waiting[number] = await p.kernel(who, name=str(number))
            p.agent.need(waiting[number])
            await p.state(waiting[number], "waiting")
        async for event in everything:
            if event["event"] == "queue" and waiting[3] in event["data"]["places"]:
                break
        stream = p.client().events()
        snapshot = (await anext(stream))["data"]["sessions"]
        places = {s["id"]: s["queue"]["place"] for s in snapshot if s["queue"]}
        assert places == {waiting[0]: 1, waiting[2]: 3}
        await p.client("alice").end_session(waiting[0])
        told = await until_state(stream, waiting[0], "completed")
        async for event in stream:
            told.append(event)
            if event["event"] == "queue":
                break
        assert told[-1]["data"] == {"places": {waiting[2]: 2}}
        assert {e["data"]["id"] for e in told if e["event"] == "session"} == {waiting[0]}
        seen = []
        async for event in everything:
            seen.append(event)
            if event["event"] == "queue":
                break
        assert seen[-1]["data"] == {"places": {waiting[1]: 1, waiting[2]: 2, waiting[3]: 3}}


@pytest.mark.asyncio
async def test_a_listener_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        stream = p.client().events()
        await anext(stream)
        feed = p.services.feed
        assert feed.listeners == 1
        await stream.aclose()
        await until(lambda: feed.listeners == 0, "forgotten")


@pytest.mark.asyncio
async def test_heartbeats_come_while_only_others_have_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    async with platform(tmp_path) as p:
        stream = p.client().events()
        first = (await anext(stream))["id"]
        following = asyncio.ensure_future(anext(stream))
        feed = p.services.feed
        for number in range(50):
            feed.add("bob", "session", str(number))
            await asyncio.sleep(0.01)
        await until(lambda: stream.last_id == feed.id_of(feed.newest), "moved on")
        assert stream.last_id != first
        assert not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await stream.aclose()


LONG = {"notebook": "/home/alice/a.ipynb", "parameters": {"text": "x" * 2100}}


@pytest.mark.asyncio
async def test_what_is_long_in_a_run_is_left_out_of_lists_and_events(tmp_path: Path) -> None:
    async with platform(tmp_path) as p:
        stream = p.client().events()
        await anext(stream)
        variables = {f"NAME_{n}": "" for n in range(300)}
        long = await p.client().submit(run={**LONG, "variables": variables})
        short = await p.client().submit(run={**LONG, "parameters": {"text": "x" * 2000}})
        assert long["run"]["parameters"] == LONG["parameters"]
        whole = await p.client().get_session(long["id"])
        assert whole["run"]["parameters"] == LONG["parameters"]
        assert whole["run"]["variables"] == sorted(variables)
        event = await anext(stream)
        assert event["data"]["id"] == long["id"]
        snapshot = (await anext(p.client().events()))["data"]["sessions"]
        listed = await p.client().sessions()
        schema = {
            "$ref": "#/components/schemas/Session",
            "components": {"schemas": schemas.COMPONENTS},
        }
        for found in ([event["data"]], snapshot, listed):
            by_id = {s["id"]: s for s in found}
            run = by_id[long["id"]]["run"]
            assert run == {**whole["run"], "parameters": None, "variables": None}
            for document in found:
                Draft202012Validator(schema).validate(document)
        assert by_id[short["id"]]["run"] == short["run"]
        await stream.aclose()


def test_texts_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "MAX_BYTES", 400_000)
    texts = Texts(ClusterState())
    run = BatchRun("/a.ipynb", parameters=json.dumps({"x": "y" * 60_000}))
    small = SessionView("", "alice", Kind.BATCH, "a", Tier.BASIC, 1, "local", 0.0, 0.0)
    for number in range(100):
        texts.session(replace(small, id=str(number)))
    assert len(texts._made) == 100
    for number in range(50):
        texts.session(replace(small, id=str(number), run=run))
    assert 1 <= len(texts._made) < 8
    assert texts._bytes <= 400_000
    for number in range(50):  # small again
        texts.session(replace(small, id=str(number)))
    assert texts._bytes == sum(made.size for made in texts._made.values())


def read(feed: Feed, user: str | None, position: int) -> list[Any]:
    blocks = feed.since(position, user).decode().split("\n\n")[:-1]
    return [json.loads(block.split("data: ")[1]) for block in blocks]


def test_the_oldest_events_are_forgotten_and_who_needs_them_starts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "MAX_EVENTS", 80)
    feed = Feed()
    slow, _ = feed.listen("alice", None)
    for number in range(200):
        feed.add("alice", "session", json.dumps(number))
    assert slow.take() is None
    assert len(feed._events) <= 80
    oldest = feed.newest - len(feed._events)
    assert feed.listen("alice", feed.id_of(oldest))[1]
    assert not feed.listen("alice", feed.id_of(oldest - 1))[1]
    assert read(feed, "alice", oldest) == list(range(oldest, 200))
    assert read(feed, "bob", oldest) == []


def test_large_events_count_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_BYTES", 10_000)
    feed = Feed()
    for _ in range(100):
        feed.add("alice", "session", json.dumps("x" * 1000))
    assert 1 <= len(feed._events) <= 10
    assert feed._bytes == sum(event.size for event in feed._events)


def test_old_events_are_forgotten_however_few_there_are() -> None:
    now = 0.0
    feed = Feed(clock=lambda: now)
    for number in range(1000):
        now += 10.0
        feed.add("alice", "session", json.dumps(number))
        feed.add_places({"a": ("alice", number)})
        assert len(feed._events) <= 2 * 38, "of 300 s, and of a quarter more"
    assert feed._bytes == sum(event.size for event in feed._events)
    listener, goes_on = feed.listen("alice", feed.id_of(feed.newest - 60))
    assert goes_on, "a page that was away for five minutes reads on"
    assert listener.take() is not None
    assert not feed.listen("alice", feed.id_of(feed.newest - 80))[1]


def test_reading_places_keeps_nothing() -> None:
    feed = Feed()
    feed.add_places({"a": ("alice", 1), "b": ("bob", 2), "c": ("alice", 3)})
    before = feed._bytes
    size = objects(feed._events[0])
    assert read(feed, "alice", 0) == [{"places": {"a": 1, "c": 3}}]
    assert read(feed, None, 0) == [{"places": {"a": 1, "b": 2, "c": 3}}]
    for number in range(100):
        assert read(feed, f"user-{number}", 0) == []
    assert objects(feed._events[0]) == size
    assert feed._bytes == before >= 300


def objects(value: Any) -> int:
    """Objects behind a value, counted."""
    if isinstance(value, dict):
        return 1 + sum(objects(v) for v in value.values())
    return 1 + (sum(objects(v) for v in vars(value).values()) if hasattr(value, "__dict__") else 0)


@pytest.mark.asyncio
async def test_everybody_is_let_go_when_the_service_stops() -> None:
    feed = Feed()
    listener, _ = feed.listen(None, None)
    waiting = asyncio.ensure_future(listener.wait(10))
    await asyncio.sleep(0)
    feed.close()
    assert await waiting
    assert listener.take() is None
