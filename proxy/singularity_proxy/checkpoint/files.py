"""Reads files that belong to a session's user, and writes them back, without being led astray.

The user may replace any of them, or a folder on the way, by a link while we look. So no link is
followed, and what was opened is asked what it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from singularity_proxy.errors import BadRequest, FileChanged

KINDS = {
    "device": "device state of a ring (.snap, .journal)",
    "ring": "a ring file",
    "image": "image files of the process tree",
    "scratch": "files of the session: its folder, its private /tmp",
    "record": "small JSON about the rest: what was open, sizes, positions",
}
FILE, FOLDER, LINK = "file", "folder", "link"


@dataclass(frozen=True)
class Part:
    """One file of a checkpoint: where it is now and what it is called there.

    `name` is a relative path with slashes. `path` is where the file is; with `root`, a path below
    that folder on which no link is followed. `data` instead of a path: its contents. `type` is
    "file", "folder" (mode and times of an empty one, or of one with files) or "link".
    """

    name: str
    kind: str
    path: str = ""
    root: str = ""
    data: bytes | None = None
    type: str = FILE

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.kind not in KINDS:
            raise BadRequest(f"'{self.kind}' is no kind of part; kinds are {', '.join(KINDS)}")


def check_name(name: str) -> str:
    """`name` if a part may be called that: it stays below the folder that it is restored into."""
    if name.startswith("/") or "\0" in name or {"", ".", ".."} & set(name.split("/")):
        raise BadRequest(f"'{name}' is not the name of a part: it has to stay in its folder")
    return name


def tree(
    root: str, prefix: str, kind: str, *, uid: int | None = None
) -> tuple[list[Part], list[str]]:
    """(everything below `root` as parts named `prefix/...`, what was left out and why).

    Sockets, pipes, devices, files of other users (with `uid`) and what lies on another file system
    are left out. Called by the agent for folders whose owner is frozen.
    """
    parts: list[Part] = []
    left_out: list[str] = []
    device = os.lstat(root).st_dev

    def walk(relative: str) -> None:
        fd = _open_below(root, relative, os.O_RDONLY | os.O_DIRECTORY) if relative else None
        try:
            names = sorted(os.listdir(root if fd is None else fd))
        finally:
            if fd is not None:
                os.close(fd)
        for name in names:
            inner = f"{relative}/{name}" if relative else name
            info = _lstat_below(root, inner)
            what = _type(info)
            try:
                os.fsencode(inner).decode()
            except UnicodeDecodeError:
                left_out.append(f"{os.fsencode(inner)!r}: its name is not text")
                continue
            if what is None:
                left_out.append(f"{inner}: a socket, pipe or device")
            elif uid is not None and info.st_uid not in (uid, os.geteuid()):
                left_out.append(f"{inner}: belongs to another user")
            elif info.st_dev != device:
                left_out.append(f"{inner}: another file system")
            else:
                parts.append(Part(f"{prefix}/{inner}", kind, inner, root, type=what))
                if what == FOLDER:
                    walk(inner)

    walk("")
    return parts, left_out


def examine(part: Part, uid: int | None) -> os.stat_result | None:
    """Size, mode and times of a part before it is read; None for one that is given as `data`.
    Raises FileChanged when it is not what it was said to be."""
    if part.data is not None:
        return None
    with _readable(part):
        info = _lstat_below(part.root, part.path) if part.root else os.lstat(part.path)
    _check(part, info, uid)
    return info


def open_part(part: Part, expected: os.stat_result, uid: int | None) -> int:
    """A descriptor of a file that was examined. Raises FileChanged."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _readable(part):
        fd = _open_below(part.root, part.path, flags) if part.root else os.open(part.path, flags)
    try:
        info = os.fstat(fd)
        _check(part, info, uid)
        if (info.st_dev, info.st_ino) != (expected.st_dev, expected.st_ino):
            raise _changed(part, "it was replaced by another file")
        check_unchanged(part, expected, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_unchanged(part: Part, expected: os.stat_result, fd: int) -> None:
    """Called after the last read of a file. Raises FileChanged when it was written to meanwhile."""
    info = os.fstat(fd)
    if (info.st_size, info.st_mtime_ns) != (expected.st_size, expected.st_mtime_ns):
        raise _changed(part, "it was written to")


def read_link(part: Part) -> str:
    """Where a part of type link points to. Raises FileChanged."""
    with _readable(part):
        if not part.root:
            return os.readlink(part.path)
        parent, fd = _parent_below(part.root, part.path)
        try:
            return os.readlink(parent, dir_fd=fd)
        finally:
            os.close(fd)


def changed_while_read(part: Part) -> FileChanged:
    """A read got fewer bytes than the file had."""
    return _changed(part, "it became shorter")


def cannot_be_read(part: Part, error: OSError) -> FileChanged:
    """A read failed."""
    return _changed(part, error.strerror or str(error))


def open_new(root_fd: int, relative: str) -> int:
    """A new file below a folder, for writing; no link is followed and none is replaced."""
    name, fd = _walk(root_fd, relative)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def parent_of(root_fd: int, relative: str) -> Iterator[tuple[str, int]]:
    """(last component, descriptor of the folder that it is in), for calls with `dir_fd`."""
    name, fd = _walk(root_fd, relative)
    try:
        yield name, fd
    finally:
        os.close(fd)


# ---- inside --------------------------------------------------------------------------------------


def _type(info: os.stat_result) -> str | None:
    if stat.S_ISREG(info.st_mode):
        return FILE
    if stat.S_ISDIR(info.st_mode):
        return FOLDER
    return LINK if stat.S_ISLNK(info.st_mode) else None


def _check(part: Part, info: os.stat_result, uid: int | None) -> None:
    if _type(info) != part.type:
        raise _changed(part, f"it is not a plain {part.type}")
    if uid is not None and info.st_uid not in (uid, os.geteuid()):
        raise _changed(part, "it belongs to another user")


def _changed(part: Part, why: str) -> FileChanged:
    return FileChanged(f"{part.name} could not be saved: {why}", part=part.name)


@contextlib.contextmanager
def _readable(part: Part) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = "it is gone" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            why = "it, or a folder on the way to it, is a link"
        raise _changed(part, why) from None


def _walk(root_fd: int, relative: str) -> tuple[str, int]:
    """(last component, a new descriptor of its folder); no link is followed below `root_fd`."""
    *folders, name = relative.split("/")
    fd = os.dup(root_fd)
    try:
        for folder in folders:
            inner = os.open(
                folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
            )
            os.close(fd)
            fd = inner
    except BaseException:
        os.close(fd)
        raise
    return name, fd


def _parent_below(root: str, relative: str) -> tuple[str, int]:
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _walk(root_fd, relative)
    finally:
        os.close(root_fd)


def _open_below(root: str, relative: str, flags: int) -> int:
    name, fd = _parent_below(root, relative)
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def _lstat_below(root: str, relative: str) -> os.stat_result:
    name, fd = _parent_below(root, relative)
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    finally:
        os.close(fd)
