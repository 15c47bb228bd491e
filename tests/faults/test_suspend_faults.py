"""What is killed, full or gone while a whole session is saved or comes back: nothing is lost, and
nothing half-written is listed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from singularity_proxy.errors import (
    ImageFailed,
    NoSpace,
    SingularityError,
    StaleEpoch,
    StoreUnavailable,
)
from singularity_scheduler.agent import resumes, suspends
from support.agent import AgentBox, until
from support.agent_moves import after, checkpoint, gone, listed, resume, suspend
from support.agent_trains import STEPS, losses, native_losses, start_training
from support.capsules import needs_criu
from support.disks import needs_root, small_disk
from support.matrix import some_of

pytestmark = needs_criu

LEFT = {"suspend.recorded", "suspend.ended", "suspend.removed"}
"""From here on the session is in the store."""
SUSPEND = [f"suspend.{name}" for name in suspends.STEPS if name not in ("copied", "thawed")]
STORE = ["save.registered", "save.chunk", "save.flushed", "save.manifest", "save.published"]
RESUME = [f"resume.{name}" for name in resumes.STEPS]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return native_losses(tmp_path_factory.mktemp("native"), STEPS)


def fault(box: AgentBox, step: str) -> None:
    """The agent dies at `step`."""
    (box.root / "state" / "fault").write_text(step)


async def killed(box: AgentBox, command: asyncio.Future[object]) -> None:
    """The agent died in the middle of `command`, and another one answers."""
    with pytest.raises(SingularityError):
        await command
    await until(lambda: not (box.root / "state" / "fault").exists())
    await until(lambda: box.connections[-1:] == [True] and len(box.connections) > 2)


@pytest.mark.parametrize("step", some_of([*SUSPEND, *STORE], 3))
@pytest.mark.asyncio
async def test_an_agent_killed_while_it_suspends(step: str, reference: dict[int, str]) -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session = await start_training(box, pause_s=0.1)
        await box.attach(session, 1)
        await after(box, session, 3)
        fault(box, step)
        await killed(box, asyncio.ensure_future(suspend(box, session, 1)))
        before = await listed(box, session)
        if step not in LEFT:
            assert len(before) == (step in ("suspend.published", "save.published"))
            [hello] = await box.fleet.hello()
            [report] = hello["sessions"]
            assert report["alive"]
            # It goes on, at once or as soon as it has a device again.
            if not report["devices"]:
                await box.attach(session, 2)
            seen = max(losses(box.log(session)))
            await after(box, session, min(seen + 2, STEPS - 1))
        done = await suspend(box, session, 1 if step in LEFT else 2)
        await gone(box, session)
        assert done["checkpoint"]["id"] == (await listed(box, session))[-1]["id"]
        if step in LEFT:
            assert len(before) == 1
            assert done["checkpoint"]["id"] == before[0]["id"]
        await resume(box, session, 3, done["checkpoint"]["id"])
        await box.attach(session, 3)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.parametrize("step", some_of(RESUME, 2))
@pytest.mark.asyncio
async def test_an_agent_killed_while_it_resumes(step: str, reference: dict[int, str]) -> None:
    async with AgentBox(script="agent_with_fault.py") as box:
        session = await start_training(box, pause_s=0.1)
        await box.attach(session, 1)
        await after(box, session, 3)
        done = await suspend(box, session, 1)
        fault(box, step)
        await killed(box, asyncio.ensure_future(resume(box, session, 2, done["checkpoint"]["id"])))
        [hello] = await box.fleet.hello()
        if step in ("resume.recorded", "resume.thawed"):
            assert [s["alive"] for s in hello["sessions"]] == [True]
        else:
            await gone(box, session)
            await resume(box, session, 2, done["checkpoint"]["id"])
        await box.attach(session, 2)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_an_agent_that_is_late_publishes_nothing(tmp_path: Path) -> None:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    async with AgentBox(store) as late, AgentBox(store) as other:
        session = await start_training(late, pause_s=0.1)
        await late.attach(session, 1)
        await after(late, session, 2)
        made = await checkpoint(late, session, 1, "last")
        # Its node was silent for so long that the session was given to another one.
        await resume(other, session, 5, made["id"], incarnation=2)
        with pytest.raises(StaleEpoch):
            await suspend(late, session, 1, seq=9)
        assert not (await late.session(session))["alive"]
        assert not late.folder(session).exists()
        assert [t for _, t, _ in late.events if t == "process.exited"] == []
        assert [c["id"] for c in await listed(other, session)] == [made["id"]]
        assert (await other.session(session))["life"] == 2
        again = await checkpoint(other, session, 5)
        assert again["incarnation"] == 2


@pytest.mark.asyncio
async def test_a_store_that_is_gone_costs_nothing_but_the_checkpoint(
    reference: dict[int, str],
) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.1)
        await box.attach(session, 1)
        await after(box, session, 2)
        store = box.root / "state" / "store"
        store.rename(box.root / "elsewhere")
        store.write_text("not a folder")
        with pytest.raises(StoreUnavailable):
            await suspend(box, session, 1)
        report = await box.session(session)
        assert (report["alive"], report["devices"]) == (True, ["cpu:0"])
        store.unlink()
        (box.root / "elsewhere").rename(store)
        assert await listed(box, session) == []
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.root
@needs_root
@pytest.mark.asyncio
async def test_a_full_store_costs_nothing_but_the_checkpoint(reference: dict[int, str]) -> None:
    box = AgentBox()
    async with small_disk(box.root / "full", 20):
        store = str(box.root / "full" / "store")
        box.fleet.agent_args = [*box.fleet.agent_args, f"--NodeAgent.checkpoint_store={store}"]
        async with box:
            session = await start_training(box, pause_s=0.1)
            await box.attach(session, 1)
            await after(box, session, 2)
            for command in (suspend, checkpoint):
                with pytest.raises(NoSpace, match="older checkpoints were kept"):
                    await command(box, session, 1)
                report = await box.session(session)
                assert (report["alive"], report["devices"]) == (True, ["cpu:0"])
            assert await listed(box, session) == []
            await box.logged(session, "done")
            assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_criu_killed_at_work_leaves_the_session_as_it_was(
    reference: dict[int, str],
) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.1)
        await box.attach(session, 1)
        await after(box, session, 2)

        async def kill_criu() -> None:
            while not (found := criu_of(box)):
                await asyncio.sleep(0.001)
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        killer = asyncio.ensure_future(kill_criu())
        with pytest.raises(ImageFailed) as failed:
            await suspend(box, session, 1)
        await killer
        assert "log" in failed.value.fields
        assert await listed(box, session) == []
        report = await box.session(session)
        if report["alive"]:  # it had not begun to work inside of the processes
            await box.logged(session, "done")
            assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_an_agent_killed_while_criu_works(reference: dict[int, str]) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.1)
        await box.attach(session, 1)
        await after(box, session, 2)
        command = asyncio.ensure_future(suspend(box, session, 1))
        while not criu_of(box):
            await asyncio.sleep(0.001)
        os.kill(box.agent_pid, signal.SIGKILL)
        await killed(box, command)
        assert await listed(box, session) == []
        # CRIU works on; when it has let go, the session does.
        assert (await box.session(session))["alive"]
        await box.attach(session, 2)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_everything_of_a_node_killed_at_once(reference: dict[int, str]) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.1)
        await box.attach(session, 1)
        await after(box, session, 2)
        made = await checkpoint(box, session, 1)
        agent, everything = box.agent_pid, box.everything_of(session)
        os.kill(agent, signal.SIGSTOP)
        for process in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await box.kill_agent()
        await gone(box, session)  # so that the service has it go on from the store
        assert [t for _, t, _ in box.events if t == "process.exited"] == []
        assert [c["id"] for c in await listed(box, session)] == [made["id"]]
        await resume(box, session, 2, made["id"], incarnation=2)
        await box.attach(session, 2)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


def criu_of(box: AgentBox) -> list[int]:
    """Pids of the CRIU that this box's agent runs."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                if b"dump" in words and b"--leave-running" in words and _below(entry, box):
                    found.append(int(entry))
    return found


def _below(pid: str, box: AgentBox) -> bool:
    while int(pid) > 1:
        if int(pid) == box.agent_pid:
            return True
        pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return False
