"""Whole sessions leave a node and come back, through the store: real CRIU, real device proxies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from singularity_proxy.errors import (
    BadRequest,
    CheckpointCancelled,
    Conflict,
    SingularityError,
    Unsupported,
)
from support.agent import AgentBox, sleeper, stop, until
from support.agent_kernels import NO_HISTORY, client_of, run, start_kernel
from support.agent_moves import after, checkpoint, gone, listed, resume, suspend
from support.agent_trains import STEPS, hurry, losses, native_losses, start_training
from support.capsules import needs_criu
from support.matrix import some_of
from support.processes import stop_process

pytestmark = needs_criu


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    return native_losses(STEPS)


async def until_listed(box: AgentBox, session: str, wanted: list[str]) -> None:
    """Wait until these checkpoints are listed."""
    for _ in range(100):
        if [c["id"] for c in await listed(box, session)] == wanted:
            return
        await asyncio.sleep(0.05)
    assert [c["id"] for c in await listed(box, session)] == wanted


@pytest.mark.asyncio
async def test_a_training_is_suspended_and_goes_on_here(reference: dict[int, str]) -> None:
    async with AgentBox(warm=1) as box:
        session = await start_training(box, pause_s=0.3)
        await box.attach(session, 1)
        await after(box, session, 5)
        done = await suspend(box, session, 1)
        assert done["checkpoint"]["level"] == "process"
        assert done["incarnation"] == 1
        await gone(box, session)
        assert [c["id"] for c in await listed(box, session)] == [done["checkpoint"]["id"]]
        assert await suspend(box, session, 1) == done  # the command is repeated
        back = await resume(box, session, 2, done["checkpoint"]["id"])
        assert back["loss"]["level"] == "process"
        assert back["loss"]["hashes_checked"] > 0
        assert not back["loss"]["rolled_back"]
        await box.event("device.need", session, count=2)
        await box.attach(session, 2, "cpu:1")
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_a_training_moves_to_another_node_and_back(
    reference: dict[int, str], tmp_path: Path
) -> None:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    async with AgentBox(store, warm=1) as one, AgentBox(store, warm=1) as two:
        session = await start_training(one, pause_s=0.2)
        await one.attach(session, 1)
        await after(one, session, 3)
        done = await suspend(one, session, 1)
        await gone(one, session)
        await resume(two, session, 2, done["checkpoint"]["id"])
        await two.event("device.need", session)
        await two.attach(session, 2)
        await after(two, session, 9)
        done = await suspend(two, session, 2)
        await gone(two, session)
        assert done["checkpoint"]["sent_bytes"] < done["checkpoint"]["stored_bytes"] / 2
        await resume(one, session, 3, done["checkpoint"]["id"], seq=3)
        await one.event("device.need", session, count=2)
        await one.attach(session, 3)
        hurry(one)
        await one.logged(session, "done")
        assert losses(one.log(session)) == reference
        assert len(await listed(two, session)) == 2
        await one.end(session)


@pytest.mark.asyncio
async def test_a_checkpoint_is_taken_while_it_goes_on(reference: dict[int, str]) -> None:
    async with AgentBox(warm=1) as box:
        session = await start_training(box, pause_s=0.2)
        await box.attach(session, 1)
        await after(box, session, 3)
        made = await checkpoint(box, session, 1, "early")
        assert (made["level"], made["name"], made["reason"]) == ("process", "early", "")
        assert (await box.session(session))["devices"] == ["cpu:0"]
        # A second session from the same moment, while the first goes on.
        fork = "f" * 12
        told = await resume(box, fork, 1, made["id"], from_session=session, seq=7)
        assert not told["loss"]["rolled_back"]
        await box.event("device.need", fork)
        await box.attach(fork, 1, "cpu:1")
        hurry(box)
        for one in (session, fork):
            await box.logged(one, "done")
            assert losses(box.log(one)) == reference
        await box.end(fork)
        assert await listed(box, session) == [{k: v for k, v in made.items() if k != "ms"}]
        # Back to it: what was done since is done again, with the same numbers.
        await box.call("session.end", session=session, reason="lost", grace_s=0.0, keep=True)
        told = await resume(box, session, 2, made["id"], incarnation=2)
        assert told["loss"]["rolled_back"]
        assert told["loss"]["lost"][0].startswith("what the session did after 2")
        await box.event("device.need", session, count=2)
        await box.attach(session, 2)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference
        assert (await box.session(session))["incarnation"] == 2


@pytest.mark.asyncio
async def test_a_suspend_comes_in_the_middle_of_a_checkpoint(reference: dict[int, str]) -> None:
    async with AgentBox(warm=1) as box:
        session = await start_training(box, pause_s=0.2)
        await box.attach(session, 1)
        await after(box, session, 3)
        early = asyncio.ensure_future(checkpoint(box, session, 1, "early"))
        done, _ = await asyncio.gather(
            suspend(box, session, 1, seq=2), early, return_exceptions=True
        )
        assert isinstance(done, dict)
        assert early.exception() is None or isinstance(early.exception(), CheckpointCancelled)
        assert [c["id"] for c in await listed(box, session)][-1] == done["checkpoint"]["id"]
        await gone(box, session)
        await box.kill_agent()
        await gone(box, session)  # nothing has written it down again
        first, second = await asyncio.gather(
            resume(box, session, 2, done["checkpoint"]["id"], seq=3),
            resume(box, session, 2, done["checkpoint"]["id"], seq=4),
            return_exceptions=True,
        )
        assert [type(x) for x in (first, second) if not isinstance(x, dict)] == [Conflict]
        await box.attach(session, 2)
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.parametrize("wait_s", some_of([0.0, 0.2, 0.5, 1.0], 2))
@pytest.mark.asyncio
async def test_a_session_is_ended_while_it_is_suspended(wait_s: float) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.2)
        leaving = asyncio.ensure_future(suspend(box, session, 1))
        await asyncio.sleep(wait_s)
        await box.end(session)
        done = (await asyncio.gather(leaving, return_exceptions=True))[0]
        assert isinstance(done, dict | SingularityError)
        stored = [done["checkpoint"]["id"]] if isinstance(done, dict) else []
        await until_listed(box, session, stored)
        await gone(box, session)


WRITES = """
import time
file = open("log", "a")
print("ready", flush=True)
time.sleep(3600)
"""


def held_for(box: AgentBox, session: str) -> tuple[int, int]:
    """What the agent keeps of a session: answers in its ledger; files of all that it watches."""
    with contextlib.closing(sqlite3.connect(box.root / "state/agent.sqlite")) as ledger:
        [answers] = ledger.execute("SELECT count(*) FROM answer WHERE session = ?", (session,))
    opened = Path(f"/proc/{box.agent_pid}/fdinfo").iterdir()
    return answers[0], sum(one.read_text().count("fanotify ino:") for one in opened)


@pytest.mark.asyncio
async def test_nothing_is_kept_of_a_session_that_ends_in_the_store() -> None:
    async with AgentBox() as box:
        session = await box.python(WRITES)
        await box.logged(session, "ready")
        await suspend(box, session, 1)
        assert held_for(box, session) == (2, int(os.geteuid() == 0))
        await box.end(session)
        assert held_for(box, session) == (0, 0)


TICKS = """
import time, torch
x = torch.arange(4.0).to("cuda")
for tick in range(20):
    x = x + 1
    print(tick, int(x.sum().item()), flush=True)
    time.sleep(0.1)
