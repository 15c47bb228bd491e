"""Files in a process image: opened by CRIU as `reconcile` decided, and by no other rule.

CRIU refuses a file whose size or mode is not what it was, and would wait for ever for a lock that
somebody else holds. So size and mode of files outside are taken out of the image (they were looked
at with the user's rights), and where it was decided so the flags, the position or the path of a
descriptor are changed and locks left out. The image as it was taken is kept beside, so that it can
be restored again. After a restore `verify` says whether CRIU, which has all rights, was led to
the same files as the user's rights.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from singularity_proxy.capsule.files.reconcile import Change, Plan
from singularity_proxy.capsule.files.rules import Action
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.errors import ImageFailed

from .format import (
    BYTES,
    VARINT,
    change_messages,
    encode_message,
    encode_number,
    fields,
    messages,
)

_FILES, _LOCKS, _GHOSTS = "files.img", "filelocks.img", "remap-fpath.img"
_AS_TAKEN = ".taken"

_REG = 3
"""Field of a `file_entry`: it is a file. Below: fields of that `reg_file_entry`."""
_ID, _FLAGS, _POS, _NAME, _SIZE, _MODE = 1, 2, 3, 6, 8, 10
_LOCK_PID, _LOCK_FD = 3, 4
_GHOST_OF = 1

_UNIX, _FIFO = 16, 17
"""Fields of a `file_entry`: it is a Unix socket, or a pipe with a name."""
_UNIX_NAME = 11
"""Field of a `unix_sk_entry`."""
_FIFO_REG = 3
"""Field of a `fifo_entry`: the id of the `reg_file_entry` that has its name."""


def apply(folder: str, plan: Plan) -> None:
    """Change the image in `folder`, each time from how it was taken. Raises `ImageFailed` when it
    is not the image that is expected."""
    changes = {os.fsencode(one.path): one for one in plan.changes}
    try:
        ghosts = _ghosts(folder)
        _rewrite(folder, _FILES, lambda entry: _changed(entry, changes, ghosts))
        _rewrite(folder, _LOCKS, lambda lock: _kept(lock, plan.unlocked))
    except (IndexError, struct.error, ValueError, KeyError) as error:
        raise _unexpected(error) from None


def _unexpected(error: Exception) -> ImageFailed:
    return ImageFailed(
        f"the process image could not be restored: its files are not where they are expected "
        f"in it ({error}); the checkpoint is as it was",
        step="restore",
        log=[],
    )


def verify(capsule: NamespaceCapsule, plan: Plan) -> str | None:
    """Return the path of a file that is not the one which the user's rights led to, in the restored
    and still frozen `capsule`; None when all are."""
    wanted = {one.target or one.path: one.inode for one in plan.changes if one.inode}
    for member in capsule.members():
        folder = f"/proc/{member.identity.pid}/fd"
        for number in os.listdir(folder):
            link = f"{folder}/{number}"
            inode = wanted.get(os.readlink(link))
            if inode is None:
                continue
            info = os.stat(link)
            if (info.st_dev, info.st_ino) != inode:
                return os.readlink(link)
    return None


def made_paths(folder: str) -> frozenset[str]:
    """Paths at which a restore of the image in `folder` makes something: of files that were
    deleted and of sockets; also of pipes with a name, which it fills. Raises `ImageFailed` when it
    is not the image that is expected."""
    regular: dict[int, bytes] = {}
    found: set[bytes] = set()
    piped: set[int] = set()
    try:
        with open(os.path.join(folder, _FILES), "rb") as file:
            entries = [one for entry in messages(file.read()) for one in fields(entry)]
        for one in entries:
            if one.number not in (_REG, _UNIX, _FIFO) or one.kind != BYTES:
                continue
            inner = {f.number: f for f in fields(one.value)}
            if one.number == _REG:
                regular[inner[_ID].number_value] = inner[_NAME].value
            elif one.number == _UNIX:
                found.add(inner[_UNIX_NAME].value.rstrip(b"\0"))
            elif _FIFO_REG in inner:
                piped.add(inner[_FIFO_REG].number_value)
        ghosts = _ghosts(folder)
    except (OSError, IndexError, struct.error, ValueError, KeyError) as error:
        raise _unexpected(error) from None
    found |= {name for id, name in regular.items() if id in ghosts or id in piped}
    return frozenset(os.fsdecode(name) for name in found if name.startswith(b"/"))


def _rewrite(folder: str, name: str, change: Callable[[bytes], bytes | None]) -> None:
    path = os.path.join(folder, name)
    taken = path + _AS_TAKEN
    try:
        with open(taken, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return  # a session without locks
        with open(taken, "rb") as file:
            data = file.read()
    new = change_messages(data, change)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as out:
        out.write(new)


def _ghosts(folder: str) -> frozenset[int]:
    """Ids of files that were deleted: a new one can have their path."""
    found: set[int] = set()

    def see(message: bytes) -> bytes:
        found.update(f.number_value for f in fields(message) if f.number == _GHOST_OF)
        return message

    try:
        with open(os.path.join(folder, _GHOSTS), "rb") as file:
            change_messages(file.read(), see)
    except FileNotFoundError:
        pass
    return frozenset(found)


def _changed(entry: bytes, changes: dict[bytes, Change], ghosts: frozenset[int]) -> bytes:
    parts = []
    for one in fields(entry):
        raw = one.raw
        if one.number == _REG and one.kind == BYTES:
            reg = {f.number: f for f in fields(one.value)}
            change = changes.get(reg[_NAME].value)
            if change is not None and reg[_ID].number_value not in ghosts:
                raw = encode_message(_REG, _changed_file(one.value, change))
        parts.append(raw)
    return b"".join(parts)


def _changed_file(reg: bytes, change: Change) -> bytes:
    values = {f.number: f.number_value for f in fields(reg) if f.kind == VARINT}
    flags, position = values[_FLAGS], values[_POS]
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    if change.action is Action.READ and writes:
        flags = flags & ~os.O_ACCMODE | os.O_RDONLY
    elif change.action is Action.SEVER:
        flags = flags & os.O_CLOEXEC | os.O_PATH
    elif change.action is Action.END and writes and position >= change.at_end:
        position = change.end
    elif change.action is Action.ANEW:
        position = 0
    out = []
    for one in fields(reg):
        if one.number in (_SIZE, _MODE):
            continue
        if one.number == _FLAGS:
            out.append(encode_number(_FLAGS, flags))
        elif one.number == _POS:
            out.append(encode_number(_POS, position))
        elif one.number == _NAME and change.target:
            out.append(encode_message(_NAME, os.fsencode(change.target)))
        else:
            out.append(one.raw)
    return b"".join(out)


def _kept(lock: bytes, unlocked: frozenset[tuple[int, int]]) -> bytes | None:
    values = {f.number: f.number_value for f in fields(lock) if f.kind == VARINT}
    return None if (values[_LOCK_PID], values[_LOCK_FD]) in unlocked else lock
