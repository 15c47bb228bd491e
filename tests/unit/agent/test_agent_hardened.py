"""What one session, or its relay, cannot do to the agent and to other sessions."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import NoSpace, Unavailable, Unreached
from singularity_scheduler.agent import server
from singularity_scheduler.agent.relays import keeper as relay_keeper
from singularity_scheduler.agent.relays.keeper import RelayKeeper
from singularity_scheduler.agent.server import CommandServer
from singularity_scheduler.agent.sessions import lifecycle as lifecycle_module
from singularity_scheduler.agent.sessions.api import SessionApi
from singularity_scheduler.agent.sessions.lifecycle import Lifecycle
from singularity_scheduler.agent.sessions.record import Life, Phase, SessionRecord

pytestmark = pytest.mark.asyncio


def record() -> SessionRecord:
    return SessionRecord("s", "alice", "batch", "basic", "", "capsule", 1, 0, 0)


async def test_one_that_cannot_be_taken_over_stops_no_agent() -> None:
    ended: list[str] = []
    lifecycle: Any = object.__new__(Lifecycle)
    lifecycle._node = SimpleNamespace(sessions={"s": "live"})

    async def fails(_: SessionRecord) -> None:
        raise OverflowError("cannot convert float infinity to integer")

    async def end(live: Any, reason: str, grace_s: float) -> None:
        ended.append(reason)
        raise TypeError("that neither")

    lifecycle._adopt, lifecycle.end = fails, end
    await lifecycle.adopt(record())
    assert ended == [
        "the node agent could not take it over (cannot convert float infinity to integer)"
    ]


@pytest.mark.parametrize(
    ("error", "tries", "ends"),
    [
        (OSError(errno.EMFILE, "too many open files"), 3, False),
        (NoSpace("the disk is full"), 3, False),
        (OSError(errno.EMFILE, "too many open files"), 99, True),
        (FileNotFoundError(errno.ENOENT, "its folder is gone"), 99, True),
    ],
    ids=["files, passes", "disk, passes", "files, stays", "folder"],
)
async def test_an_error_that_passes_ends_no_session_of_the_agent_before(
    error: Exception, tries: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle_module, "ADOPT_AGAIN_S", (0.0, 0.0, 0.0))
    ended: list[str] = []
    let_go: list[str] = []
    tried: list[SessionRecord] = []
    lifecycle: Any = object.__new__(Lifecycle)
    lifecycle._node = SimpleNamespace(sessions={"s": "live"})

    async def fails(record: SessionRecord) -> None:
        tried.append(record)
        if len(tried) < tries:
            raise error

    async def end(live: Any, reason: str, grace_s: float) -> None:
        ended.append(reason)

    async def let(session: str) -> None:
        let_go.append(session)

    lifecycle._adopt, lifecycle.end, lifecycle._let_go = fails, end, let
    one = record()
    one.life = Life.LIVE
    await lifecycle.adopt(one)
    assert bool(ended) is ends
    assert len(let_go) == (0 if isinstance(error, FileNotFoundError) else min(tries - 1, 3))


@pytest.mark.parametrize(
    "told",
    [
        [],
        {},
        {"joined": True},
        {"joined": True, "incarnation": 1, "requests_again": "many"},
        {"joined": True, "incarnation": 1, "requests_again": float("inf")},
    ],
    ids=str,
)
async def test_what_a_relay_says_of_a_rollback_cannot_undo_it(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_keeper, "JOIN_S", 0.1)

    async def standing() -> Any:
        return told

    live: Any = SimpleNamespace(record=record(), relay=SimpleNamespace(standing=standing))
    live.record.life = live.record.life.__class__.LIVE
    loss: dict[str, Any] = {"rolled_back": True, "lost": [], "back": []}
    await RelayKeeper(None).tell_undone(live, loss)  # type: ignore[arg-type]
    assert [word[:34] for word in loss["lost"]] == ["an unknown number of outputs, beca"]


async def test_the_time_in_hello_is_that_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    async def capability() -> dict[str, Any]:
        await asyncio.sleep(0)
        now[0] = 160.0  # somebody else's answer has told a later time meanwhile
        return {}

    monkeypatch.setattr(server, "boot_clock", lambda: now[0])
    commands: Any = object.__new__(CommandServer)
    commands._devices = SimpleNamespace(parks=lambda: {})
    commands._lifecycle = SimpleNamespace(relays=SimpleNamespace(report=list))
    commands._node = SimpleNamespace(
        settings=SimpleNamespace(journal_bytes=0, node="n", spot=False, cluster=""),
        images=SimpleNamespace(capability=capability),
        stores=SimpleNamespace(describe=dict),
        **dict.fromkeys(("instance", "devices", "health", "torch", "service", "version")),
        sessions={},
    )
    assert (await commands.hello(None, {"observer": True}))["sent_at"] == 160.0


@pytest.mark.parametrize("published", [None, {"checkpoint": "k1"}], ids=["here", "stored"])
@pytest.mark.parametrize("life", [Life.LIVE, Life.ENDED])
async def test_an_end_removes_nothing_from_the_store(published: Any, life: Life) -> None:
    """Which checkpoints go after an end, and when, is the scheduler's to say."""
    one = record()
    one.life = life
    live = SimpleNamespace(record=SimpleNamespace(session="s", life=life, published=published))
    ended: list[str] = []
    forgotten: list[str] = []

    async def end(*_: object, **__: object) -> int:
        ended.append("session")
        return 0

    async def end_relay(session: str) -> None:
        ended.append("relay")

    handler: Any = object.__new__(CommandServer)
    handler._node = SimpleNamespace(  # there is no store at hand
        sessions={"s": live}, forget_absent=forgotten.append
    )
    handler._lifecycle = SimpleNamespace(
        end=end, forget=lambda _: None, relays=SimpleNamespace(end=end_relay)
    )
    assert await handler.end(None, {"session": "s", "grace_s": 0.0}) == {"exit_code": 0}
    assert ended == ["session"] + ["relay"] * bool(published)
    assert await handler.end(None, {"session": "gone", "user": "alice"}) == {"exit_code": None}
    assert forgotten == ["s"] * bool(published) + ["gone"]


