"""What the server extension remembers of sessions while it passes their changes on."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jupyter_events import EventLogger
from singularity_labext import events as labext
from singularity_labext.events import KEEP_ENDED, Emitter, ForkFinder, follow
from singularity_labext.handlers import VerbHandler
from singularity_proxy.errors import Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.client.schemas import SESSION_STATE

SESSION = {
    "user": "alice",
    "name": "train.ipynb",
    "kind": "interactive",
    "tier": "basic",
    "node": "local",
    "state": "ready",
    "process_state": "live",
    "device_state": "none",
    "reason": "its process runs",
    "updated_at": "2026-01-01T00:00:00.000+00:00",
}
OVER = {"state": "completed", "process_state": "completed"}


class Told(Emitter):
    """An emitter with what it told: (session, state)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.logger = EventLogger()
        super().__init__(self.logger)

        async def tell(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
            self.told.append((data["session"], data["state"]))

        self.logger.add_listener(schema_id=SESSION_STATE, listener=tell)

    async def session(self, sid: str, **changes: Any) -> None:
        self.take({"event": "session", "id": "1", "data": {**SESSION, "id": sid, **changes}})
        await self.logger.gather_listeners()


@pytest.mark.asyncio
async def test_only_so_many_ended_sessions_are_remembered() -> None:
    emitter = Told()
    await emitter.session("live")
    for number in range(KEEP_ENDED + 100):
        emitter.take({"event": "session", "id": "1", "data": {**SESSION, "id": str(number)}})
        await emitter.session(str(number), **OVER)
    assert len(emitter._known) == 1
    assert len(emitter._ended) == KEEP_ENDED
    before = len(emitter.told)
    await emitter.session(str(KEEP_ENDED + 99), **OVER)  # the same again is no change
    assert len(emitter.told) == before == 2 * (KEEP_ENDED + 100) + 1


@pytest.mark.asyncio
async def test_the_end_during_an_absence_is_told_once() -> None:
    emitter = Told()
    snapshot = {"event": "snapshot", "id": "1", "data": {"sessions": [{**SESSION, "id": "a"}]}}
    emitter.take(snapshot)
    snapshot["data"] = {"sessions": [{**SESSION, "id": "a", **OVER}]}
    emitter.take(snapshot)
    emitter.take(snapshot)
    await emitter.logger.gather_listeners()
    assert emitter.told == [("a", "completed")]


class Away:
    """A stream that brings a heartbeat and ends."""

    def __init__(self, last: str | None) -> None:
        self.last_id = last

    def __aiter__(self) -> Away:
        return self

    async def __anext__(self) -> dict[str, Any]:
        self.last_id = "x-7"
        raise Unavailable("the service goes away")

    async def aclose(self) -> None:
        pass


@pytest.mark.asyncio
async def test_it_goes_on_behind_the_last_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labext, "RETRY_S", 0.0)
    asked: list[str | None] = []
    twice = asyncio.Event()

    class Client:
        def events(self, last: str | None) -> Away:
            asked.append(last)
            if len(asked) == 2:
                twice.set()
            return Away(last)

    following = asyncio.ensure_future(follow(cast(ServiceClient, Client()), Told()))
    await asyncio.wait_for(twice.wait(), 5)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert asked[:2] == [None, "x-7"]


