"""A failure while a failure is repaired: a device proxy takes the place of one that was killed, and
is killed, stopped or never gets ready itself. It is tried again, and the state is what it was."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from singularity_scheduler.agent.devices.binding import STEPS as REPLACE
from support.agent import AgentBox, alive, until
from support.agent_held import Held
from support.agent_refusing import REFUSE
from support.agent_trains import go, losses, native_losses, reach, start_training


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    """The losses of an undisturbed run, by step."""
    return native_losses()


async def trained_to(box: AgentBox, step: int) -> str:
    """A session that holds a device and waits before `step`, with all its state on it."""
    session = await start_training(box, step)
    await box.attach(session, 1)
    await reach(box, session, step)
    return session


async def goes_on(box: AgentBox, session: str, step: int, reference: dict[int, str]) -> None:
    go(box, step)
    await box.logged(session, "done")
    assert losses(box.log(session)) == reference
    assert [d for s, t, d in box.events if (s, t) == (session, "proxy.failed")] == []


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.asyncio
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_replacement_is_killed_while_it_starts(
    reference: dict[int, str], times: int
) -> None:
    """Without a warm one: each is killed at once, mostly before it listens."""
    async with AgentBox() as box:
        session = await trained_to(box, 6)
        known = set(box.proxies())
        kill(list(known))
        for _ in range(times):
            await until(lambda: set(box.proxies()) - known != set())
            started = list(set(box.proxies()) - known)
            known.update(started)
            kill(started)
        await box.event("proxy.recovered", session)
        await goes_on(box, session, 6, reference)


@pytest.mark.asyncio
@pytest.mark.parametrize("step", list(REPLACE))
@pytest.mark.parametrize("times", [2, 3])
async def test_replacements_are_killed_one_after_another_at_one_step(
    reference: dict[int, str], step: str, times: int
) -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session = await trained_to(box, 6)
        held = Held(box, f"replace.{step}")
        kill(box.proxies())
        for left in reversed(range(times)):
            await held.wait()
            kill(box.proxies())
            await until(lambda: box.proxies() == [])
            held.again() if left else held.release()
        await until(lambda: len(box.proxies_of(session)) == 1)
        await goes_on(box, session, 6, reference)


@pytest.mark.asyncio
@pytest.mark.parametrize("step", list(REPLACE))
async def test_the_agent_is_killed_while_a_proxy_is_replaced(
    reference: dict[int, str], step: str
) -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session = await trained_to(box, 6)
        held = Held(box, f"replace.{step}")
        kill(box.proxies())
        await held.wait()
        await box.kill_agent()
        await until(lambda: len(box.proxies_of(session)) == 1)
        await goes_on(box, session, 6, reference)


@pytest.mark.asyncio
async def test_a_replacement_is_stopped_while_it_starts() -> None:
    async with AgentBox(double=True) as box:  # each is started by itself, which takes a while
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "attached r1")
        [first] = box.proxies()
        kill([first])
        await until(lambda: set(box.proxies()) - {first} != set())
        [stopped] = set(box.proxies()) - {first}
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: not alive(stopped))
        await until(lambda: len(box.proxies_of(session)) == 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_what_replacements_are_copies_of_is_killed_or_stopped(
    reference: dict[int, str], signum: signal.Signals
) -> None:
    async with AgentBox() as box:
        session = await trained_to(box, 6)
        template = box.template()
        os.kill(template, signum)
        kill(box.proxies())
        await box.event("proxy.recovered", session)
        assert not alive(template)
        assert box.template() != template
        await goes_on(box, session, 6, reference)


@pytest.mark.asyncio
async def test_no_replacement_starts_and_the_session_is_set_down(
    reference: dict[int, str],
) -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session = await trained_to(box, 6)
        (box.work / REFUSE).touch()
        kill(box.proxies())
        why = (await box.event("lease.lapsed", session))["reason"]
        assert why == "a device proxy did not get ready (the test wants none), nor did 3 before it"
        report = await box.session(session)
        assert (report["devices"], report["saved"]) == ([], True)
        assert report["reason"].endswith(why)
        go(box, 6)
        await box.event("device.need", session, count=2)
        with pytest.raises(Exception, match="did not get ready"):
            await box.attach(session, 2)
        (box.work / REFUSE).unlink()
        await box.attach(session, 3, "cpu:1")
        await goes_on(box, session, 6, reference)


@pytest.mark.asyncio
async def test_a_session_that_cannot_be_set_down_is_tried_again() -> None:
    """One of its devices has no proxy and gets none, the state of the other cannot be written."""
    async with AgentBox(double=True) as box:
        session = await box.worker("open:0", "open:1", "need", "sleep", virtual_devices=2)
        await box.event("device.need", session)
        await box.attach(session, 1, "cpu:0", "cpu:1")
        await box.logged(session, "attached r1")
        await until(lambda: len(box.proxies_of(session)) == 2)
        gone, kept = sorted(box.proxies_of(session))
        (box.work / f"nopark-{kept}").touch()
        (box.work / REFUSE).touch()
        kill([gone])
        await box.event("lease.lapsed", session)
        assert box.proxies_of(session) == [kept]
        report = await box.session(session)
        assert (report["devices"], report["saved"]) == (["cpu:0", "cpu:1"], True)
        (box.work / REFUSE).unlink()
        await until(lambda: len(box.proxies_of(session)) == 2)
        (box.work / f"nopark-{kept}").unlink()
        await box.park(session, 1)
        assert box.proxies() == []


@pytest.mark.asyncio
async def test_proxies_that_die_while_they_restore_never_cost_the_state() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "attached r1")
        die = box.shm / session / "r1.die"
        await asyncio.to_thread(die.touch)
        kill(box.proxies())
        why = (await box.event("lease.lapsed", session))["reason"]
        assert "ended 4 times while it restored the state on cpu:0" in why
        report = await box.session(session)
        assert (report["devices"], report["saved"]) == ([], True)
        await asyncio.to_thread(die.unlink)
        await box.attach(session, 2)
        assert (await box.session(session))["devices"] == ["cpu:0"]
