"""A home on a file system that stands still for a while: sessions that use it wait or are refused
in one sentence, every other session is served, and no byte is lost once it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.errors import Unavailable
from support.agent import AgentBox, until
from support.agent_moves import gone, resume, suspend
from support.capsules import needs_criu
from support.disks import needs_root

pytestmark = [needs_criu, needs_root, pytest.mark.asyncio]

WRITER = """
import os, time
numbers = open(os.environ["DISK"] + "/numbers", "a", buffering=1)
number = 0
while True:
    if os.path.exists(os.environ["DISK"] + "/go"):
        print(number, file=numbers)
        number += 1
    time.sleep(0.01)
"""


class SlowDisk:
    """An ext4 file system at `place` that can stand still: who writes to it waits."""

    def __init__(self, place: Path, image: Path) -> None:
        self.place, self._image = place, image
        with image.open("wb") as file:
            file.truncate(16 << 20)
        self._run("mkfs.ext4", "-q", str(image))
        place.mkdir()
        self._run("mount", "-o", "loop,noatime", str(image), str(place))
        place.chmod(0o777)
        self._still = False

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run(words, check=True, timeout=60)

    def stand_still(self) -> None:
        self._run("fsfreeze", "-f", str(self.place))
        self._still = True

    def go_on(self) -> None:
        if self._still:
            self._run("fsfreeze", "-u", str(self.place))
            self._still = False

    def remove(self) -> None:
        self.go_on()
        self._run("umount", "-l", str(self.place))
        self._image.unlink()

    def numbers(self) -> list[int]:
        whole, _, _ = (self.place / "numbers").read_text().rpartition("\n")
        return [int(line) for line in whole.split()]


@contextlib.contextmanager
def slow_disk(box: AgentBox, tmp_path: Path) -> Iterator[SlowDisk]:
    """A `SlowDisk` in the folder of the sessions of `box`."""
    made = SlowDisk(box.work / "disk", tmp_path / "disk.ext4")
    try:
        yield made
    finally:
        made.remove()


async def start_writer(box: AgentBox, disk: SlowDisk) -> str:
    session = await box.python(f"import os; os.environ['DISK'] = {str(disk.place)!r}\n{WRITER}")
    await until((disk.place / "numbers").exists, lambda: box.log(session))
    return session


def assert_no_gap(disk: SlowDisk) -> None:
    """One reading of the numbers, which go on growing: each is there once, in order."""
    found = disk.numbers()
    assert found == list(range(len(found)))


async def until_written(disk: SlowDisk, more_than: int) -> None:
    await until(lambda: len(disk.numbers()) > more_than, lambda: str(disk.numbers()[-3:]))


async def test_a_home_that_stands_still_while_its_session_writes(tmp_path: Path) -> None:
    async with AgentBox() as box:
        with slow_disk(box, tmp_path) as disk:
            session = await start_writer(box, disk)
            (disk.place / "go").touch()
            await until_written(disk, 5)
            disk.stand_still()
            stored = asyncio.ensure_future(suspend(box, session, 1))
            other = await box.python("import time; print('on', flush=True); time.sleep(3600)")
            await box.logged(other, "on")
            done = await suspend(box, other, 1)
            assert done["checkpoint"]["level"] == "process"
            await asyncio.wait([stored], timeout=2)
            disk.go_on()
            [told] = await asyncio.gather(stored, return_exceptions=True)
            if isinstance(told, BaseException):  # a slow machine: it stood still for too long
                assert isinstance(told, Unavailable)
                assert "it goes on, nothing was saved" in str(told)
            else:
                await gone(box, session)
                await resume(box, session, 2, told["checkpoint"]["id"])
            await until_written(disk, len(disk.numbers()) + 5)
            assert_no_gap(disk)


async def test_a_home_that_stands_still_while_its_session_comes_back(tmp_path: Path) -> None:
    async with AgentBox() as box:
        with slow_disk(box, tmp_path) as disk:
            session = await start_writer(box, disk)
            (disk.place / "go").touch()
            await until_written(disk, 5)
            done = await suspend(box, session, 1)
            await gone(box, session)
            before = disk.numbers()
            disk.stand_still()
            back = asyncio.ensure_future(resume(box, session, 2, done["checkpoint"]["id"]))
            other = await box.python("import time; print('on', flush=True); time.sleep(3600)")
            await box.logged(other, "on")
            await asyncio.wait([back], timeout=2)
            disk.go_on()
            assert (await back)["loss"]["lost"] == []
            await until_written(disk, len(before) + 5)
            assert_no_gap(disk)