"""


@pytest.mark.asyncio
async def test_a_kernel_moves_in_the_middle_of_a_cell(tmp_path: Path) -> None:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    async with AgentBox(store, warm=1) as one, AgentBox(store, warm=1) as two:
        # SQLite notices that a database in /tmp is another file now, and IPython says so.
        session, info = await start_kernel(one, NO_HISTORY)
        client, other = await client_of(info), await client_of(info)
        try:
            cell = asyncio.ensure_future(run(client, TICKS))
            await one.event("device.need", session)
            await one.attach(session, 1)
            await until(lambda: one.proxies_of(session) != [])
            await asyncio.sleep(0.6)
            done = await suspend(one, session, 1)
            await gone(one, session)
            [relay] = one.relays(session)
            # A request wants it back; it is carried out behind the cell that runs.
            later = asyncio.ensure_future(run(other, "print(x.sum().item(), tick)"))
            await one.event("session.wanted", session)
            told = await one.call("session.connection", session=session)
            back = await resume(
                two, session, 2, done["checkpoint"]["id"], connection=told["connection"]
            )
            assert back["loss"]["lost"] == []
            await two.event("device.need", session)
            await two.attach(session, 2)
            lines = [f"{n} {6 + 4 * (n + 1)}" for n in range(20)]
            assert (await asyncio.wait_for(cell, 60)).splitlines() == lines
            assert await asyncio.wait_for(later, 60) == "86.0 19\n"
            # And home again, to the relay that never moved.
            done = await suspend(two, session, 2)
            await resume(one, session, 3, done["checkpoint"]["id"], seq=3)
            await one.attach(session, 3)
            assert await run(client, "print(x.sum().item())") == "86.0\n"
            assert one.relays(session) == [relay]
            await one.kill_agent()
            assert await run(client, "print(tick)") == "19\n"
        finally:
            client.stop_channels()
            other.stop_channels()
        await one.end(session)
        assert one.relays(session) == []


@pytest.mark.asyncio
async def test_without_a_process_image_the_device_state_is_saved() -> None:
    options = ("--NodeAgent.capsule=process", "--NodeAgent.checkpoint_keep_count=2")
    async with AgentBox(*options, double=True) as box:
        [hello] = await box.fleet.hello()
        assert not hello["capabilities"]["process_image"]["available"]
        assert hello["capabilities"]["store"]["url"] == str(box.root / "state" / "store")
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        with pytest.raises(Unsupported, match="without namespaces of its own; it goes on here"):
            await suspend(box, session, 1)
        with pytest.raises(Unsupported, match="no process image"):
            await checkpoint(box, session, 1, level="process", seq=2)
        made = await checkpoint(box, session, 1, "kept", seq=3)
        assert made["level"] == "device"
        assert made["reason"] == "it was started without namespaces of its own"
        ids = [(await checkpoint(box, session, 1, seq=seq))["id"] for seq in (4, 5, 6)]
        wanted = [made["id"], *ids[1:]]

        async def until_kept(wanted: list[str]) -> None:
            await until_listed(box, session, wanted)

        await until_kept(wanted)
        with pytest.raises(Unsupported, match="holds no processes"):
            await resume(box, "e" * 12, 1, made["id"], from_session=session, seq=7)
        assert (await box.session(session))["devices"] == ["cpu:0"]
        await box.end(session)
        await until_kept(wanted)  # what goes after an end is the scheduler's word alone


@pytest.mark.asyncio
async def test_a_kernel_whose_server_is_gone_can_wait_in_the_store() -> None:
    async with AgentBox("--NodeAgent.orphan_grace_s=0.2") as box:
        owner = sleeper(**await box.user_options())
        session, info = await start_kernel(box, owner_pid=owner.pid)
        client = await client_of(info)
        client.stop_channels()
        stop(owner)
        told = await box.event("session.orphaned", session)
        assert f"process {owner.pid}" in told["reason"]
        done = await suspend(box, session, 1)
        await gone(box, session)
        [relay] = box.relays(session)
        await box.kill_agent()  # the next one takes over the relay that waits
        assert await suspend(box, session, 1) == done
        await resume(box, session, 2, done["checkpoint"]["id"])
        client = await client_of(info)
        client.stop_channels()
        await box.kill_agent()  # the next one does not take it for an orphan either
        await asyncio.sleep(0.5)
        assert (await box.session(session))["alive"]
        assert box.relays(session) == [relay]


@pytest.mark.asyncio
async def test_a_server_that_ends_while_its_kernel_comes_back_leaves_an_orphan() -> None:
    async with AgentBox("--NodeAgent.orphan_grace_s=0.2") as box:
        owner = sleeper(**await box.user_options())
        session, _ = await start_kernel(box, owner_pid=owner.pid)
        await suspend(box, session, 1)
        await gone(box, session)
        [reference] = await listed(box, session)
        back = asyncio.create_task(resume(box, session, 2, reference["id"]))
        await until(lambda: box.folder(session).exists(), "it comes back")
        assert not back.done()
        stop(owner)
        await back
        told = await box.event("session.orphaned", session)
        assert f"process {owner.pid}" in told["reason"]


@pytest.mark.asyncio
async def test_another_server_takes_a_kernel_over_and_no_service_means_no_end() -> None:
    async with AgentBox("--NodeAgent.orphan_grace_s=0.2") as box:
        owners = [sleeper(**await box.user_options()) for _ in range(3)]
        session, _ = await start_kernel(box, owner_pid=owners[0].pid)
        await box.call("session.own", session=session, owner_pid=owners[1].pid)
        with pytest.raises(BadRequest, match="there is no process"):
            await box.call("session.own", session=session, owner_pid=2**22 + 1)
        stop(owners[0])  # it is nobody's any more
        done = await suspend(box, session, 1)
        await gone(box, session)
        await box.call("session.own", session=session, owner_pid=owners[2].pid)
        await resume(box, session, 2, done["checkpoint"]["id"])
        stop(owners[1])
        assert not [e for e in box.events if e[1] == "session.orphaned"]
        await box.fleet.stop()  # the Hub with the service in it ends, and its servers
        stop(owners[2])
        await asyncio.sleep(1.0)
        await box.fleet.start()
        told = await box.event("session.orphaned", session)
        assert f"process {owners[2].pid}" in told["reason"]
        assert (await box.session(session))["alive"]


@pytest.mark.asyncio
async def test_a_kernel_goes_back_to_an_older_checkpoint_behind_the_same_relay() -> None:
    async with AgentBox() as box:
        session, info = await start_kernel(box)
        client = await client_of(info)
        try:
            await run(client, "x = 1")
            made = await checkpoint(box, session, 1, "one")
            assert await run(client, "x += 1; print(x)") == "2\n"
            [relay] = box.relays(session)
            await suspend(box, session, 1, seq=2)
            told = await resume(box, session, 2, made["id"], incarnation=2, seq=3)
            assert told["loss"]["rolled_back"]
            # What the older image had not received is carried out again: x += 1.
            assert await run(client, "x += 10; print(x)") == "12\n"
            assert (await box.session(session))["incarnation"] == 2
            # Its node was taken for dead: what is here ends, the clients' end stays.
            words = {"reason": "it lives elsewhere", "grace_s": 0.0}
            await box.call("session.end", session=session, keep=True, **words)
            assert box.relays(session) == [relay]
            await resume(box, session, 3, made["id"], incarnation=3, seq=4)
            assert await run(client, "print(x)") == "12\n"
            # Everything of it is killed at once; its relay is there again before it is needed.
            stop_process(box.agent_pid)
            for pid in [relay, *(process.pid for process in box.everything_of(session))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await box.kill_agent()
            back = await resume(box, session, 4, made["id"], incarnation=4, seq=5)
            assert "its connection to Jupyter" not in back["loss"]["lost"]
            client.stop_channels()
            client = await client_of(info)  # the one before may hear an answer again, and refuses
            assert await run(client, "print(x)") == "12\n"
        finally:
            client.stop_channels()
        await box.end(session)
        assert box.relays(session) == []
