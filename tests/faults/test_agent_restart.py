"""The node agent is killed at any moment: sessions go on, the next agent takes them over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.agent import AgentBox, alive, sleeper, stop, until
from support.agent_moves import checkpoint, resume
from support.capsules import needs_criu


@pytest.mark.asyncio
async def test_sessions_go_on_and_everything_is_known_again() -> None:
    async with AgentBox(double=True) as box:
        go, more = box.work / "go", box.work / "more"
        session = await box.worker(
            "busy", "open", "need", f"next:{go}", "idle", "open", "need", f"next:{more}", "exit:5"
        )
        pid = box.started["pid"]
        await box.event("device.need", session)
        attached = await box.attach(session, 4, seq=9)
        await box.logged(session, "attached r1")
        [proxy] = (box.runtime / "p").glob("*.sock")
        before = await box.session(session)
        await box.kill_agent()
        assert await box.session(session) == before
        assert alive(pid)
        assert proxy.exists()
        # What was done is not done again, what was refused stays refused.
        assert await box.attach(session, 4, "cpu:1", seq=9) == attached
        # Workers, magics and the doorbell find the new sockets; the proxy was adopted.
        go.touch()
        await box.logged(session, "attached r2 generation 1 epoch 4")
        assert (await box.session(session))["busy"] is False
        await box.park(session, 4)
        await until(lambda: not proxy.exists())
        more.touch()
        data = await box.event("process.exited", session)
        # The first agent was its parent: only a kernel from 6.15 on tells the second one the code.
        assert data["exit_code"] in (5, None)
        assert not (box.shm / session).exists()


@pytest.mark.asyncio
async def test_a_waiting_worker_rings_on_through_the_restart() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.kill_agent()
        box.forget_events()
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "attached r1 generation 1 epoch 1")


@pytest.mark.asyncio
async def test_what_ended_meanwhile_is_noticed() -> None:
    async with AgentBox("--NodeAgent.orphan_grace_s=0.1", double=True) as box:
        owner = sleeper(**await box.user_options())
        gone = await box.worker("open", "need", "sleep")
        gone_pid = box.started["pid"]
        orphan = await box.worker("open", "sleep", owner_pid=owner.pid)
        stays = await box.worker("open", "need", "sleep")
        await box.event("device.need", gone)
        await box.event("device.need", stays)
        await box.attach(gone, 1, "cpu:0")
        await box.attach(stays, 1, "cpu:1")
        for session in (gone, stays):
            await box.logged(session, "attached")
        await box.end_agent()
        os.kill(gone_pid, signal.SIGKILL)
        stop(owner)
        proxies = box.proxies()
        assert len(proxies) == 2
        for pid in proxies:
            os.kill(pid, signal.SIGKILL)
        await box.fleet.start()
        await until(lambda: not box.folder(gone).exists() and not box.folder(orphan).exists())
        await until(lambda: len(box.proxies()) == 1)
        [hello] = await box.fleet.hello()
        report = {s["session"]: s for s in hello["sessions"]}
        assert report[gone]["alive"] is False
        assert report[orphan]["alive"] is False
        assert report[stays]["alive"] is True
        # Its proxy died while nobody watched: another one serves the ring now.
        assert report[stays]["devices"] == ["cpu:1"]
        assert [p.name for p in box.shm.iterdir()] == [stays]
        assert [p.name for p in (box.runtime / "l").iterdir()] == [f"{stays}.lease"]


@needs_criu
@pytest.mark.asyncio
async def test_a_node_that_comes_back_spares_what_went_on_at_another_node_of_the_machine(
    tmp_path: Path,
) -> None:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    code = "import time\nfor n in range(10000): print('line', n, flush=True); time.sleep(0.02)"
    async with AgentBox(store) as first, AgentBox(store) as second:
        session = await first.python(code)
        await first.logged(session, "line 3")
        kept = await checkpoint(first, session, 0)
        await first.end_agent()
        for process in first.everything_of(session):  # the node has lost its power
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await resume(second, session, 1, kept["id"], incarnation=2)
        await first.fleet.start()
        await until(lambda: not first.folder(session).exists())
        said = second.log(session)
        await until(lambda: len(second.log(session)) > len(said) + 50)
        assert (await second.session(session))["alive"] is True
        await second.end(session)


ENDS_WELL = """
import os, sys, time
from singularity_proxy.capsule.process import write_exit_code
while not os.path.exists("go"): time.sleep(0.01)
write_exit_code(int(sys.argv[1]), os.environ)
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["joined", "capsule"])
async def test_how_a_run_ended_meanwhile_is_known(mode: str) -> None:
    """Its process is nobody's child who could ask; it has written its exit code down."""
    argv = [sys.executable, "-c", ENDS_WELL, "7"]
    async with AgentBox() as box:
        (box.work / "go").unlink(missing_ok=True)
        if mode == "joined":
            # Its environment has the session, so it can only be made after it: a shell waits.
            options = await box.user_options()
            shell = [
                "sh",
                "-c",
                'read folder; export SINGULARITY_SOCKET=$folder/agent.sock; exec "$@"',
            ]
            own = subprocess.Popen(  # noqa: ASYNC220  (a fork takes a millisecond)
                [*shell, "sh", *argv], stdin=subprocess.PIPE, cwd=box.work, **options
            )
            assert own.stdin is not None
            session = await box.start([], mode="joined", owner_pid=own.pid)
            own.stdin.write(f"{box.folder(session)}\n".encode())
            own.stdin.close()
        else:
            session = await box.start(argv)
        await box.end_agent()
        (box.work / "go").touch()
        if mode == "joined":
            assert await asyncio.to_thread(own.wait, 60) == 0
        else:
            await until((box.folder(session) / "exit").exists, lambda: box.log(session))
            await until(lambda: not box.processes(session), lambda: box.log(session))
        await box.fleet.start()
        await until(lambda: not box.folder(session).exists())
        report = await box.session(session)
        assert (report["alive"], report["exit_code"]) == (False, 7)
        assert "exit code 7" in report["reason"]


