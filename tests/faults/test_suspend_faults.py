"""What is killed, full or gone while a whole session is saved or comes back: nothing is lost, and
nothing half-written is listed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.manifest import ZERO
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_proxy.errors import (
    DamagedCheckpoint,
    NoSpace,
    SingularityError,
    StaleEpoch,
    StoreUnavailable,
)
from support.agent import AgentBox, until
from support.agent_faults import criu_of
from support.agent_moves import after, checkpoint, gone, listed, resume, suspend
from support.agent_trains import STEPS, hurry, losses, native_losses, start_training
from support.capsules import needs_criu
from support.disks import needs_root, small_disk
from support.processes import stop_process

pytestmark = needs_criu


@pytest.fixture(scope="module")
def reference() -> dict[int, str]:
    return native_losses(STEPS)


async def killed(box: AgentBox, command: asyncio.Future[object]) -> None:
    """The agent died in the middle of `command`, and another one answers."""
    with pytest.raises(SingularityError):
        await command
    await until(lambda: box.connections[-1:] == [True] and len(box.connections) > 2)


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
        assert (await other.session(session))["incarnation"] == 2
        again = await checkpoint(other, session, 5)
        assert again["incarnation"] == 2


@pytest.mark.asyncio
async def test_a_store_that_is_gone_costs_nothing_but_the_checkpoint(
    reference: dict[int, str],
) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.2)
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
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("place", ["store", "state"])
@pytest.mark.asyncio
async def test_a_full_disk_costs_nothing_but_the_checkpoint(
    reference: dict[int, str], place: str
) -> None:
    """Of the store, or of the agent, who puts the process image there."""
    box = AgentBox()
    async with small_disk(box.root / place, 20):
        store = box.root / "store" / "here" if place == "store" else box.root / "elsewhere"
        box.fleet.agent_args = [*box.fleet.agent_args, f"--NodeAgent.checkpoint_store={store}"]
        async with box:
            session = await start_training(box, pause_s=0.2)
            await box.attach(session, 1)
            await after(box, session, 2)
            for command in (suspend, checkpoint):
                with pytest.raises(NoSpace, match=r"older checkpoints (were|are) kept"):
                    await command(box, session, 1)
                report = await box.session(session)
                assert (report["alive"], report["devices"]) == (True, ["cpu:0"])
            assert await listed(box, session) == []
            hurry(box)
            await box.logged(session, "done")
            assert losses(box.log(session)) == reference
            await box.end(session)


@pytest.mark.asyncio
async def test_a_flipped_bit_is_found_and_the_older_checkpoint_is_offered(
    reference: dict[int, str],
) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.2)
        await box.attach(session, 1)
        await after(box, session, 2)
        older = await checkpoint(box, session, 1, "older")
        newest = (await suspend(box, session, 1, seq=2))["checkpoint"]
        kept = Checkpoints(FolderStore(str(box.root / "state" / "store")), "alice")
        known = {chunk.id for chunk in kept.manifest(session, older["id"]).chunks}
        manifest = kept.manifest(session, newest["id"])
        used = {extent.chunk for part in manifest.parts for extent in part.extents} - {ZERO}
        fresh = next(manifest.chunks[n] for n in used if manifest.chunks[n].id not in known)
        path = box.root / "state" / "store" / "alice" / "chunks" / fresh.id[:2] / fresh.id
        flipped = bytearray(path.read_bytes())
        flipped[len(flipped) // 2] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(DamagedCheckpoint, match=r"'older'|" + older["id"]):
            await resume(box, session, 2, newest["id"], seq=3)
        await gone(box, session)
        await resume(box, session, 3, older["id"], incarnation=2, seq=4)
        await box.attach(session, 3)
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_an_agent_killed_while_criu_works(reference: dict[int, str]) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.2)
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
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference


@pytest.mark.asyncio
async def test_everything_of_a_node_killed_at_once(reference: dict[int, str]) -> None:
    async with AgentBox() as box:
        session = await start_training(box, pause_s=0.2)
        await box.attach(session, 1)
        await after(box, session, 2)
        made = await checkpoint(box, session, 1)
        agent, everything = box.agent_pid, box.everything_of(session)
        stop_process(agent)
        for process in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await box.kill_agent()
        await gone(box, session)  # so that the service has it go on from the store
        assert [t for _, t, _ in box.events if t == "process.exited"] == []
        assert [c["id"] for c in await listed(box, session)] == [made["id"]]
        await resume(box, session, 2, made["id"], incarnation=2)
        await box.attach(session, 2)
        hurry(box)
        await box.logged(session, "done")
        assert losses(box.log(session)) == reference
