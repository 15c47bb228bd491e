"""Files outside of a session's own folders, looked at and put right with the user's rights.

`python outside.py` reads a JSON document from stdin and prints one; `files.py` starts it as the
session's user, because a link that the user put in a file's place must lead no further than the
user may go. Imports nothing of ours, so that it starts anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import sys
import time
from typing import Any

WHOLE_BYTES = 64 << 20
"""A file up to this size is hashed whole, of a longer one the first and the last half of it."""

LOCKED_S = 2.0
"""So long a lock of somebody else may last before it counts: a database takes many for a moment."""

_F_OFD_GETLK = 36
_FLOCK = "hh4xqqi4x"  # struct flock: type, whence, start, length, pid


def digest(fd: int, size: int) -> str:
    """Of the first `size` bytes of an open file, in hex."""
    known = hashlib.blake2b(digest_size=16)
    ranges = [(0, size)]
    if size > WHOLE_BYTES:
        ranges = [(0, WHOLE_BYTES // 2), (size - WHOLE_BYTES // 2, size)]
    for start, end in ranges:
        at = start
        while at < end:
            data = os.pread(fd, min(1 << 20, end - at), at)
            if not data:
                break
            known.update(data)
            at += len(data)
    return known.hexdigest()


# -- looking ---------------------------------------------------------------------------------------


def examine(wanted: dict[str, Any]) -> dict[str, Any]:
    """Tell how the file is, held against what the checkpoint knows: `found` (a `Found`), `size`,
    `inode` as (device, number), whether somebody else `locked` it, the inode of its `folder`, and
    the `device` on which that is or would be.
    """
    path = wanted["path"]
    folder = os.path.dirname(path)
    answer: dict[str, Any] = {"folder": _inode(folder), "locked": False}
    answer["device"] = _device(folder)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return {**answer, "found": _why_not(error), "error": error.strerror}
    try:
        info = os.fstat(fd)
        answer |= {"size": info.st_size, "inode": [info.st_dev, info.st_ino]}
        if not stat.S_ISREG(info.st_mode):
            return {**answer, "found": "replaced"}
        found = _compare(fd, info, wanted)
        if wanted["use"] == "write":
            if found not in ("same", "longer") and _leads_elsewhere(path, info, wanted):
                return {**answer, "found": "linked"}
            try:
                writing = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                return {**answer, "found": "read-only", "error": error.strerror}
            try:
                answer["locked"] = _is_locked(fd, writing, wanted["locks"])
            finally:
                os.close(writing)
        elif wanted["locks"]:
            answer["locked"] = _is_locked(fd, None, wanted["locks"])
        return {**answer, "found": found}
    finally:
        os.close(fd)


def _leads_elsewhere(path: str, info: os.stat_result, wanted: dict[str, Any]) -> bool:
    """Whether a link in the file's place leads to another file than the one that was open."""
    return os.path.islink(path) and info.st_ino != wanted["inode"]


