"""Decisions in groups: durable in their order before anything of them is told, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from singularity_proxy.errors import NoSpace, SingularityError, Unavailable
from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind, Tier
from singularity_scheduler.service import committer as module
from singularity_scheduler.service.committer import Committer, DecideAgain, Waiting
from singularity_scheduler.service.leadership.election import Deposed
from singularity_scheduler.service.ledger.database import InDoubt, Refused
from singularity_scheduler.service.ledger.ledger import Write


class PaperLedger:
    """Writes what it is given, after `gate`; `fails` are the errors of the next tries."""

    place = "paper"

    def __init__(self) -> None:
        self.written: list[list[str]] = []
        self.fails: list[SingularityError | None] = []
        self.poison = ""
        self.gate, self.begun = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.became: list[bool | SingularityError] = []

    async def write_all(self, writes: Sequence[Write]) -> None:
        self.begun.set()
        await self.gate.wait()
        names = [write.decision.sessions[0].id for write in writes]
        if self.fails and (error := self.fails.pop(0)):
            raise error
        if self.poison in names:
            raise Refused("it does not fit")
        self.written.append(names)

    async def happened(self, writes: Sequence[Write]) -> bool:
        answer = self.became.pop(0)
        if isinstance(answer, SingularityError):
            raise answer
        return answer


class World:
    def __init__(self) -> None:
        self.ledger = PaperLedger()
        self.durable: list[str] = []
        self.failed = 0
        ledger: Any = self.ledger
        self.committer = Committer(ledger, self._durable, self._failed, self._flushed)

    def _durable(self, waiting: Waiting) -> None:
        name = waiting.decision.sessions[0].id
        assert any(name in names for names in self.ledger.written) or self.ledger.became
        self.durable.append(name)

    def _failed(self) -> None:
        self.failed += 1

    async def _flushed(self) -> None:
        pass

    def put(self, name: str) -> Waiting:
        view = SessionView(name, "ada", Kind.BATCH, "", Tier.BASIC, 1, "local", 1.0, 1.0)
        return self.committer.put(Write(Decision(sessions=(view,))))

    async def outcome(self, waiting: Waiting) -> str:
        try:
            await asyncio.wait_for(asyncio.shield(waiting.done), 5)
        except DecideAgain:
            return "again"
        except SingularityError as error:
            return type(error).__name__
        return "done"


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    task = asyncio.create_task(made.committer.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.asyncio
async def test_those_that_came_meanwhile_go_together_and_nothing_is_told_before() -> None:
    async with world() as w:
        w.ledger.gate.clear()
        first = w.put("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [w.put(name) for name in "bcd"]
        await asyncio.sleep(0.01)
        assert (w.durable, first.done.done()) == ([], False)
        w.ledger.gate.set()
        assert [await w.outcome(x) for x in (first, *rest)] == ["done"] * 4
        assert w.ledger.written == [["a"], ["b", "c", "d"]]
        assert w.durable == list("abcd")
        await w.committer.flush()


@pytest.mark.asyncio
async def test_a_full_disk_fails_all_that_were_made_on_top_and_the_next_ones_work() -> None:
    async with world() as w:
        w.ledger.gate.clear()
        w.ledger.fails = [NoSpace("full")]
        waiting = [w.put("a")]
        await w.ledger.begun.wait()
        waiting += [w.put("b")]
        w.ledger.gate.set()
        assert [await w.outcome(x) for x in waiting] == ["NoSpace", "NoSpace"]
        assert (w.failed, w.durable) == (1, [])
        assert await w.outcome(w.put("c")) == "done"


@pytest.mark.asyncio
async def test_one_that_the_database_does_not_take_fails_alone() -> None:
    async with world() as w:
        w.ledger.poison = "b"
        waiting = [w.put(name) for name in "abcd"]
        assert [await w.outcome(x) for x in waiting] == ["done", "Refused", "again", "again"]
        assert (w.durable, w.failed) == (["a"], 1)
        assert await w.outcome(w.put("b")) == "Refused"
        assert await w.outcome(w.put("c")) == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize(("became", "outcome"), [(True, "done"), (False, "Unavailable")])
async def test_a_doubt_is_cleared_before_anything_is_told(
    became: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    async with world() as w:
        w.ledger.fails = [InDoubt("broke")]
        w.ledger.became = [Unavailable("away"), NoSpace("no answer"), became, True]
        waiting = w.put("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert w.committer.doubt is not None
        assert await w.outcome(waiting) == outcome
        assert w.committer.doubt is None
        assert w.durable == (["a"] if became else [])


@pytest.mark.asyncio
async def test_a_doubt_ends_when_another_service_leads() -> None:
    async with world() as w:
        w.ledger.fails = [InDoubt("broke")]
        w.ledger.became = [Deposed("the other one leads")]
        assert await w.outcome(w.put("a")) == "Deposed"
        assert (w.durable, w.committer.doubt) == ([], None)


@pytest.mark.asyncio
async def test_what_waits_when_the_service_stops_fails() -> None:
    async with world() as w:
        w.ledger.gate.clear()
        waiting = [w.put("a")]
        await w.ledger.begun.wait()
        waiting += [w.put("b")]
    assert [await w.outcome(x) for x in waiting] == ["Unavailable", "Unavailable"]
    assert w.durable == []