@pytest.mark.parametrize(
    ("verb", "error", "told"),
    [
        ("park", Unreached("closed"), "'park' was done is not known.*with %singularity status"),
        ("submit", Unreached("closed"), "'submit' was done is not known.*'jupyter singularity ls'"),
        ("why", Unreached("closed"), "'why' was not done"),
        ("park", Unavailable("it was closed before"), "'park' was not done"),
    ],
)
async def test_a_service_that_is_lost_in_the_middle_of_a_command(
    verb: str, error: Unavailable, told: str
) -> None:
    closed = asyncio.Event()

    async def call(*_: object, **__: object) -> None:
        closed.set()
        raise error

    live = SimpleNamespace(record=record())
    service = SimpleNamespace(call=call, closed=closed)
    node: Any = SimpleNamespace(service=service, session=lambda _: live)
    devices: Any = None
    with pytest.raises(Unavailable, match=told):
        await SessionApi(node, devices).command("s", verb, {})


async def test_a_question_about_the_state_goes_out_with_what_is_true_here() -> None:
    asked: list[Any] = []

    async def call(*_: object, verb: str, args: dict[str, Any], **__: object) -> dict[str, Any]:
        asked.append((verb, args))
        return {}

    live: Any = SimpleNamespace(record=record(), lock=asyncio.Lock())
    live.record.move(Phase.ATTACHING)
    live.record.epoch = 4
    service = SimpleNamespace(call=call, closed=asyncio.Event())
    node: Any = SimpleNamespace(service=service, session=lambda _: live)
    devices: Any = None
    api = SessionApi(node, devices)
    await live.lock.acquire()
    question = asyncio.create_task(api.command("s", "status", {}))
    await asyncio.sleep(0)
    live.record.move(Phase.HELD)
    live.lock.release()
    await question
    await api.command("s", "park", {})
    here = {"device_state": "held", "epoch": 4}
    assert asked == [("status", {"here": here}), ("park", {})]
