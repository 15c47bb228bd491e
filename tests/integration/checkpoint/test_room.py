"""A store that is full: what nobody needs is removed at once, and who finds no room is told what
would make some."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy.checkpoint.checkpoints import Checkpoints
from singularity_proxy.checkpoint.files import Part
from singularity_proxy.checkpoint.saving.writer import Request
from singularity_proxy.checkpoint.stores.folder import FolderStore
from singularity_proxy.errors import NoSpace
from support.checkpoint_data import noise
from support.checkpoint_stores import StoreBox
from support.disks import fill, needs_root

MB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 24 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def alice(folder: Path) -> Checkpoints:
    return Checkpoints(FolderStore(str(folder / "store")), "alice")


def part(megabytes: int, seed: int, name: str = "x") -> Part:
    return Part(name, "scratch", data=noise(megabytes * MB, seed))


@pytest.mark.root
@needs_root
def test_what_ended_sessions_left_makes_room_at_once(small: Path) -> None:
    box = alice(small)
    box.save(Request("a", 1, "files"), [part(14, 1)])
    box.forget("a")
    assert box.collect().chunks == 0  # it is young, so it stays while there is room
    box.save(Request("b", 1, "files"), [part(14, 2)])
    assert box.verify("b") > 0
    assert box.freeable()[0].session == "b"


@pytest.mark.root
@needs_root
def test_the_refusal_says_what_would_free_how_much(small: Path) -> None:
    box = alice(small)
    first = box.save(Request("a", 1, "files"), [part(7, 1)])
    box.save(Request("a", 1, "files"), [part(2, 2)])
    box.save(Request("b", 1, "files"), [part(5, 3)])
    with pytest.raises(NoSpace) as caught:
        box.save(Request("c", 1, "files"), [part(14, 4)])
    assert (
        "is full (No space left on device): deleting the older checkpoints of session a would free "
        "7.3 MB and ending session b, or deleting its checkpoints if it has ended, would free "
        "5.2 MB; older checkpoints were kept"
    ) in caught.value.message
    assert [c.session for s in "abc" for c in box.list(s)] == ["a", "a", "b"]
    box.delete("a", first.id)
    box.save(Request("c", 1, "files"), [part(14, 4)])
    assert [box.verify(session) > 0 for session in "abc"] == [True, True, True]


@pytest.mark.root
@needs_root
def test_a_store_that_others_have_filled_up_can_still_be_emptied(small: Path) -> None:
    box = alice(small)
    box.save(Request("a", 1, "files"), [part(10, 1)])
    fill(small / "filler")
    with pytest.raises(NoSpace):
        box.save(Request("b", 1, "files"), [part(1, 2)])
    assert len(box.forget("a")) == 1
    box.save(Request("b", 1, "files"), [part(8, 2)])
    assert box.verify("b") > 0
    assert box.head("b").writing == ()


@pytest.mark.parametrize("step", ["folder.written", "folder.swap"])
def test_no_room_at_any_write(folder_store: StoreBox, step: str) -> None:
    """Each write of a save finds the store full once. There is something to be removed, so the
    save succeeds; where there is nothing, nothing of it is listed."""
    box = folder_store.user()
    assert isinstance(box.store, FolderStore)
    box.save(Request("s", 1, "files"), [part(1, 1)])
    number = seen = hits = 0

    def full(name: str) -> None:
        nonlocal seen, hits
        seen += name == step
        if name == step and seen == number:
            hits += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    while hits or not number:
        number, hits = number + 1, 0
        for garbage in (True, False):
            if garbage:
                box.save(Request("old", 1, "files"), [part(1, 1000 + number)])
                box.forget("old")
            seen, before = 0, hits
            box.store.on_step = full
            known = [c.id for c in box.list("s")]
            parts = [part(1, 5000 + 2 * number + garbage), part(1, 1, "y")]
            try:
                made = box.save(Request("s", 1, "files"), parts)
                assert [*known, made.id] == [c.id for c in box.list("s")]
            except NoSpace:
                assert not garbage
                assert known == [c.id for c in box.list("s")]
            finally:
                box.store.on_step = lambda name: None
            assert hits <= before + 1
            for summary in box.list("s"):
                assert box.verify("s", summary.id) > 0
    assert number > 2


@pytest.mark.root
@needs_root
def test_room_is_kept_for_those_who_need_it_most(small: Path) -> None:
    box = alice(small)
    box.save(Request("a", 1, "files"), [part(8, 1)], keep_free=10 * MB)
    with pytest.raises(NoSpace, match=r"full but for the 10\.5 MB that are kept for suspends"):
        box.save(Request("b", 1, "files"), [part(8, 2)], keep_free=10 * MB)
    assert box.list("b") == []
    box.save(Request("b", 1, "files"), [part(8, 2)])
    assert box.verify("b") > 0


RESERVE = """
import sys, time
from singularity_proxy.checkpoint.stores.folder import FolderStore
held = FolderStore(sys.argv[1]).reserve(12 << 20, 0)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.root
@needs_root
def test_what_one_has_reserved_is_not_free_for_another(small: Path) -> None:
    store = FolderStore(str(small / "store"))
    other = subprocess.Popen(
        [sys.executable, "-c", RESERVE, store.root], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    mine = store.reserve(6 * MB, 0)
    with pytest.raises(NoSpace, match=r"about 6\.3 MB are needed") as caught:
        store.reserve(6 * MB, 0)
    assert caught.value.fields["needed"] == 6 * MB
    mine.use(5 * MB)  # as if so much of it had been sent
    store.reserve(4 * MB, 0).release()
    mine.release()
    os.kill(other.pid, signal.SIGKILL)  # who is dead needs no room any more
    other.wait()
    other.stdout.close()
    store.reserve(20 * MB, 0).release()
    with pytest.raises(NoSpace, match="kept for suspends"):
        store.reserve(20 * MB, 4 * MB)
    assert os.listdir(small / "store" / ".reserved") == []