@needs_criu
@pytest.mark.asyncio
@pytest.mark.parametrize("code", [0, 143])
async def test_a_run_that_ended_meanwhile_goes_on_from_its_checkpoint_after_a_signal_alone(
    code: int,
) -> None:
    async with AgentBox() as box:
        session = await box.start(
            [sys.executable, "-c", f"print('on', flush=True)\n{ENDS_WELL}", str(code)]
        )
        await box.logged(session, "on")
        await checkpoint(box, session, 1, "early")
        await box.end_agent()
        (box.work / "go").touch()
        await until((box.folder(session) / "exit").exists, lambda: box.log(session))
        await until(lambda: not box.processes(session), lambda: box.log(session))
        await box.fleet.start()
        await until(lambda: not box.folder(session).exists())
        if code > 128:  # unknown here: the service has it go on from the store
            [hello] = await box.fleet.hello()
            assert hello["sessions"] == []
        else:
            report = await box.session(session)
            assert (report["alive"], report["exit_code"]) == (False, code)


@pytest.mark.asyncio
async def test_a_lease_runs_on_while_the_agent_is_dead() -> None:
    async with AgentBox("--NodeAgent.lease_ttl_s=4.0", double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.kill_agent()
        await box.event("lease.lapsed", session)
        await until(lambda: not box.proxies())
        assert (await box.session(session))["devices"] == []


@pytest.mark.asyncio
async def test_a_kill_during_any_command_leaves_a_defined_state() -> None:
    """Killed 0 to 60 ms into an attach and into a park, the command repeated: always finished."""
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        for epoch, delay in enumerate((0.0, 0.02, 0.04, 0.06), start=1):
            for command, held in ((box.attach, True), (box.park, False)):
                seq = 1000 + 10 * epoch + held
                first = asyncio.ensure_future(command(session, epoch, seq=seq))
                await asyncio.sleep(delay)
                await box.kill_agent()
                await asyncio.wait([first])
                first.exception()
                await command(session, epoch, seq=seq)
                report = await box.session(session)
                assert report["devices"] == (["cpu:0"] if held else []), (epoch, command)
                assert len(box.proxies()) == held
        await box.attach(session, 50)
        await box.logged(session, "attached")


@pytest.mark.asyncio
async def test_a_start_that_was_cut_off_leaves_nothing() -> None:
    async with AgentBox(double=True) as box:
        for delay in (0.0, 0.01, 0.03):
            start = asyncio.ensure_future(box.worker("open", "sleep"))
            await asyncio.sleep(delay)
            await box.kill_agent()
            await asyncio.wait([start])
            [hello] = await box.fleet.hello()
            for session in hello["sessions"]:
                await box.end(session["session"])
            assert [p.name for p in (box.runtime / "s").iterdir()] == []
            assert list(box.shm.iterdir()) == []
