"""One user against the room that all share on a node: the checkpoint store, shared memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
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


FILLS = """
import os, time
folder = os.path.join({shm!r}, os.environ["SINGULARITY_SESSION"])
try:
    with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
except OSError as error:
    print("full:", error.strerror, flush=True)
time.sleep(600)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of shared memory that sessions of any user may enter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@attack(
    "full-shared-memory",
    "a session fills the folder of its rings, and with it all of /dev/shm that sessions share",
    "sessions with a device go on; who needs a new ring is told in a sentence; the end of the "
    "session frees all of it",
)
async def test_full_shared_memory(measured: Measured, shared: Path) -> None:
    async with small_disk(shared / "m", 96):
        shm = shared / "m" / "shm"
        async with AgentBox(shm_dir=str(shm)) as box:
            assert box.shm == shm
            bobs = await box.worker("open", "need", "next:/tmp/on", "record", "sleep", user="bob")
            await box.event("device.need", bobs)
            await box.attach(bobs, 1)
            await box.logged(bobs, "attached")
            greedy = await box.python(FILLS.format(shm=str(shm)))
            await box.logged(greedy, "full: No space left on device")
            carols = await box.worker("open", "status", "sleep", user="carol")
            await box.logged(carols, "sleeping")
            assert "NoSpace there is no room for a device ring" in box.log(carols)
            (box.folder(bobs) / "tmp" / "on").touch()
            await box.logged(bobs, "sleeping")
            assert "record" in box.log(bobs)
            assert (await box.session(bobs))["devices"] == ["cpu:0"]
            await box.end(greedy)
            late = await box.worker("open", "sleep", user="carol")
            await box.logged(late, "opened")
            for session in (bobs, carols, late):
                await box.end(session)
            no_traceback(box)
            measured("the ring in use goes on, the next is refused; the end frees 96 MiB")
