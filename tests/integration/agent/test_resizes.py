"""Virtual devices that change the physical ones behind them, with the tests' stand-in for proxies.

Real device proxies are in tests/faults/test_resize.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from singularity_proxy.errors import (
    BadRequest,
    BarrierFailed,
    Conflict,
    LayoutRefused,
    NotFound,
    SingularityError,
    StaleEpoch,
    Unsupported,
)
from singularity_proxy.wire.ring import RingFile
from support.agent import AgentBox, until

FOUR = ("open:0", "open:1", "open:2", "open:3", "need:0", "need:1", "need:2", "need:3", "sleep")
SPREAD = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
HALVED = ["cpu:0", "cpu:0", "cpu:2", "cpu:2"]
ONE = ["cpu:0"] * 4


async def held(box: AgentBox, *devices: str) -> str:
    """A session with four virtual devices that holds `devices`."""
    session = await box.worker(*FOUR, virtual_devices=4)
    await box.event("device.need", session)
    await box.attach(session, 1, *devices)
    await box.logged(session, "attached r4")
    return session


async def in_the_middle(box: AgentBox) -> None:
    """Wait until a proxy that was made slow gives its rings up."""
    await until(lambda: any(box.work.glob("parking-*")), box.agent_log)


def sockets(box: AgentBox) -> int:
    return len(list((box.runtime / "p").glob("*.sock")))


def generations(box: AgentBox, session: str) -> list[int]:
    """How often each ring was attached."""
    found = []
    for path in sorted((box.shm / session).glob("*.ring")):
        file = RingFile.open(path)
        found.append(file.read().generation)
        file.close()
    return found


@pytest.mark.asyncio
async def test_only_what_changes_its_device_is_moved() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        done = await box.resize(session, 2, *HALVED)
        assert done["moved"] == [1, 3]
        report = await box.session(session)
        assert (report["devices"], report["epoch"]) == (HALVED, 2)
        assert generations(box, session) == [1, 2, 1, 2]
        assert sockets(box) == 2
        assert (await box.resize(session, 3, *ONE))["moved"] == [2, 3]
        assert sockets(box) == 1
        assert (await box.resize(session, 4, *SPREAD))["moved"] == [1, 2, 3]
        assert generations(box, session) == [1, 3, 3, 4]
        assert sockets(box) == 4
        assert (await box.resize(session, 5, *SPREAD))["moved"] == []
        assert (await box.session(session))["epoch"] == 5
        assert (await box.park(session, 5))["bytes"] == 32
        assert sockets(box) == 0


@pytest.mark.asyncio
async def test_bad_resizes_change_nothing() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *ONE)
        for devices, kind, why in (
            (["cpu:0"], BadRequest, "4 virtual devices, but 1"),
            (["cpu:0", "cpu:0", "cpu:0", "cpu:9"], NotFound, "no device 'cpu:9'"),
        ):
            with pytest.raises(kind, match=why):
                await box.resize(session, 2, *devices)
        with pytest.raises(StaleEpoch):
            await box.resize(session, 0, *SPREAD)
        assert (await box.session(session))["devices"] == ONE
        await box.park(session, 1)
        with pytest.raises(Conflict, match="holds no devices now"):
            await box.resize(session, 2, *SPREAD)
        assert (await box.session(session))["devices"] == []
        assert sockets(box) == 0


@pytest.mark.asyncio
async def test_a_repeated_command_is_answered_and_not_done_again() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        first = await box.resize(session, 2, *HALVED, seq=70)
        await box.resize(session, 3, *ONE, seq=71)
        assert await box.resize(session, 2, *HALVED, seq=70) == first
        assert (await box.session(session))["devices"] == ONE


@pytest.mark.asyncio
async def test_a_failed_resize_leaves_everything_as_it_was() -> None:
    """The proxy of cpu:3 cannot write its state; those of cpu:1 and cpu:2 did by then, or not."""
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        last = max(box.proxies_of(session))
        (box.work / f"nopark-{last}").touch()
        with pytest.raises(SingularityError, match="the device is gone"):
            await box.resize(session, 2, *ONE)
        (box.work / f"nopark-{last}").unlink()
        report = await box.session(session)
        assert (report["devices"], report["epoch"]) == (SPREAD, 2)
        assert sockets(box) == 4
        await box.resize(session, 3, *ONE)
        assert sockets(box) == 1


@pytest.mark.asyncio
async def test_what_can_be_neither_done_nor_undone_is_parked_and_told() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *ONE)
        (box.shm / session / "r2.die").touch()  # no proxy survives attaching this ring
        box.forget_events()
        with pytest.raises(SingularityError):
            await box.resize(session, 2, *SPREAD)
        await box.event("lease.lapsed", session)
        report = await box.session(session)
        assert (report["devices"], report["saved"]) == ([], True)
        assert sockets(box) == 0


@pytest.mark.asyncio
async def test_a_proxy_that_dies_meanwhile_costs_nothing() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        for pid in box.proxies_of(session):
            (box.work / f"slow-{pid}").touch()
        resize = asyncio.ensure_future(box.resize(session, 2, *HALVED))
        await in_the_middle(box)
        for pid in box.proxies_of(session):
            os.kill(pid, signal.SIGKILL)
        assert (await resize)["moved"] == [1, 3]
        assert (await box.session(session))["devices"] == HALVED
        assert sockets(box) == 2


@pytest.mark.asyncio
async def test_an_agent_killed_in_the_middle_ends_it_and_does_it_when_asked_again() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        for pid in box.proxies_of(session):
            (box.work / f"slow-{pid}").touch()
        resize = asyncio.ensure_future(box.resize(session, 2, *ONE, seq=70))
        await in_the_middle(box)
        await box.kill_agent()
        async with asyncio.timeout(60):
            with pytest.raises(SingularityError):
                await resize
            report = await box.session(session)
        assert report["devices"] in (SPREAD, ONE)
        await box.resize(session, 2, *ONE, seq=70)
        assert (await box.session(session))["devices"] == ONE
        await until(lambda: sockets(box) == 1)


@pytest.mark.asyncio
async def test_a_worker_that_comes_meanwhile_is_served_where_it_belongs() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        go = box.work / "go"
        words = [*FOUR[:-1], f"next:{go}", "open:3", "need:3", "sleep"]
        session = await box.worker(*words, virtual_devices=4)
        await box.event("device.need", session)
        await box.attach(session, 1, *SPREAD)
        await box.logged(session, "attached r4")
        for pid in box.proxies_of(session):
            (box.work / f"slow-{pid}").touch()
        resize = asyncio.ensure_future(box.resize(session, 2, *ONE))
        await in_the_middle(box)
        go.touch()
        await box.logged(session, "attached r5")
        await resize
        assert sockets(box) == 1


# -- ranks -----------------------------------------------------------------------------------


def grouped(box: AgentBox, **groups: list[int]) -> None:
    """The session's processes form these process groups, of ranks on these virtual devices."""
    (box.work / "groups.json").write_text(json.dumps(groups))


