"""The store has no room for all that is to be put there: who finds none goes on as it was, and was
never stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from singularity_proxy.errors import NoSpace
from support.agent import AgentBox, until
from support.agent_moves import checkpoint, gone, listed, resume, suspend
from support.capsules import needs_criu
from support.disks import needs_root, small_disk

pytestmark = [needs_criu, needs_root, pytest.mark.root]

CODE = """
import os, sys, time
held = os.urandom({megabytes} << 20)
print("ready", flush=True)
number = 0
while True:
    number += 1
    print("count", number, flush=True)
    time.sleep(0.05)
"""


@pytest_asyncio.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    """A file system of 140 MiB: two fit, whatever is sampled of them, and three do not."""
    async with small_disk(tmp_path / "m", 140):
        yield tmp_path / "m"


async def holding(box: AgentBox, megabytes: int) -> str:
    """A session whose process holds so much that cannot be compressed."""
    session = await box.python(CODE.format(megabytes=megabytes))
    await box.logged(session, "ready")
    return session


def counted(box: AgentBox, session: str) -> int:
    return box.log(session).count("count")


async def counts_on(box: AgentBox, session: str) -> None:
    before = counted(box, session)
    await until(lambda: counted(box, session) > before + 1)


@pytest.mark.asyncio
async def test_three_are_suspended_and_two_fit(disk: Path) -> None:
    async with AgentBox(f"--NodeAgent.checkpoint_store={disk}/store") as box:
        sessions = [await holding(box, 40) for _ in range(3)]
        done = await asyncio.gather(
            *(suspend(box, session, 1, urgent=True) for session in sessions),
            return_exceptions=True,
        )
        stored = [s for s, x in zip(sessions, done, strict=True) if isinstance(x, dict)]
        [(refused, error)] = [
            (s, x) for s, x in zip(sessions, done, strict=True) if not isinstance(x, dict)
        ]
        assert isinstance(error, NoSpace)
        assert error.message.startswith(
            f"session {refused} was not suspended and goes on as it was, older checkpoints "
            "were kept: the checkpoint store "
        )
        assert error.fields["needed"] > 40 << 20
        assert len(stored) == 2
        await counts_on(box, refused)
        assert await listed(box, refused) == []
        for session in stored:
            await gone(box, session)
            [kept] = await listed(box, session)
            await resume(box, session, 2, kept["id"])
            await counts_on(box, session)


@pytest.mark.asyncio
async def test_room_is_kept_for_what_would_be_lost(disk: Path) -> None:
    reserve = "--NodeAgent.checkpoint_reserve_percent=75"
    async with AgentBox(f"--NodeAgent.checkpoint_store={disk}/store", reserve) as box:
        session = await holding(box, 40)
        for command in (suspend, checkpoint):
            with pytest.raises(NoSpace, match="are kept for suspends"):
                await command(box, session, 1, seq=3 if command is suspend else 4)
        await counts_on(box, session)
        done = await suspend(box, session, 1, seq=5, urgent=True)
        await gone(box, session)
        await resume(box, session, 2, done["checkpoint"]["id"], seq=6)
        await counts_on(box, session)


@pytest.mark.asyncio
async def test_a_store_full_of_ended_sessions_takes_the_next_one(disk: Path) -> None:
    """Of another user, too: the store is one."""
    async with AgentBox(f"--NodeAgent.checkpoint_store={disk}/store") as box:
        for _ in range(2):
            session = await holding(box, 40)
            done = await suspend(box, session, 1)
            await box.call("session.end", session=session, reason="test", grace_s=0.0, user="alice")
            kept = done["checkpoint"]["id"]  # which the scheduler has removed when its day is over
            await box.call("checkpoints.delete", session=session, user="alice", id=kept)
            assert await listed(box, session) == []
        session = await box.python(CODE.format(megabytes=60), user="bob")
        await box.logged(session, "ready")
        done = await suspend(box, session, 1)
        await gone(box, session)
        assert [c["id"] for c in await listed(box, session, "bob")] == [done["checkpoint"]["id"]]
        assert "the checkpoint store is full" in box.agent_log()


@pytest.mark.asyncio
async def test_a_second_suspend_is_known_to_need_little(disk: Path) -> None:
    """What the newest checkpoint has already is not counted again."""
    async with AgentBox(f"--NodeAgent.checkpoint_store={disk}/store") as box:
        session = await holding(box, 80)
        await checkpoint(box, session, 1)
        done = await suspend(box, session, 1, seq=2)  # another 80 MiB would not fit
        assert done["checkpoint"]["sent_bytes"] < 20 << 20
        await gone(box, session)


@pytest.mark.asyncio
async def test_folders_of_the_user_below_tmp_need_no_room(disk: Path) -> None:
    """They are mounted into the session's own /tmp, and stay where they are."""
    async with AgentBox(f"--NodeAgent.checkpoint_store={disk}/store") as box:
        (box.work / "data").write_bytes(os.urandom(160 << 20))
        session = await holding(box, 1)
        await suspend(box, session, 1)
        await gone(box, session)
        [kept] = await listed(box, session)
        assert kept["bytes"] < 100 << 20
