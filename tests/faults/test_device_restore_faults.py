"""What is killed or full while device state goes back into a session: it goes on as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.errors import FileChanged, SingularityError, StaleEpoch
from support.agent import AgentBox, until
from support.agent_held import Held
from support.agent_moves import checkpoint, resume
from support.agent_trains import STEPS, go, losses, native_losses, reach, start_training
from support.capsules import needs_criu
from support.matrix import some_of

STEPS_OF_IT = ["put_back.aside", "put_back.merged", "put_back.between"]


async def put_back(box: AgentBox, session: str, epoch: int, id: str, **more: Any) -> Any:
    words = {"seq": 7, "discard": True, **more}
    return await box.call("device.put_back", session=session, epoch=epoch, checkpoint=id, **words)


async def trained(box: AgentBox) -> tuple[str, dict[str, Any]]:
    """A session that waits before step 8, with a checkpoint of before step 4."""
    session = await start_training(box, 4, 8)
    await box.attach(session, 1)
    await reach(box, session, 4)
    made = await checkpoint(box, session, 1, "four", level="device")
    go(box, 4)
    await reach(box, session, 8)
    return session, made


async def to_the_end(box: AgentBox, session: str) -> dict[int, str]:
    go(box, 8)
    await box.logged(session, "done")
    return losses(box.log(session))


@pytest.mark.parametrize("step", some_of(STEPS_OF_IT, 2))
@pytest.mark.asyncio
async def test_an_agent_killed_while_it_puts_state_back(step: str) -> None:
    reference = native_losses(STEPS)
    async with AgentBox("--NodeAgent.capsule=process", script="agent_with_fault.py") as box:
        session, made = await trained(box)
        held = Held(box, step)
        command = asyncio.ensure_future(put_back(box, session, 1, made["id"]))
        await held.wait()
        os.kill(box.agent_pid, signal.SIGKILL)
        with pytest.raises(SingularityError):
            await command
        await until(lambda: box.connections[-1:] == [True] and len(box.connections) > 2)
        assert sorted(os.listdir(box.shm)) == [session]
        await box.attach(session, 2)
        assert await to_the_end(box, session) == reference


@needs_criu
@pytest.mark.asyncio
async def test_nothing_is_put_back_where_the_session_is_not_any_more(tmp_path: Path) -> None:
    store = f"--NodeAgent.checkpoint_store={tmp_path}/store"
    async with AgentBox(store) as late, AgentBox(store) as other:
        session, made = await trained(late)
        whole = await checkpoint(late, session, 1, "whole", seq=2)
        await resume(other, session, 5, whole["id"], incarnation=2)
        with pytest.raises(StaleEpoch):
            await put_back(late, session, 1, made["id"], discard=False)
        assert not (await late.session(session))["alive"]
        assert not late.folder(session).exists()
        assert (await other.session(session))["alive"]


@pytest.mark.asyncio
async def test_what_cannot_be_put_back_changes_nothing() -> None:
    reference = native_losses(STEPS)
    async with AgentBox("--NodeAgent.capsule=process") as box:
        session, _ = await trained(box)
        with pytest.raises(SingularityError, match="no checkpoint"):
            await put_back(box, session, 1, "nothing")
        assert sorted(os.listdir(box.shm)) == [session]
        assert await to_the_end(box, session) == reference


@pytest.mark.parametrize("what", ["fifo", "link"])
@pytest.mark.asyncio
async def test_something_else_in_the_place_of_a_journal_holds_nobody_up(what: str) -> None:
    async with AgentBox("--NodeAgent.capsule=process", script="agent_with_fault.py") as box:
        session, made = await trained(box)
        held = Held(box, "put_back.aside")
        command = asyncio.ensure_future(put_back(box, session, 1, made["id"]))
        await held.wait()
        [snapshot] = (box.shm / session).glob("*.snap")
        journal = snapshot.with_suffix(".journal")
        journal.unlink(missing_ok=True)
        if what == "fifo":
            os.mkfifo(journal)
        else:  # to one without records
            head = struct.pack("<8sIIQQ", b"SINGJRNL", 1, 0, 0, 4096)
            (box.work / "other").write_bytes(head.ljust(4096, b"\0"))
            journal.symlink_to(box.work / "other")
        held.release()
        with pytest.raises(FileChanged, match="is not a plain file"):
            await asyncio.wait_for(command, 20.0)
        assert sorted(os.listdir(box.shm)) == [session]
        await box.end(session)
