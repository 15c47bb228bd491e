"""`%singularity` right behind a device call: its answer is not older than what its cell saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from singularity_proxy.errors import Conflict
from singularity_scheduler.client.verbs import CHANGES
from singularity_scheduler.core.values import events as ev
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.service.desk.keys import Keys
from singularity_scheduler.service.desk.sessions import Desk
from singularity_scheduler.service.nodes.reports import NodeReports
from support.scheduler_core import World, reads

pytestmark = pytest.mark.asyncio


class Controller:
    """A world whose node answers when `happens` is called, while somebody waits."""

    def __init__(self, world: World, happens: Callable[[], None]) -> None:
        self.world, self.happens, self.waited = world, happens, 0
        self.desk = Desk(self)  # type: ignore[arg-type]
        self.keys = Keys(None, lambda: world.now)  # type: ignore[arg-type]
        self.refused: list[Exception | None] = []

    @property
    def state(self) -> Any:
        return self.world.state

    async def find(self, session: str) -> Any:
        return self.world[session]

    async def until(self, condition: Callable[[], bool], limit_s: float) -> None:
        self.waited += 1
        self.happens()
        assert condition()

    def on_magic(self, verb: str, view: Any, error: Exception | None) -> None:
        self.refused.append(error)

    def status(self, view: Any) -> Any:
        return {"device_state": view.device_state.value, "reason": reads(view)}

    def why(self, view: Any) -> Any:
        return {"sentence": reads(view)}


@pytest.mark.parametrize("verb", ["status", "why"])
async def test_what_its_node_has_done_is_told_as_done(verb: str) -> None:
    world = World(1)
    world.create("a")
    world.need("a")
    view = world["a"]
    assert view.device_state is DeviceState.ATTACHING
    controller: Any = Controller(world, world.answer)
    reports = NodeReports(controller)

    async def told(**args: Any) -> str:
        answer = await reports.on_command(view.node, "a", verb, args, "user")
        return str(answer)

    held = {"device_state": "held", "epoch": view.epoch}
    attaching = {"device_state": "attaching", "epoch": view.epoch}
    for other in ({}, {"here": {**held, "epoch": view.epoch - 1}}, {"here": attaching}):
        assert "holds" not in await told(**other)
    assert controller.waited == 0, "it is true that they are being attached"
    assert "holds" in await told(here=held)
    assert "holds" in await told(here=held)
    assert controller.waited == 1


async def test_what_a_cell_asks_of_a_session_that_is_being_ended_is_refused_in_words() -> None:
    world = World(1)
    world.holding("a")
    world.do(ev.EndAsked("a", "alice", "", 30.0))
    view = world["a"]
    assert view.final
    assert not view.ended, "its process has its grace"
    controller: Any = Controller(world, lambda: None)
    reports = NodeReports(controller)
    for verb in CHANGES:
        with pytest.raises(Conflict) as raised:
            await reports.on_command(view.node, "a", verb, {}, "user")
        assert type(raised.value) is Conflict, "an agent knows no other one"
        assert raised.value.message == "session alice/a has ended (completed): start it again"
        assert raised.value.fields["reason_code"] == "has_ended"
        assert controller.refused[-1] is raised.value, "the event log has what was said"
