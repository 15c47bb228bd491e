"""A home that is full, read-only or gone while a session is away: it comes back and is told, or one
sentence says what to do; nothing of the user's is changed."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile
from singularity_proxy.capsule.files.rules import Action, Way
from singularity_proxy.errors import OpenFilesChanged
from support.capsule_returns import back, bring_back, saved
from support.capsules import Place, Places, needs_criu

pytestmark = [needs_criu, pytest.mark.asyncio]

PAGE = 4096
ROOM = 64 * PAGE

CODE = """
import os, time
os.chdir("disk")
rows = open("rows.csv", "w"); rows.write("1\\n" * 40000); rows.flush()
log = open("log.csv", "a"); log.write("1\\n"); log.flush()
place = open("place.bin", "w+"); place.write("12345678"); place.flush(); place.seek(4)
os.chdir("..")
print("on", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
for name, file in (("rows", rows), ("log", log), ("place", place)):
    try:
        os.write(file.fileno(), b"2\\n")
        print(name, "ok", flush=True)
    except OSError as error:
        print(name, error.strerror, flush=True)
print("done", flush=True)
time.sleep(600)
"""


class Disk:
    """A small file system of its own in a home."""

    def __init__(self, place: Place) -> None:
        self.path = place.home / "disk"
        self.path.mkdir()
        options = f"size={ROOM},uid={place.uid},gid={place.uid},mode=700"
        self._mount("-t", "tmpfs", "-o", options, "tmpfs", str(self.path))
        self.there = True

    @staticmethod
    def _mount(*words: str) -> None:
        subprocess.run(["mount", *words], check=True, timeout=30)

    def make_read_only(self) -> None:
        self._mount("-o", "remount,ro", str(self.path))

    def fill(self) -> None:
        """Leave no room for one more page."""
        with (self.path / "theirs").open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(PAGE))
                except OSError:
                    return

    def remove(self) -> None:
        if self.there:
            subprocess.run(["umount", "-l", str(self.path)], check=True, timeout=30)
            self.there = False


@pytest.fixture
def disks() -> Iterator[list[Disk]]:
    made: list[Disk] = []
    yield made
    for disk in made:
        disk.remove()


def make_disk(place: Place, disks: list[Disk]) -> Disk:
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    disk = Disk(place)
    disks.append(disk)
    return disk


async def said(place: Place) -> list[str]:
    (place.tmp / "go").touch()
    await place.until(lambda: place.log().endswith("done\n"))
    return place.log().splitlines()[1:-1]


async def test_a_full_home_refuses_nothing(tmp_path: Path, disks: list[Disk]) -> None:
    """A return to an older checkpoint finds no room for the copy, so nothing is cut."""
    async with Places() as place:
        disk = make_disk(place, disks)
        capsule = await place.python(CODE)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        rows = disk.path / "rows.csv"
        with rows.open("a") as file:
            file.write("since\n")
        disk.fill()
        before = {path.name: path.read_bytes() for path in disk.path.iterdir()}
        done = await asyncio.to_thread(
            reconcile.reconcile, record, **back(place, Way.ROLLBACK), label="after-1"
        )
        now = {path.name: path.read_bytes() for path in disk.path.iterdir()}
        assert now == before  # no half copy either
        [told] = done.told
        assert (told.path, told.action) == (str(rows), Action.END)
        assert "could not be set back" in told.sentence()
        await bring_back(place, tmp_path / "c", done.plan)
        assert "log ok" in await said(place)
        # Where there is still room in its last page; never over what was there.
        assert rows.read_bytes().startswith(before["rows.csv"])


async def test_a_home_that_became_read_only(tmp_path: Path, disks: list[Disk]) -> None:
    async with Places() as place:
        disk = make_disk(place, disks)
        capsule = await place.python(CODE)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        disk.make_read_only()
        for way in (Way.RESUME, Way.ROLLBACK):
            done = await asyncio.to_thread(
                reconcile.reconcile, record, **back(place, way), label="after-1"
            )
            assert [one.action for one in done.told] == [Action.READ] * 3
            assert all("is read-only now" in one for one in done.sentences())
        await bring_back(place, tmp_path / "c", done.plan)
        assert await said(place) == [f"{n} Bad file descriptor" for n in ("rows", "log", "place")]


@pytest.mark.parametrize("other_node", [False, True])
async def test_a_home_that_is_not_mounted_is_one_sentence(
    tmp_path: Path, disks: list[Disk], other_node: bool
) -> None:
    """No empty files are made in the folder that is there instead."""
    async with Places() as place:
        disk = make_disk(place, disks)
        capsule = await place.python(CODE)
        await place.logged("on")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        disk.remove()
        why = r"log.csv \(its folder is not on this node, or not mounted\).*nothing was changed"
        with pytest.raises(OpenFilesChanged, match=why):
            await asyncio.to_thread(
                reconcile.check, record, **back(place, Way.RESUME), other_node=other_node
            )
        assert list(disk.path.iterdir()) == []