def standing(box: AgentBox) -> list[str]:
    return sorted(path.name for path in box.work.glob("stands-*"))


@pytest.mark.asyncio
async def test_ranks_stand_while_they_are_moved_and_go_on_afterwards() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        grouped(box, world=[0, 1, 2, 3])
        for pid in box.proxies_of(session):
            (box.work / f"slow-{pid}").touch()
        resize = asyncio.ensure_future(box.resize(session, 2, *HALVED))
        await until(lambda: len(standing(box)) == 4)
        done = await resize
        assert done["devices"] == HALVED
        gone = {f"stands-{pid}" for pid in box.proxies_of(session)}
        assert not gone & set(standing(box))
        assert (await box.park(session, 2))["bytes"] == 32


@pytest.mark.asyncio
async def test_ranks_that_do_not_come_together_go_on_as_they_were() -> None:
    limit = "--NodeAgent.barrier_s=0.5"
    async with AgentBox(limit, double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        grouped(box, world=[0, 1, 2, 3])
        (box.work / "apart").touch()
        for call in (
            box.resize(session, 2, *HALVED),
            box.park(session, 2),
            box.call("device.checkpoint", session=session, name="here", seq=900),
        ):
            with pytest.raises(BarrierFailed, match="did not come to a common place within 0"):
                await call
        assert (await box.session(session))["devices"] == SPREAD
        assert standing(box) == []
        (box.work / "apart").unlink()
        assert (await box.resize(session, 3, *HALVED))["devices"] == HALVED


@pytest.mark.asyncio
async def test_only_replicas_come_to_share_a_device() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        grouped(box, tp=[0, 1], other_tp=[2, 3], dp=[0, 2], other_dp=[1, 3])
        with pytest.raises(LayoutRefused, match="hold 2 different shards"):
            await box.resize(session, 2, *ONE)
        assert (await box.session(session))["devices"] == SPREAD
        done = await box.resize(session, 3, "cpu:0", "cpu:0", "cpu:1", "cpu:1")
        assert done["devices"] == ["cpu:0", "cpu:1", "cpu:0", "cpu:1"]
        await box.park(session, 3)
        with pytest.raises(LayoutRefused, match="hold 2 different shards"):
            await box.attach(session, 4, *ONE)
        leases = await box.call("renew", leases=[{"session": session, "epoch": 4}], ttl_s=60.0)
        assert leases["held"] == []  # no device is taken by what was refused
        back = await box.attach(session, 5, "cpu:2", "cpu:2", "cpu:3", "cpu:3")
        assert back["devices"][0] == back["devices"][2] != back["devices"][1] == back["devices"][3]
        assert (await box.session(session))["devices"] == back["devices"]


@pytest.mark.asyncio
async def test_proxies_that_know_no_barrier_are_said_so_of() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        (box.work / "old").touch()
        session = await held(box, *SPREAD)
        grouped(box, world=[0, 1, 2, 3])
        with pytest.raises(Unsupported, match="cannot stop together"):
            await box.resize(session, 2, *HALVED)
        assert (await box.session(session))["devices"] == SPREAD


@pytest.mark.asyncio
async def test_an_agent_killed_while_ranks_stand_lets_them_go() -> None:
    async with AgentBox(double=True, cpu_devices=4) as box:
        session = await held(box, *SPREAD)
        grouped(box, world=[0, 1, 2, 3])
        for pid in box.proxies_of(session):
            (box.work / f"slow-{pid}").touch()
        resize = asyncio.ensure_future(box.resize(session, 2, *ONE))
        await until(lambda: len(standing(box)) == 4)
        await box.kill_agent()
        await asyncio.gather(resize, return_exceptions=True)
        await box.session(session)
        alive = {f"stands-{pid}" for pid in box.proxies_of(session)}
        assert not alive & set(standing(box))