def _why_not(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return "missing"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "unreadable"
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return "replaced"
    return "unreachable"


def _inode(path: str) -> list[int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return [info.st_dev, info.st_ino]


def _device(path: str) -> int | None:
    while (found := _inode(path)) is None and path != "/":
        path = os.path.dirname(path)
    return None if found is None else int(found[0])


def _compare(fd: int, info: os.stat_result, wanted: dict[str, Any]) -> str:
    if wanted["kind"] == "sqlite":
        head = os.pread(fd, 20, 0)
        if not head.startswith(b"SQLite format 3\0") or (head[18:] == b"\2\2") != wanted["wal"]:
            return "replaced"
    if info.st_size < wanted["size"]:
        return "shorter"
    longer = info.st_size > wanted["size"]
    if wanted["digest"]:
        same = digest(fd, wanted["size"]) == wanted["digest"]
    else:
        same = longer or info.st_mtime_ns == wanted["mtime_ns"]
    if same:
        return "longer" if longer else "same"
    return "rewritten" if longer else "changed"


def _is_locked(fd: int, writing: int | None, locks: list[dict[str, Any]]) -> bool:
    """Whether one of `locks` could not be had now, nor within `LOCKED_S`."""
    deadline = time.monotonic() + LOCKED_S
    while True:
        if not any(_conflicts(fd, writing, lock) for lock in locks):
            return False
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)


def _conflicts(fd: int, writing: int | None, lock: dict[str, Any]) -> bool:
    if lock["style"] == "flock":
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if lock["write"] else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    if lock["write"] and writing is None:
        return False
    length = 0 if lock["end"] is None else lock["end"] - lock["start"] + 1
    asked = struct.pack(
        _FLOCK,
        fcntl.F_WRLCK if lock["write"] else fcntl.F_RDLCK,
        os.SEEK_SET,
        lock["start"],
        length,
        0,
    )
    command = _F_OFD_GETLK if lock["style"] == "ofd" else fcntl.F_GETLK
    at = writing if lock["write"] and writing is not None else fd
    told: int = struct.unpack(_FLOCK, fcntl.fcntl(at, command, asked))[0]
    return told != fcntl.F_UNLCK


# -- putting right ---------------------------------------------------------------------------------


def cut(path: str, size: int, label: str, expected: int) -> str:
    """Keep a copy of `path` beside it and cut it to `size` bytes; returns the copy's name. Raises
    `OSError` when it is not `expected` bytes long: somebody writes to it at this moment."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        copy, to = _new_beside(path, label, info.st_mode)
        try:
            _copy(fd, to, None)
            os.fsync(to)
            os.utime(to, ns=(info.st_atime_ns, info.st_mtime_ns))
            if os.fstat(fd).st_size != expected:
                raise OSError(errno.EBUSY, "it is being written to")
        except BaseException:
            os.unlink(copy)
            raise
        finally:
            os.close(to)
        os.ftruncate(fd, size)
        return copy
    finally:
        os.close(fd)


def copy_aside(path: str, size: int, label: str) -> str:
    """Copy the first `size` bytes of `path` to a new file beside it; returns its name."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy, to = _new_beside(path, label, os.fstat(fd).st_mode)
        try:
            _copy(fd, to, size)
        except BaseException:
            os.unlink(copy)
            raise
        finally:
            os.close(to)
        return copy
    finally:
        os.close(fd)


def make(path: str, size: int, mode: int) -> None:
    """Make the empty file `path`, of zeros up to `size`, or make a shorter one as long; nothing is
    cut."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, mode & 0o666)
    try:
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _new_beside(path: str, label: str, mode: int) -> tuple[str, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for number in range(1000):
        copy = f"{path}.{label}" + (f".{number}" if number else "")
        with contextlib.suppress(FileExistsError):
            return copy, os.open(copy, flags, stat.S_IMODE(mode) & 0o777)
    raise FileExistsError(f"there are 1000 copies of {path}")


def _copy(fd: int, to: int, size: int | None) -> None:
    at = 0
    while data := os.pread(fd, 1 << 20 if size is None else min(1 << 20, size - at), at):
        done = 0
        while done < len(data):  # a part of it on a disk that is nearly full
            done += os.write(to, data[done:])
        at += done


def open_once(path: str) -> list[int]:
    """Open a file or folder, to read or to write; (device, number). Raises OSError."""
    flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(path, os.O_RDONLY | flags)
    except PermissionError:
        fd = os.open(path, os.O_WRONLY | flags)
    info = os.fstat(fd)
    os.close(fd)
    return [info.st_dev, info.st_ino]


def put_right(wanted: dict[str, Any], label: str) -> dict[str, Any]:
    """Do what one document says; `copy` is the name of the file that was made, `inode` that of the
    file that the session goes on with."""
    path, size = wanted["path"], wanted["size"]
    if wanted["do"] == "cut":
        return {"copy": cut(path, size, label, wanted["expected"]), "inode": _inode(path)}
    if wanted["do"] == "aside":
        copy = copy_aside(path, size, label)
        return {"copy": copy, "inode": _inode(copy)}
    if wanted["do"] == "stand in":
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
    make(path, size, wanted["mode"])
    return {"copy": path, "inode": _inode(path)}


def main() -> None:
    asked = json.load(sys.stdin)
    answers: list[dict[str, Any]] = []
    for one in asked["files"]:
        try:
            if asked["do"] == "examine":
                answers.append(examine(one))
            elif asked["do"] == "open":
                answers.append({"inode": open_once(one["path"])})
            else:
                answers.append(put_right(one, asked["label"]))
        except OSError as error:
            answers.append({"found": "unreachable", "error": error.strerror or str(error)})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