@pytest.mark.asyncio
async def test_why_is_told_as_a_code_too() -> None:
    emitter, told = Told(), []

    async def tell(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        told.append((data.get("reason_code"), data.get("reason_args")))

    emitter.logger.add_listener(schema_id=SESSION_STATE, listener=tell)
    await emitter.session("a")
    await emitter.session("b", reason_code="runs", reason_args={"number": 1})
    assert told == [(None, None), ("runs", {"number": 1})]


class Brings(Away):
    """A stream that brings two events."""

    def __init__(self) -> None:
        self.last_id, self.left = None, ["1", "2"]

    async def __anext__(self) -> dict[str, Any]:
        if not self.left:
            await asyncio.Event().wait()
        return {"event": "session", "id": self.left.pop(0), "data": SESSION}


@pytest.mark.asyncio
async def test_what_one_taker_cannot_take_the_others_get() -> None:
    taken: list[str] = []

    class Broken:
        def take(self, event: dict[str, Any]) -> None:
            raise ValueError("this one is not for me")

    class Whole:
        def take(self, event: dict[str, Any]) -> None:
            taken.append(event["id"])

    class Client:
        def events(self, last: str | None) -> Brings:
            return Brings()

    following = asyncio.ensure_future(follow(cast(ServiceClient, Client()), Broken(), Whole()))
    while len(taken) < 2:
        await asyncio.sleep(0.01)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert taken == ["1", "2"]


@pytest.mark.asyncio
async def test_each_fork_is_told_to_the_server_until_it_has_been_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labext, "RETRY_S", 0.0)
    told: list[str] = []

    async def find_fork(session: str) -> None:
        told.append(session)
        if told.count(session) == 1 and session == "away":
            raise Unavailable("the scheduler is away")
        if told.count(session) == 1 and session == "late":
            raise ValueError("a fault")

    finder = ForkFinder(find_fork)

    async def session(sid: str, **changes: Any) -> None:
        finder.take({"event": "session", "id": "1", "data": {**SESSION, "id": sid, **changes}})
        await asyncio.gather(*finder._told.values())

    await session("plain", forked_from=None)
    await session("over", forked_from="plain", **OVER)
    await session("away", forked_from="plain")
    assert told == ["away", "away"], "no other event of it may ever come"
    await session("late", forked_from="plain")
    await session("late", forked_from="plain")
    await session("late", forked_from="plain")
    known = [{**SESSION, "id": sid, "forked_from": "plain"} for sid in ("late", "early")]
    finder.take({"event": "snapshot", "id": "1", "data": {"sessions": known}})
    finder.take({"event": "heartbeat", "id": "1", "data": {}})
    await asyncio.gather(*finder._told.values())
    assert told == ["away", "away", "late", "late", "early"]


@pytest.mark.asyncio
async def test_a_server_that_stops_looks_for_no_fork() -> None:
    begun = asyncio.Event()

    async def find_fork(session: str) -> None:
        begun.set()
        raise Unavailable("the scheduler is away")

    finder = ForkFinder(find_fork)
    forked = {**SESSION, "id": "a", "forked_from": "plain"}
    finder.take({"event": "session", "id": "1", "data": forked})
    await begun.wait()
    await finder.close()
    assert all(task.done() for task in finder._told.values())


@pytest.mark.parametrize(("verb", "finder"), [("fork", "find_fork"), ("reopen", "find_again")])
@pytest.mark.parametrize("error", [Unavailable("the scheduler is away"), TypeError("a fault")])
@pytest.mark.asyncio
async def test_what_was_done_is_told_though_its_kernel_is_not_found(
    verb: str, finder: str, error: Exception
) -> None:
    async def done(session: str, **body: Any) -> dict[str, Any]:
        assert body == ({"key": "k1"} if verb == "fork" else {}), "a fork is begun once for a key"
        return {"id": "new"}

    async def find(session: str) -> None:
        raise error

    said: list[str] = []
    page = SimpleNamespace(
        KEYS=VerbHandler.KEYS,
        NEEDED={},
        client=SimpleNamespace(**{verb: done}),
        kernel_manager=SimpleNamespace(**{finder: find}),
        current_user="ada",
        request=SimpleNamespace(headers={"Idempotency-Key": "k1"}),
        log=SimpleNamespace(warning=lambda *_, **__: None),
        get_json_body=dict,
        finish=said.append,
    )
    page._kernel = VerbHandler._kernel.__get__(page)
    page._find = VerbHandler._find.__get__(page)
    post = VerbHandler.post
    while hasattr(post, "__wrapped__"):  # who may ask is tested with a real server
        post = post.__wrapped__
    await post(page, "old", verb)
    assert json.loads(said[0]) == {"id": "new", "kernel": None}
