"""A relay that ends while its session is on its way back to its node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import Unavailable
from singularity_scheduler.agent.relays import keeper as relay_keeper
from singularity_scheduler.agent.relays.keeper import Kept, RelayKeeper
from singularity_scheduler.agent.sessions.record import Life, SessionRecord

pytestmark = pytest.mark.asyncio


class PaperRelay:
    """A relay without a process; its socket answers while any relay of the session lives."""

    def __init__(self, keeper: RelayKeeper, name: str) -> None:
        self.keeper, self.identity = keeper, name
        self.capsule = SimpleNamespace(watch=SimpleNamespace(alive=True))
        self.answered = asyncio.Event()
        self.answers = True

    def end_by_itself(self, answers: bool = False) -> None:
        self.capsule.watch.alive, self.answers = False, answers
        self.keeper._exited("s")

    async def status(self) -> dict[str, Any]:
        self.answered.set()
        if not self.answers:
            raise Unavailable("nobody listens")
        return {"tunnel": {"incarnation": 1}}

    async def tunnel(self) -> dict[str, Any]:
        return {"address": "tcp://127.0.0.1:1", "server": "key"}

    async def end(self, grace_s: float) -> None:
        self.capsule.watch.alive = False


class Desk:
    """A keeper with one kept relay, and the session that is on its way back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tasks: list[asyncio.Task[Any]] = []
        self.live: Any = SimpleNamespace(relay=None, record=record())
        ledger = SimpleNamespace(drop=lambda *_: None, put=lambda *_: None)

        def spawn(coroutine: Any, name: str) -> asyncio.Task[Any]:
            tasks.append(asyncio.ensure_future(coroutine))
            return tasks[-1]

        self.tasks = tasks
        node: Any = SimpleNamespace(
            settings=None, sessions={"s": self.live}, stopping=False, spawn=spawn, ledger=ledger
        )
        self.keeper = RelayKeeper(node)
        self.first = PaperRelay(self.keeper, "first")
        self.kept = Kept(record(), self.first)  # type: ignore[arg-type]
        self.keeper.kept["s"] = self.kept
        self.may_start = asyncio.Event()
        self.started: list[PaperRelay] = []

        async def run(holder: Any, *, absent: bool = False) -> None:
            await self.may_start.wait()
            self.started.append(PaperRelay(self.keeper, "next"))
            holder.relay = self.started[-1]

        monkeypatch.setattr(self.keeper, "run", run)
        monkeypatch.setattr(relay_keeper, "has_client_file", lambda *_: True)
        monkeypatch.setattr(relay_keeper, "write_tunnel", lambda *_: None)

    def connect(self) -> asyncio.Task[list[str]]:
        request: Any = SimpleNamespace(connection=None, undo=False, session="s", source="s")
        return asyncio.ensure_future(self.keeper.connect(self.live, request))

    async def settle(self) -> None:
        self.may_start.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10)


def record() -> SessionRecord:
    return SessionRecord("s", "alice", "interactive", "basic", "", "capsule", 1, 0, 0)


async def test_it_is_replaced_once_the_session_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    await desk.connect()
    desk.first.end_by_itself()
    assert desk.tasks == []  # the session is not here yet
    desk.live.record.life = Life.LIVE
    desk.keeper.taken(desk.live)
    await desk.settle()
    assert [desk.live.relay] == desk.started


async def test_it_is_replaced_when_the_session_could_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    await desk.connect()
    desk.first.end_by_itself()
    desk.keeper.give_back(desk.live)
    await desk.keeper.stop_replacing("s")  # what is here of the session is removed
    await desk.settle()
    assert [desk.kept.relay] == desk.started


async def test_it_is_replaced_when_it_ended_while_the_session_was_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    desk.keeper.kept.clear()
    desk.live.relay, desk.live.record.life = desk.first, Life.ENDING
    desk.first.end_by_itself()
    assert desk.tasks == []
    desk.keeper.keep(desk.live)
    await desk.keeper.stop_replacing("s")
    await desk.settle()
    assert [desk.keeper.kept["s"].relay] == desk.started


async def test_the_session_waits_for_the_next_one_though_its_socket_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    desk.first.end_by_itself(answers=True)  # the next one listens, and is not ready
    connecting = desk.connect()
    await asyncio.wait_for(desk.first.answered.wait(), 10)
    await asyncio.sleep(0)
    assert not connecting.done()
    await desk.settle()
    await asyncio.wait_for(connecting, 20)
    assert [desk.live.relay] == desk.started


async def test_nothing_is_started_for_one_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    await desk.connect()
    desk.live.record.life = Life.LIVE
    desk.keeper.taken(desk.live)
    assert desk.tasks == []
    assert desk.live.relay is desk.first
