"""The local fleet: an agent is found, started, restarted, and never started twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
from singularity_proxy.errors import BadRequest, NotFound, Unavailable
from singularity_scheduler.fleet import LocalFleet
from support.agent import AgentBox, alive, until


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"agent_args": ["--NodeAgent.uid_range=all"]}, "uid_range must look like"),
        ({"agent_args": ["--NodeAgent.journal_bytes=-1"]}, "must not be negative"),
        ({"cpu_devices": -2}, "must not be negative"),
        ({"runtime_dir": "/tmp/" + "x" * 80}, "too long for unix sockets"),
        ({"device_type": "cuda"}, "no CUDA device|does not exist"),
    ],
)
@pytest.mark.asyncio
async def test_an_agent_that_cannot_start_says_why_and_leaves_nothing(
    change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    if change.get("device_type") == "cuda" and _has_gpu():
        pytest.skip("this machine has a GPU")
    fleet = LocalFleet(state_dir=str(tmp_path / "state"), **change)
    with pytest.raises(Unavailable, match=sentence):
        await fleet.start()
    await fleet.stop()
    place = _place(tmp_path / "state" / "agent.sqlite")
    assert place is None  # what it had made it removed, and forgot


def _has_gpu() -> bool:
    return os.path.exists("/dev/nvidiactl")


def _place(ledger: Path) -> object:
    if not ledger.exists():
        return None
    db = sqlite3.connect(ledger)
    try:
        return db.execute("SELECT body FROM document WHERE name = 'place'").fetchone()
    finally:
        db.close()


@pytest.mark.asyncio
async def test_a_bad_size_is_refused_before_anything_starts(tmp_path: Path) -> None:
    fleet = LocalFleet(state_dir=str(tmp_path / "state"), cpu_capacity="lots")
    with pytest.raises(BadRequest, match="'lots' is not a size"):
        await fleet.start()
    await fleet.stop()


@pytest.mark.asyncio
async def test_a_second_service_takes_the_running_agent_over() -> None:
    async with AgentBox(double=True, cpu_devices=3, cpu_capacity="1GiB") as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        pid = box.agent_pid
        second = LocalFleet(state_dir=box.fleet.state_dir, runtime_dir=box.fleet.runtime_dir)
        heard: list[str] = []
        second.on_event(lambda node, session, type, data: heard.append(type))
        await second.start()
        [hello] = await second.hello()
        assert [d["capacity_bytes"] for d in hello["devices"]] == [1 << 30] * 3
        assert [s["session"] for s in hello["sessions"]] == [session]
        await until(lambda: "device.need" in heard)
        assert box.agent_pid == pid
        with pytest.raises(NotFound, match="no node 'elsewhere'"):
            await second.call("elsewhere", "hello")
        await second.stop()
        await second.stop()
        with pytest.raises(Unavailable, match="not connected now"):
            await second.call("local", "hello")
        assert await second.hello() == []
        assert alive(pid)


@pytest.mark.asyncio
async def test_an_agent_that_dies_again_and_again_is_started_again() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        for _ in range(3):
            await box.kill_agent()
        box.forget_events()
        await box.event("device.need", session)
        await box.attach(session, 1)
        await box.logged(session, "attached")


@pytest.mark.asyncio
async def test_an_agent_that_hangs_is_ended_and_started_again() -> None:
    async with AgentBox(double=True, hung_agent_s=1.5) as box:
        session = await box.worker("open", "need", "sleep")
        await box.event("device.need", session)
        stopped, instance = box.agent_pid, box.announced()["instance"]
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: not alive(stopped))
        await until(lambda: box.connections[-1:] == [True])
        assert box.announced()["instance"] != instance
        assert (await box.session(session))["alive"] is True


@pytest.mark.asyncio
async def test_an_agent_that_somebody_else_starts_is_waited_for(tmp_path: Path) -> None:
    async with AgentBox(double=True) as box:
        patient = LocalFleet(state_dir=box.fleet.state_dir, start_agents=False)
        await patient.start()
        [hello] = await patient.hello()
        assert hello["node"] == "local"
        await patient.stop()
    missing = LocalFleet(state_dir=str(tmp_path), start_agents=False)
    with pytest.raises(Unavailable, match="another program is to start it"):
        await missing.start()
    await missing.stop()
    assert not (tmp_path / "agent.log").exists()


@pytest.mark.asyncio
async def test_folders_that_were_removed_end_the_session_and_not_the_agent() -> None:
    async with AgentBox(double=True) as box:
        lost = await box.worker("open", "sleep")
        kept = await box.worker("open", "sleep")
        for session in (lost, kept):
            await box.logged(session, "sleeping")
        await box.end_agent()
        shutil.rmtree(box.folder(lost))
        await box.fleet.start()
        report = await box.session(lost)
        assert report["alive"] is False
        assert "could not take it over" in report["reason"]
        assert (await box.session(kept))["alive"] is True


@pytest.mark.asyncio
async def test_another_boot_forgets_what_cannot_exist_any_more() -> None:
    async with AgentBox(double=True) as box:
        session = await box.worker("open", "sleep")
        await box.logged(session, "sleeping")
        [process] = box.processes(session)
        await box.end_agent()
        os.kill(process.pid, signal.SIGKILL)
        _pretend_another_boot(box.root / "state" / "agent.sqlite")
        await box.fleet.start()
        [hello] = await box.fleet.hello()
        assert hello["sessions"] == []
        assert list((box.runtime / "s").iterdir()) == []
        shutil.rmtree(box.shm)  # the machine's restart would have
        box.shm = Path(box.announced()["shm_dir"])


def _pretend_another_boot(ledger: Path) -> None:
    with sqlite3.connect(ledger) as db:
        [(body,)] = db.execute("SELECT body FROM document WHERE name = 'place'").fetchall()
        place = {**json.loads(body), "boot": "another"}
        db.execute("UPDATE document SET body = ? WHERE name = 'place'", (json.dumps(place),))
    db.close()
