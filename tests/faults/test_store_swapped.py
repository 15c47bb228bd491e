"""At the place of the store is an empty or another one: it is told in one sentence, nothing is done
with it, and everything comes back with the right one."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_proxy.checkpoint.stores.identity import give_identity, read_identity
from singularity_proxy.errors import StoreChanged
from singularity_scheduler.agent import abilities
from support.agent import AgentBox, until
from support.agent_moves import gone, listed, resume, suspend
from support.capsules import needs_criu

pytestmark = needs_criu

CODE = "import time\nnumber = 0\nwhile True:\n    number += 1; print('count', number, flush=True)\n"


def swap(store: Path, other: str) -> Path:
    """The store is elsewhere, and in its place is nothing, an empty folder or another store."""
    away = store.with_name("away")
    store.rename(away)
    if other != "missing":
        store.mkdir()
    if other == "another":
        give_identity(FolderStore(str(store)))
    return away


async def told(box: AgentBox) -> dict[str, object]:
    [hello] = await box.fleet.hello()
    return dict(hello["capabilities"]["store"])


@pytest.mark.asyncio
@pytest.mark.parametrize("other", ["missing", "empty", "another"])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_swapped_between_suspend_and_resume(
    tmp_path: Path, other: str, restarted: bool
) -> None:
    store = tmp_path / "store"
    async with AgentBox(f"--NodeAgent.checkpoint_store={store}") as box:
        session = await box.python(CODE + "    time.sleep(0.05)")
        await box.logged(session, "count 3")
        done = await suspend(box, session, 1)
        await gone(box, session)
        id = done["checkpoint"]["id"]
        identity = (await told(box))["id"]
        away = await asyncio.to_thread(swap, store, other)
        before = await asyncio.to_thread(listing, store)
        if restarted:
            await box.kill_agent()
        for call in (
            listed(box, session),
            resume(box, session, 2, id),
            box.call("checkpoints.delete", session=session, user="alice", id=id),
        ):
            with pytest.raises(StoreChanged) as caught:
                await call
            assert f"the checkpoint store {store} is " in caught.value.message
            assert "nothing was changed" in caught.value.message
        found = await told(box)
        assert (found["available"], found["id"]) == (False, identity)
        assert str(found["reason"]).startswith(f"the checkpoint store {store} is ")
        assert await asyncio.to_thread(listing, store) == before
        shutil.rmtree(store, ignore_errors=True)
        away.rename(store)
        assert [c["id"] for c in await listed(box, session)] == [id]
        await resume(box, session, 3, id, seq=9)
        number = box.log(session).count("count")
        await until(lambda: box.log(session).count("count") > number)
        assert (await told(box))["available"]


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.mark.asyncio
async def test_the_service_hears_when_the_store_is_gone_and_when_it_is_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with AgentBox(f"--NodeAgent.checkpoint_store={store}") as box:
        assert (await told(box))["available"]
        away = swap(store, "empty")
        await box.event("node.abilities", "")
        assert not (await told(box))["available"]
        store.rmdir()
        away.rename(store)
        await box.event("node.abilities", "", count=2)
        assert (await told(box))["available"]
        assert abilities.LOOK_S < 30


@pytest.mark.asyncio
async def test_another_store_is_taken_when_somebody_says_so(tmp_path: Path) -> None:
    store = tmp_path / "store"
    box = AgentBox(f"--NodeAgent.checkpoint_store={store}")
    async with box:
        first = (await told(box))["id"]
        swap(store, "empty")
        assert box.fleet.agent_args[-1].endswith("store")
        box.fleet.agent_args = [*box.fleet.agent_args, "--NodeAgent.checkpoint_store_new=True"]
        await box.kill_agent()
        found = await told(box)
        assert found["available"]
        assert found["id"] not in ("", first)
        assert read_identity(FolderStore(str(store))) == found["id"]
