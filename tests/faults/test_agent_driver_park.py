"""Parks by the driver under the real agent with real device proxies: whatever the driver, a kill or
a restart does, training prints the losses of an undisturbed run.

The driver is the test double: it walks through the states and fails when told to, and moves no
memory. What that does not show is said in docs/how-to/gpu.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule.process import processes_with
from support.agent import AgentBox, alive, until
from support.agent_trains import go, losses, native_losses, reach, start_training
from support.driver_double import Double, build


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    """The losses of an undisturbed run, by step."""
    return native_losses()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("double"))


@pytest.fixture
def double(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> Double:
    monkeypatch.setenv("DRIVER_LIBRARY", library)
    monkeypatch.setenv("DRIVER_DOUBLE", str(tmp_path))
    return Double(tmp_path)


def agent(way: str) -> AgentBox:
    arguments = [f"--NodeAgent.park_by={way}"]
    return AgentBox(*arguments, script="agent_with_driver.py", warm=1)


async def parks(box: AgentBox) -> dict[str, Any]:
    """What `hello` says of parks by the driver, once the driver was asked."""
    while True:
        [hello] = await box.fleet.hello()
        found: dict[str, Any] = hello["capabilities"]["park_by_driver"]
        if found["available"]:
            return found
        await asyncio.sleep(0.05)


async def training(box: AgentBox, *stops: int) -> str:
    """A session that trains under its first lease and waits at the first of its stops."""
    await parks(box)
    session = await start_training(box, *stops)
    await box.attach(session, 1)
    await reach(box, session, stops[0])
    return session


@pytest.mark.asyncio
async def test_whatever_the_driver_does_nothing_is_lost(
    double: Double, reference: dict[int, str]
) -> None:
    async with agent("driver") as box:
        session = await training(box, 3, 6, 9, 12)

        [first] = box.proxies_of(session)
        done = await box.park(session, 1)
        assert done["bytes"] > 100_000
        assert done["stays"] is True
        assert double.calls() == ["lock", "checkpoint"]
        assert box.proxies_of(session) == [first]  # its process stays, its device is free
        assert (await box.session(session))["devices"] == []
        found = await parks(box)
        assert (found["proxies"], found["host_bytes"]) == (1, done["bytes"])
        go(box, 3)
        await asyncio.sleep(0.3)
        assert 3 not in losses(box.log(session))  # nothing is executed meanwhile
        await box.attach(session, 2)
        assert double.calls()[2:] == ["restore", "unlock"]
        await reach(box, session, 6)
        assert box.proxies_of(session) == [first]
        assert (await parks(box))["proxies"] == 0

        double.plan("checkpoint error")  # it runs on as before: a copy
        assert (await box.park(session, 2))["stays"] is False
        assert not alive(first)
        await box.attach(session, 3)
        go(box, 6)
        await reach(box, session, 9)

        [second] = box.proxies_of(session)
        double.plan("checkpoint failed")  # it is in no usable state: snapshot and journal
        assert (await box.park(session, 3))["stays"] is False
        assert not alive(second)
        await box.attach(session, 4)
        go(box, 9)
        await reach(box, session, 12)

        [third] = box.proxies_of(session)
        assert (await box.park(session, 4))["stays"] is True
        double.plan("restore failed")
        await box.attach(session, 5)
        assert not alive(third)
        go(box, 12)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_a_proxy_that_is_off_its_device_may_end_move_or_change_agents(
    double: Double, reference: dict[int, str]
) -> None:
    async with agent("driver") as box:
        session = await training(box, 3, 6, 9, 12)

        await box.park(session, 1)
        [first] = box.proxies_of(session)
        os.kill(first, signal.SIGKILL)
        await until(lambda: first not in box.proxies())
        await box.attach(session, 2)
        go(box, 3)
        await reach(box, session, 6)

        await box.park(session, 2)
        [second] = box.proxies_of(session)
        await box.kill_agent()
        assert (await parks(box))["proxies"] == 1
        await box.attach(session, 3)
        assert box.proxies_of(session) == [second]
        go(box, 6)
        await reach(box, session, 9)

        await box.park(session, 3)
        await box.attach(session, 4, "cpu:1")  # its process can only go back to cpu:0
        [third] = box.proxies_of(session)
        assert not alive(second)
        go(box, 9)
        await reach(box, session, 12)

        answer = await box.call(
            "device.park", session=session, epoch=4, seq=99, reason="", moving=True
        )
        assert answer["stays"] is False  # it is known to go elsewhere: a copy
        assert not alive(third)
        await box.attach(session, 5, "cpu:0")
        go(box, 12)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference
        await box.park(session, 5)
        [last] = box.proxies_of(session)
        await box.end(session)
        assert not alive(last)


async def killed_amid(
    box: AgentBox, double: Double, library: str, command: Coroutine[Any, Any, Any]
) -> int:
    """Kill the agent while the driver hangs in what `command` asks; the helper that it leaves."""
    hanging = asyncio.ensure_future(command)
    await until(lambda: (double.folder / "plan").read_text() == "")
    [left] = helpers(library)
    await box.kill_agent()
    await asyncio.gather(hanging, return_exceptions=True)
    return left


@pytest.mark.asyncio
async def test_an_agent_is_killed_while_the_driver_hangs(
    double: Double, library: str, reference: dict[int, str]
) -> None:
    async with agent("driver") as box:
        session = await training(box, 5)
        double.plan("checkpoint hang")
        left = await killed_amid(box, double, library, box.park(session, 1))
        # The helper of the agent before it, which still waits for the driver, was ended first.
        assert not alive(left)
        assert (await box.session(session))["devices"] == []
        await box.attach(session, 2)
        go(box, 5)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_an_agent_is_killed_while_the_driver_brings_a_proxy_back(
    double: Double, library: str, reference: dict[int, str]
) -> None:
    async with agent("driver") as box:
        session = await training(box, 5)
        [first] = box.proxies_of(session)
        assert (await box.park(session, 1))["stays"] is True
        double.plan("restore hang")
        left = await killed_amid(box, double, library, box.attach(session, 2))
        assert not alive(left)
        # Its restore might still end, on a device that is another session's by then.
        assert not alive(first)
        assert (await box.session(session))["devices"] == []
        assert (await parks(box))["proxies"] == 0
        await box.attach(session, 3)
        go(box, 5)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_a_proxy_that_is_off_a_device_it_was_going_to_is_ended(
    double: Double, library: str, reference: dict[int, str]
) -> None:
    async with agent("driver") as box:
        session = await training(box, 5)
        [first] = box.proxies_of(session)
        await box.park(session, 1)
        double.plan("restore hang")
        attach = asyncio.ensure_future(box.attach(session, 2))
        await until(lambda: (double.folder / "plan").read_text() == "")
        [left] = helpers(library)
        (box.root / "state" / "driver-helpers" / str(left)).unlink()  # nothing tells of it
        await box.kill_agent()
        await asyncio.gather(attach, return_exceptions=True)
        assert alive(left)
        os.kill(left, signal.SIGKILL)
        assert not alive(first)
        await box.attach(session, 3)
        go(box, 5)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


def helpers(library: str) -> list[int]:
    """The driver helpers that use this module's library."""
    return [found.pid for found in processes_with(library.encode(), in_environment=False)]


