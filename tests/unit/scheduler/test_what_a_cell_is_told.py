"""`%singularity` right behind a device call: its answer is not older than what its cell saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from singularity_scheduler.core.states import DeviceState
from singularity_scheduler.service.node_reports import NodeReports
from support.scheduler_core import World, reads

pytestmark = pytest.mark.asyncio


class Controller:
    """A world whose node answers when `happens` is called, while somebody waits."""

    def __init__(self, world: World, happens: Callable[[], None]) -> None:
        self.world, self.happens, self.waited = world, happens, 0

    @property
    def state(self) -> Any:
        return self.world.state

    async def find(self, session: str) -> Any:
        return self.world[session]

    async def until(self, condition: Callable[[], bool], limit_s: float) -> None:
        self.waited += 1
        self.happens()
        assert condition()

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
