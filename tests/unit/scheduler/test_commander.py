"""Commands to agents that do not know the session, and commands that nobody wants any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from singularity_proxy.errors import NotFound, Unreached
from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.requested import Kind, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.service.nodes.commander import Commander

LIVE = SessionView(
    id="a",
    user="ada",
    kind=Kind.INTERACTIVE,
    name="a",
    tier=Tier.STANDARD,
    virtual_devices=1,
    node="n1",
    created_at=1.0,
    updated_at=1.0,
    process_state=ProcessState.LIVE,
    epoch=3,
    seq=5,
)
HEAD = ("a", "n1", because("said", text="because"), "test", 3, 5)


class Agents:
    """A fleet whose agents answer as a test says; `called`: the methods, in order."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.answers: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, node: str, method: str, timeout: float | None = 60.0, **_: Any) -> Any:
        self.called.append(method)
        if method in self.answers:
            return await self.answers[method]
        raise NotFound("this node has no session 'a'", session="a")

    def hold(self, method: str) -> asyncio.Future[dict[str, Any]]:
        """Answers of `method` wait for what is returned."""
        self.answers[method] = asyncio.get_running_loop().create_future()
        return self.answers[method]


class Desk:
    """A commander with one session, and what it reports."""

    def __init__(self, view: SessionView) -> None:
        self.view: SessionView | None = view
        self.agents = Agents()
        self.told: list[Any] = []
        agents: Any = self.agents
        self.commander = Commander(
            agents, self.report, lambda _: self.view, ttl_s=30.0, batch_python="python"
        )
        self.commander.unknown = self.commander.transfers.unknown = self.told.append
        self.commander.connection("n1", True)

    async def report(self, event: ev.Event) -> None:
        self.told.append(type(event).__name__)


def test_a_node_that_does_not_know_a_session_is_asked_what_it_has() -> None:
    cases = {
        ev.Attach(*HEAD, devices=("cpu:0",)): {"device_state": DeviceState.ATTACHING},
        ev.Park(*HEAD): {"device_state": DeviceState.PARKING},
        ev.Suspend(*HEAD): {"process_state": ProcessState.SUSPENDING},
    }

    async def told(action: ev.Action, states: dict[str, Any]) -> list[str]:
        desk = Desk(replace(LIVE, **states))
        await desk.commander.carry_out(action)
        return desk.told

    for action, states in cases.items():
        failed = f"{type(action).__name__}Failed"
        assert asyncio.run(told(action, states)) == [failed, "n1"]


def test_a_session_that_was_ended_while_its_old_processes_were_is_not_brought_back() -> None:
    async def check() -> None:
        desk = Desk(replace(LIVE, process_state=ProcessState.RESUMING))
        fenced = desk.agents.hold("session.end")
        fence = desk.commander.carry_out(ev.Fence(*HEAD))
        back = desk.commander.carry_out(ev.Resume(*HEAD, checkpoint="c", source="a"))
        await asyncio.sleep(0)
        desk.view = replace(LIVE, process_state=ProcessState.CANCELLED)
        fenced.set_result({})
        await asyncio.gather(fence, back)
        assert "session.resume" not in desk.agents.called

    asyncio.run(check())


def test_the_end_of_a_session_comes_after_its_return() -> None:
    async def check() -> None:
        desk = Desk(replace(LIVE, process_state=ProcessState.RESUMING))
        came = desk.agents.hold("session.resume")
        back = desk.commander.carry_out(ev.Resume(*HEAD, checkpoint="c", source="a"))
        while not desk.agents.called:
            await asyncio.sleep(0)
        desk.view = replace(LIVE, process_state=ProcessState.CANCELLED)
        end = desk.commander.carry_out(ev.End(*HEAD))
        await asyncio.sleep(0.01)
        assert desk.agents.called == ["session.resume"]
        came.set_exception(NotFound("no such checkpoint"))
        await asyncio.gather(back, end)
        assert desk.agents.called == ["session.resume", "session.end"]

    asyncio.run(check())


def test_a_command_whose_answer_was_lost_is_sent_again_or_nobody_knows() -> None:
    """The session was ended meanwhile: whether it was checkpointed before is not known."""

    async def check(wanted: bool) -> list[str]:
        desk = Desk(LIVE)
        stored = desk.agents.hold("device.put_back")
        asked = desk.commander.carry_out(ev.PutBack(*HEAD, checkpoint="c"))
        while not desk.agents.called:
            await asyncio.sleep(0)
        desk.commander.connection("n1", False)
        del desk.agents.answers["device.put_back"]
        stored.set_exception(Unreached("the other process closed the connection"))
        await asyncio.sleep(0)
        if not wanted:
            desk.view = None
        desk.commander.connection("n1", True)
        with pytest.raises(NotFound if wanted else Unreached) as told:
            await asked
        if not wanted:
            assert told.value.message == (
                "the connection to node n1 broke before it answered, so whether it did what was "
                "asked is not known"
            )
        return desk.agents.called

    assert asyncio.run(check(True)) == ["device.put_back"] * 2
    assert asyncio.run(check(False)) == ["device.put_back"]
