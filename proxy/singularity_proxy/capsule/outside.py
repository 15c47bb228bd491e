"""Files outside of a session's own folders, looked at and put right with the user's rights.

`python outside.py` reads a JSON document from stdin and prints one; `files.py` starts it as the
session's user, because a link that the user put in a file's place must lead no further than the
user may go. Imports nothing of ours, so that it starts anywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from typing import Any

WHOLE_BYTES = 64 << 20
"""A file up to this size is hashed whole, of a longer one the first and the last half of it."""


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


def examine(wanted: dict[str, Any]) -> str:
    """How the file differs from what the checkpoint knows: "same", "missing", "shorter", "longer"
    or "changed" (of the same length, or not the same up to that length)."""
    try:
        fd = os.open(wanted["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        info = os.stat(wanted["path"])
        return _compare(info.st_size, wanted["size"])
    except OSError:
        return "missing"
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return "missing"
        found = _compare(info.st_size, wanted["size"])
        known = wanted.get("digest")
        if known and found in ("same", "longer") and digest(fd, wanted["size"]) != known:
            return "changed" if found == "same" else "rewritten"
        return found
    finally:
        os.close(fd)


def _compare(size: int, wanted: int) -> str:
    return "same" if size == wanted else "shorter" if size < wanted else "longer"


def set_back(path: str, size: int, label: str) -> str:
    """Keep a copy of `path` beside it and cut it to `size` bytes; returns the copy's name."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        for number in range(1000):
            copy = f"{path}.{label}" + (f".{number}" if number else "")
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                to = os.open(copy, flags, stat.S_IMODE(info.st_mode) & 0o777)
                break
        else:
            raise FileExistsError(f"there are 1000 copies of {path}")
        try:
            at = 0
            while data := os.pread(fd, 1 << 20, at):
                at += os.write(to, data)  # a part of it on a disk that is nearly full
            os.fsync(to)
            os.utime(to, ns=(info.st_atime_ns, info.st_mtime_ns))
        except BaseException:
            os.unlink(copy)
            raise
        finally:
            os.close(to)
        os.ftruncate(fd, size)
        return copy
    finally:
        os.close(fd)


def main() -> None:
    asked = json.load(sys.stdin)
    answers: list[dict[str, Any]] = []
    for one in asked["files"]:
        try:
            if asked["do"] == "examine":
                answers.append({"found": examine(one)})
            else:
                answers.append({"copy": set_back(one["path"], one["size"], asked["label"])})
        except OSError as error:
            answers.append({"error": error.strerror or str(error)})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
