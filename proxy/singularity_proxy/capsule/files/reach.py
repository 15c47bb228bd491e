"""Whether processes that came back have nothing open that their user may not open.

CRIU opens files by path with the rights that the session's user has, but for one case: watches of
folders (inotify) are kept by handles, which only the right to read everything opens. Whoever has
that right follows a link, put there at that moment, to any file. So behind such a restore each file
that does not belong to the user is opened once more by its path, with that user's rights.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.tree import owner_of

from . import reconcile

_HANDLES = ("inotify-file.img", "fanotify-file.img")


def needs_handles(folder: str) -> bool:
    """Whether the image in `folder` has watches."""
    return any(os.path.exists(os.path.join(folder, name)) for name in _HANDLES)


def find_foreign(capsule: NamespaceCapsule) -> str | None:
    """Return the path of a file or folder that a process of the restored and still frozen `capsule`
    has open or in memory, though its user may not open it; None when there is none."""
    uid, gid = owner_of(capsule.init.pid)
    found = {(path, inode) for path, inode in _opened(capsule, uid)}
    asked = sorted({path for path, _ in found})
    answers = reconcile.as_user("open", [{"path": path} for path in asked], uid, gid)
    inodes = {path: answer.get("inode") for path, answer in zip(asked, answers, strict=True)}
    for path, inode in sorted(found, key=lambda one: one[0]):
        there = inodes[path]
        if there is None or (inode is not None and tuple(there) != inode):
            return path
    return None


def _opened(capsule: NamespaceCapsule, uid: int) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """(path, file) of all files and folders that are not the user's. Of what is in memory without
    the file: layered file systems call it differently there."""
    for member in capsule.members():
        for kind in ("fd", "map_files"):
            folder = f"/proc/{member.identity.pid}/{kind}"
            for name in os.listdir(folder):
                link = f"{folder}/{name}"
                try:
                    info, path = os.stat(link), os.readlink(link)
                except OSError:
                    continue  # a pipe, or memory without a file
                plain = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
                if plain and info.st_nlink and info.st_uid != uid:
                    yield path, (info.st_dev, info.st_ino) if kind == "fd" else None
