"""The disk of the checkpoint store: an ext4 file system of its own on a file, which can be full,
stand still or refuse writes. In a mount namespace of the campaign, so that nothing of it can be
left."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18


def leave_mounts() -> None:
    """Give this process and all that it starts a mount namespace of its own. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        number = ctypes.get_errno()
        raise OSError(number, f"no mount namespace of its own: {os.strerror(number)}")


async def _run(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise OSError(f"{' '.join(words)}: {said.decode(errors='replace').strip()}")
    return said.decode(errors="replace")


class Disk:
    """A file system of `megabytes` at `place`."""

    def __init__(self, place: Path, image: Path, megabytes: int) -> None:
        self.place, self.image, self.megabytes = place, image, megabytes
        self.trouble = ""
        """What is wrong with it now, by us."""

    async def make(self) -> None:
        """Make and mount it. Raises OSError."""
        with self.image.open("wb") as file:
            file.truncate(self.megabytes << 20)
        await _run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", str(self.image))
        self.place.mkdir(parents=True, exist_ok=True)
        await _run("mount", "-o", "loop,noatime", str(self.image), str(self.place))
        (self.place / "lost+found").rmdir()
        self.place.chmod(0o700)

    async def remove(self) -> None:
        """Unmount it and delete the file."""
        with contextlib.suppress(OSError):
            await _run("umount", "-l", str(self.place))
        self.image.unlink(missing_ok=True)

    @property
    def used(self) -> float:
        """Share of it that is in use."""
        found = os.statvfs(self.place)
        return 1.0 - found.f_bavail / found.f_blocks

    async def fill(self, seconds: float, spare: int) -> None:
        """Leave only `spare` bytes for so many seconds."""
        filler = self.place / ".filler"
        self.trouble = "full"
        try:
            with filler.open("wb") as file:
                free = os.statvfs(self.place)
                with contextlib.suppress(OSError):
                    os.posix_fallocate(
                        file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - spare)
                    )
            await asyncio.sleep(seconds)
        finally:
            filler.unlink(missing_ok=True)
            self.trouble = ""

    async def freeze(self, seconds: float, share: float) -> None:
        """Let every write wait for `share` of each second, for so many seconds: a slow disk."""
        self.trouble = "slow"
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        try:
            while loop.time() < end:
                await _run("fsfreeze", "-f", str(self.place))
                try:
                    await asyncio.sleep(share)
                finally:
                    await _run("fsfreeze", "-u", str(self.place))
                await asyncio.sleep(1.0 - share)
        finally:
            self.trouble = ""

    async def refuse_writes(self, seconds: float) -> bool:
        """Make it read-only for so many seconds; False when it is being written right now."""
        try:
            await _run("mount", "-o", "remount,ro", str(self.place))
        except OSError:
            return False
        self.trouble = "read-only"
        try:
            await asyncio.sleep(seconds)
        finally:
            await _run("mount", "-o", "remount,rw", str(self.place))
            self.trouble = ""
        return True