CHILDREN = """
import os, subprocess, sys, time, torch
mine = torch.arange(10.0, device="cuda")
def child(name):
    code = "import sys, time, torch; x = torch.ones(4, device='cuda')\\n"
    code += "while True: print(sys.argv[1], float(x.sum()), flush=True); time.sleep(0.2)"
    return subprocess.Popen([sys.executable, "-c", code, name])
first = child("first")
print("mine", float(mine.sum()), flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
first.kill(); first.wait()
second = child("second")
print("swapped", flush=True)
print("still", float(mine.sum()), flush=True)
time.sleep(14400)
"""


@pytest.mark.asyncio
async def test_processes_come_and_go_while_the_proxy_is_off_its_device(double: Double) -> None:
    async with agent("driver") as box:
        await parks(box)
        swap = box.work / "swap"
        session = await box.start([sys.executable, "-c", CHILDREN, str(swap)])
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "mine 45.0")
        await box.logged(session, "first 4.0")
        [proxy] = box.proxies_of(session)
        await box.park(session, 1)
        swap.touch()
        await box.logged(session, "swapped")
        await until(lambda: rings(box, session) == ["r1.ring", "r3.ring"])
        await box.attach(session, 2)
        await box.logged(session, "still 45.0")
        await box.logged(session, "second 4.0")
        assert box.proxies_of(session) == [proxy]


def rings(box: AgentBox, session: str) -> list[str]:
    return sorted(path.name for path in (box.shm / session).glob("*.ring"))


@pytest.mark.asyncio
async def test_both_ways_are_measured_and_remembered(double: Double) -> None:
    async with agent("auto") as box:
        await parks(box)
        code = "import time, torch; print(torch.ones(9, device='cuda').sum().item(), flush=True)"
        session = await box.python(code + "; time.sleep(14400)")
        await box.event("device.need", session)
        ways = []
        for epoch in (1, 2):
            await box.attach(session, epoch)
            await box.logged(session, "9.0")
            ways.append((await box.park(session, epoch))["stays"])
        await box.attach(session, 3)
        assert ways == [True, False]  # each once, the driver first
        await box.kill_agent()
        await parks(box)
        kept = json.loads(await asyncio.to_thread(remembered, box))
        assert sorted(kept["taken"]) == ["copy", "driver"]
        assert all(len(taken) == 1 for taken in kept["taken"].values())


def remembered(box: AgentBox) -> str:
    path = f"file:{box.root}/state/agent.sqlite?mode=ro"
    with sqlite3.connect(path, uri=True) as ledger:
        [(body,)] = ledger.execute("SELECT body FROM document WHERE name = 'parks'").fetchall()
    texts: dict[str, str] = json.loads(body)
    return texts["cpu:0"]
