"""One user against the room that all share on a node: the checkpoint store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from singularity_proxy.errors import NoSpace
from support.agent import AgentBox, until
from support.agent_moves import checkpoint, gone, listed, resume, suspend
from support.attacks import attack, no_traceback
from support.capsules import needs_criu
from support.disks import small_disk

Measured = Callable[[str], None]

HOLDS = """
import os, time
held = os.urandom({megabytes} << 20)
print("holds", flush=True)
number = 0
while True:
    number += 1
    held = os.urandom({megabytes} << 20)
    print("count", number, flush=True)
    time.sleep(0.2)
"""


async def counts_on(box: AgentBox, session: str) -> None:
    """A session of `HOLDS` goes on."""
    before = box.log(session).count("count")
    await until(lambda: box.log(session).count("count") > before + 1)


async def take_checkpoints(box: AgentBox, session: str, count: int) -> None:
    for number in range(count):
        await checkpoint(box, session, 1, seq=number + 1)


@attack(
    "checkpoints-without-end",
    "a user takes checkpoints of a session that changes all of its memory, until they are refused",
    "a suspend of another user, and one that keeps a session from loss, still fit",
)
@needs_criu
async def test_checkpoints_without_end(measured: Measured, tmp_path: Path) -> None:
    reserve = "--NodeAgent.checkpoint_reserve_percent=15"
    async with (
        small_disk(tmp_path / "m", 256),
        AgentBox(f"--NodeAgent.checkpoint_store={tmp_path}/m/store", reserve) as box,
    ):
        greedy = await box.python(HOLDS.format(megabytes=20))
        await box.logged(greedy, "holds")
        with pytest.raises(NoSpace, match="older checkpoints were kept"):
            await take_checkpoints(box, greedy, 30)
        await counts_on(box, greedy)
        taken = len(await listed(box, greedy))
        bobs = await box.python(HOLDS.format(megabytes=1), user="bob")
        await box.logged(bobs, "holds")
        done = await suspend(box, bobs, 1)
        await gone(box, bobs)
        await suspend(box, greedy, 1, seq=50, urgent=True)
        await resume(box, bobs, 2, done["checkpoint"]["id"], user="bob")
        await counts_on(box, bobs)
        no_traceback(box)
        measured(f"refused after {taken} checkpoints; both suspends fit")
