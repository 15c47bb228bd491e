"""A process tree that has everything open which a restore could touch, and a proof of its image."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.files import record as open_files
from singularity_proxy.capsule.files import rehearsal, scratch
from singularity_proxy.capsule.images import image, proof
from singularity_proxy.capsule.images.files import made_paths
from singularity_proxy.capsule.namespace import NamespaceCapsule

from .capsules import Place

BUSY = """
import fcntl, mmap, os, socket, subprocess, sys, threading, time
counter = open("counter", "a", buffering=1)
rows = open("rows", "w+"); rows.write("0123456789" * 500); rows.flush(); rows.seek(100)
deleted = open("deleted", "w+"); deleted.write("boo"); deleted.flush(); os.unlink("deleted")
locked = open("locked", "w"); fcntl.flock(locked, fcntl.LOCK_EX)
record = open("record", "w"); record.write("x"); record.flush(); fcntl.lockf(record, fcntl.LOCK_EX)
open("leased", "w").close(); leased = os.open("leased", os.O_RDONLY)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # a writer would end us (SIGIO)
taken = open("taken", "w")
mapped = open("mapped", "w+b"); mapped.truncate(8192); memory = mmap.mmap(mapped.fileno(), 8192)
named = socket.socket(socket.AF_UNIX); named.bind("named"); named.listen()
os.mkfifo("fifo"); fifo = os.open("fifo", os.O_RDWR); os.write(fifo, b"piped")
listener = socket.create_server(("127.0.0.1", 0))
here = socket.create_server(("0.0.0.0", 0))
away = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); away.connect(("192.0.2.1", 9))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0" + os.getcwd()); abstract.listen()
master, slave = os.openpty()
child = subprocess.Popen([sys.executable, "-c", "import time\\nwhile True: time.sleep(0.001)"])
thread = threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True)
thread.start()
own = open("/tmp/own", "a", buffering=1)
print("ready", listener.getsockname()[1], flush=True)
n = 0
while True:
    n += 1
    fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error when somebody else has it
    fcntl.flock(taken, fcntl.LOCK_UN)
    counter.write(f"{n}\\n"); own.write("x\\n"); memory[:8] = n.to_bytes(8, "little")
    time.sleep(0.002)
"""


class Taken:
    """The image of a capsule, with what a checkpoint has beside it; the capsule is thawed again
    with `capsule.thaw()`."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        folder.mkdir()
        self.image, self.archive = folder / "image", folder / "scratch.tar"

    async def take(self, capsule: NamespaceCapsule) -> None:
        await asyncio.to_thread(self._take, capsule)

    def _take(self, capsule: NamespaceCapsule) -> None:
        capsule.freeze()
        own = str(self.place.folder)
        self.record = open_files.describe(
            capsule, session_folder=own, ring_folder=str(self.place.shm)
        )
        self.roots = [own, "/dev/shm", "/tmp"]
        skip = [str(self.place.tmp)]
        scratch.pack(capsule, str(self.archive), self.roots, skip)
        self.processes = len(capsule.members())
        image.dump(capsule, str(self.image))

    async def sealed(self, name: str = "sealed", **more: Any) -> NamespaceCapsule:
        """A capsule for a proof, with the session's own files in it."""
        self.own = self.folder / name
        for folder in (self.own, self.own / "s", self.own / "s/tmp", self.own / "shm"):
            folder.mkdir()
            os.chown(folder, self.place.uid, -1)
        self.folder.chmod(0o711)  # stand-ins are made as the session's user
        self.folder.parent.chmod(0o711)
        owner = {"uid": self.place.uid, "gid": None}
        self.rehearsal = await asyncio.to_thread(
            rehearsal.rehearse,
            self.record,
            own=(str(self.place.folder), str(self.own / "s")),
            made=made_paths(str(self.image)),
            **owner,
        )
        capsule = await self.place.prepare(
            keep=self.rehearsal.shown,
            moved={
                str(self.place.folder): str(self.own / "s"),
                str(self.place.shm): str(self.own / "shm"),
            },
            log_path=str(self.own / "s/capsule.log"),
            tmp=str(self.own / "s/tmp"),
            views=self.rehearsal.views,
            **more,
        )
        await asyncio.to_thread(scratch.unpack, capsule, str(self.archive), self.roots)
        return capsule

    async def prove(self, capsule: NamespaceCapsule) -> float:
        return await asyncio.to_thread(
            proof.prove,
            capsule,
            str(self.image),
            plan=self.rehearsal.plan,
            processes=self.processes,
        )

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def fingerprint(folder: Path) -> dict[str, Any]:
    """All that can be seen of the files below `folder`: kinds, numbers, times and contents."""
    return dict(_seen(folder))


def _seen(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        yield (
            str(path),
            (info.st_mode, info.st_ino, info.st_nlink, info.st_size, info.st_mtime_ns, content),
        )
