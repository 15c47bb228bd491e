"""A user exchanges files for links at the moment at which a suspended session comes back: between
the look that was taken with that user's rights and CRIU, which opens each file by its path."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from singularity_proxy.capsule.files import reconcile, scratch
from singularity_proxy.capsule.files.rules import Way
from singularity_proxy.capsule.images import image
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.errors import ImageFailed
from support.attacks import attack
from support.capsule_returns import back, bring_back, saved
from support.capsules import Place, Places, needs_criu
from support.uids import needs_own_uids

pytestmark = [needs_criu, needs_own_uids]

Measured = Callable[[str], None]

SECRET = "the secret of root\n" * 100

OPENS = """
import ctypes, mmap, os, socket, sys, time

def watch(path):
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(0)
    assert libc.inotify_add_watch(fd, path.encode(), 0x100) >= 0  # IN_CREATE
    return fd

os.makedirs("d", exist_ok=True)
for path in ("a", "d/b", "/tmp/c"):
    with open(path, "w") as file:
        file.write("x" * {size})
    os.chmod(path, 0o600)
what = {what!r}
if what == "appended":
    held = open("a", "a")
elif what == "read":
    held = open("a")
elif what == "below a folder":
    held = open("d/b", "r+")
elif what == "in memory":
    with open("a", "r+b") as file:
        held = mmap.mmap(file.fileno(), 0)
elif what == "code in memory":
    with open("a", "r+b") as file:
        held = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
elif what == "scratch":
    held = open("/tmp/c", "r+")
elif what == "a folder":
    held = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
elif what == "the working folder":
    os.chdir("d")
elif what == "read beside a watch":
    held = open("a"), watch("d")
elif what == "a socket":
    held = socket.socket(socket.AF_UNIX)
    held.bind("d/sock")
    held.listen()
print("opened", flush=True)
time.sleep(600)
"""  # noqa: E501

PLACES = {
    "appended": "a",
    "read": "a",
    "below a folder": "d",
    "in memory": "a",
    "code in memory": "a",
    "scratch": "c",
    "a folder": "d",
    "the working folder": "d",
    "read beside a watch": "a",
    "a socket": "d",
}
"""What is open -> what is exchanged for a link; a name in home, or in the private /tmp."""


class Secret:
    """A file of root, and a folder of root with files of the same names; nobody else may enter."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o711)
        self.folder = root / "of-root"
        self.folder.mkdir()
        self.file = root / "secret"
        for path in (self.file, self.folder / "b", self.folder / "sock"):
            path.write_text(SECRET)
            path.chmod(0o600)
        self.folder.chmod(0o700)
        self._before = self._look()

    def _look(self) -> list[tuple[int, ...]]:
        found = []
        for path in (self.file, self.folder, self.folder / "b", self.folder / "sock"):
            info = path.stat()
            found.append((info.st_ino, info.st_uid, info.st_mode, info.st_size, info.st_mtime_ns))
        return found

    def check(self) -> None:
        """It is as it was."""
        assert self._look() == self._before
        for path in (self.file, self.folder / "b", self.folder / "sock"):
            assert path.read_text() == SECRET

    def inodes(self) -> set[tuple[int, int]]:
        paths = (self.file, self.folder, *self.folder.iterdir())
        return {(p.stat().st_dev, p.stat().st_ino) for p in paths}


def list_opened(capsule: NamespaceCapsule) -> Iterator[tuple[str, tuple[int, int]]]:
    """(link in /proc, file) of all that the processes have open or in memory; not the working
    folder, in which nothing opens without the right to it."""
    for member in capsule.members():
        for kind in ("fd", "map_files"):
            folder = f"/proc/{member.identity.pid}/{kind}"
            for name in os.listdir(folder):
                try:
                    info = os.stat(f"{folder}/{name}")
                except OSError:
                    continue
                yield f"{folder}/{name}", (info.st_dev, info.st_ino)


async def exchange(place: Place, what: str, secret: Secret, checkpoint: Path) -> bool:
    """Save a session and bring it back while its file becomes a link; True when it was refused."""
    capsule = await place.python(OPENS.format(what=what, size=len(SECRET)))
    await place.logged("opened")
    record = await saved(place, capsule, checkpoint)
    await capsule.end(0)
    done = reconcile.reconcile(record, **back(place, Way.RESUME), label="x")
    capsule = await place.prepare()
    roots = [str(place.folder), "/dev/shm"]
    await asyncio.to_thread(scratch.unpack, capsule, str(checkpoint / "scratch"), roots)
    name = PLACES[what]
    victim = (place.tmp if what == "scratch" else place.home) / name
    target = secret.folder if victim.is_dir() else secret.file
    victim.rename(f"{victim}.old")
    victim.symlink_to(target)
    os.chown(victim, place.uid, place.uid, follow_symlinks=False)
    try:
        await asyncio.to_thread(image.restore, capsule, str(checkpoint / "image"), plan=done.plan)
    except ImageFailed:
        return True
    opened = dict(list_opened(capsule))
    assert opened
    taken = secret.inodes()
    assert [link for link, inode in opened.items() if inode in taken] == []
    return False


@pytest.fixture
def visible() -> Iterator[Path]:
    """A folder that is the same inside of a capsule, whose /tmp is its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@attack(
    "links-while-a-session-comes-back",
    "a user exchanges what a suspended session has open (files in home and /tmp, folders, sockets, "
    "what is in memory) for links to files of root, behind the look and before CRIU opens it",
    "the session is not given a descriptor of them; they are neither changed nor removed",
)
@pytest.mark.asyncio
@pytest.mark.parametrize("what", PLACES)
async def test_links_while_a_session_comes_back(
    what: str, measured: Measured, tmp_path: Path, visible: Path
) -> None:
    secret = Secret(visible)
    async with Places() as place:
        refused = await exchange(place, what, secret, tmp_path / "c")
        secret.check()
        measured(f"{what}: {'refused' if refused else 'nothing of it was open'}")


@pytest.mark.asyncio
async def test_a_watch_of_a_folder_comes_back(tmp_path: Path) -> None:
    """What CRIU needs the right to read everything for."""
    code = OPENS.partition("os.makedirs")[0] + (
        "os.makedirs('d'); held = watch('d'); print('opened', flush=True)\n"
        "print('heard', len(os.read(held, 4096)) > 16, flush=True); time.sleep(600)"
    )
    async with Places() as place:
        capsule = await place.python(code)
        await place.logged("opened")
        record = await saved(place, capsule, tmp_path / "c")
        await capsule.end(0)
        done = reconcile.reconcile(record, **back(place, Way.RESUME), label="x")
        await bring_back(place, tmp_path / "c", done.plan)
        made = place.home / "d" / "new"
        made.touch()
        await place.logged("heard True")
