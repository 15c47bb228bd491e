"""Parks of devices that break, and deaths of proxies that are nobody's fault."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from singularity_proxy.errors import Unavailable
from singularity_scheduler.agent.devices import parks
from singularity_scheduler.agent.devices.control import DeviceKeeper
from singularity_scheduler.agent.devices.recovery import MANY_DEATHS, Recovery
from singularity_scheduler.agent.sessions.record import Phase


class HangingProxy:
    """Calls that need the device never end, until it is given up."""

    def __init__(self) -> None:
        self.connected = True
        self.gone = asyncio.Event()

    async def abandon(self) -> None:
        self.connected = False
        self.gone.set()

    async def call(self, method: str, *, timeout: float | None) -> Any:
        if self.connected and method == "stats":  # never waits for the device
            return {"rings": {}}
        if self.connected:
            assert timeout is None, "this is a call that nobody forced"
            await self.gone.wait()
        raise Unavailable("the device proxy is gone")


class Record(SimpleNamespace):
    def move(self, phase: Phase) -> None:
        self.phase = phase

    def check_live(self) -> None: ...

    def check_epoch(self, epoch: int) -> None: ...


def nothing(*_: Any, **__: Any) -> None: ...


async def a_park(keeper: DeviceKeeper, live: Any) -> None:
    assert (await keeper.park(live, 1, "drained"))["bytes"] == 0


async def the_end_of_a_ring(keeper: DeviceKeeper, live: Any) -> None:
    """Or a checkpoint, a late attach, a recovery: whatever calls the proxy under the lock."""
    async with live.lock:
        with pytest.raises(Unavailable):
            await live.proxies["cuda:0"].call("close_ring", timeout=None)


@pytest.mark.asyncio
@pytest.mark.parametrize("other", [a_park, the_end_of_a_ring])
async def test_a_forced_park_ends_the_proxy_for_which_something_else_waits(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[DeviceKeeper, Any], Coroutine[Any, Any, None]]
) -> None:
    monkeypatch.setattr(parks, "FORCED_PARK_S", 0.1)
    node: Any = SimpleNamespace(
        try_save=nothing,
        try_save_leases=nothing,
        settings=SimpleNamespace(state_dir="", barrier_s=1.0),
        leases=SimpleNamespace(release=nothing),
    )
    keeper = DeviceKeeper(node)
    proxy = HangingProxy()

    async def discard(live: Any, device: str, _: Any) -> None:
        del live.proxies[device]

    binder: Any = SimpleNamespace(rings_of=lambda *_: [], discard=discard, detach_headers=nothing)
    monkeypatch.setattr(keeper._parker, "_binder", binder)
    live: Any = SimpleNamespace(
        record=Record(session="s", phase=Phase.HELD, epoch=1, reason="", devices=["cuda:0"]),
        lock=asyncio.Lock(),
        proxies={"cuda:0": proxy},
        off_device={},
        barrier=None,
        waiting=False,
    )
    first = asyncio.ensure_future(other(keeper, live))
    await asyncio.sleep(0)
    done = await asyncio.wait_for(keeper.park(live, 1, "broken", force=True), 10)
    await first
    assert done["bytes"] == 0
    assert not proxy.connected
    assert live.record.phase is Phase.PARKED


@pytest.mark.asyncio
@pytest.mark.parametrize("pardoned", [True, False])
async def test_proxies_that_somebody_stopped_are_replaced_again_and_again(pardoned: bool) -> None:
    failed: list[str] = []
    replaced: list[str] = []

    async def discard(live: Any, device: str, _: Any) -> None:
        del live.proxies[device]

    async def attach_device(live: Any, device: str, _: Any) -> Any:
        replaced.append(device)
        return {"replayed_records": 0}

    async def park(_: Any) -> None: ...

    binder: Any = SimpleNamespace(
        rings_of=lambda *_: [],
        discard=discard,
        attach_device=attach_device,
        fail_rings=lambda *a: failed.append(a[-1]),
    )
    node: Any = SimpleNamespace(try_save=nothing, emit=nothing)
    live: Any = SimpleNamespace(
        record=SimpleNamespace(session="s", phase=Phase.HELD, alive=True),
        lock=asyncio.Lock(),
        proxies={},
        rings=SimpleNamespace(rings={}),
        deaths=deque(maxlen=8),
    )
    recovery = Recovery(node, binder, park)
    for _ in range(MANY_DEATHS + 1):
        dead: Any = SimpleNamespace(pardoned=pardoned, given_up="")
        live.proxies["cuda:0"] = dead
        await recovery.recover(live, "cuda:0", dead)
    assert len(replaced) == MANY_DEATHS + pardoned
    assert bool(failed) is not pardoned
