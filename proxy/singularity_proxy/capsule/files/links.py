"""Files that a process has open or in memory under a name that was removed, while another name
(hard link) is left: named semaphores, which libc makes so, and files that were put in place by a
link.

CRIU opens such a file by a link that it makes for the time of a dump. That link is gone when the
session's files come back, and in home it is nobody's to leave behind. So the image is changed to
open the file by the name that is left. A file of which no name can be found is refused by name
before anything was taken down.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from singularity_proxy.capsule.images.format import (
    BYTES,
    VARINT,
    change_messages,
    encode_message,
    fields,
    messages,
)
from singularity_proxy.capsule.namespace import PRIVATE_FOLDERS, NamespaceCapsule
from singularity_proxy.errors import ImageFailed

DELETED = " (deleted)"
"""What /proc adds to a removed name."""
_FILES, _REMAPS = "files.img", "remap-fpath.img"
_ORIGINAL, _REMAP, _TYPE = 1, 2, 3
"""Fields of a `remap_file_path_entry`."""
_LINKED, _OLD_GHOST = 0, 1 << 31
_REG, _ID, _NAME = 3, 1, 6
"""Fields of a `file_entry`, and of its `reg_file_entry`."""


@dataclass(frozen=True)
class _Opened:
    pid: int
    path: str
    """As it was called."""
    inode: tuple[int, int]
    """(device, number)."""
    named: bool = True
    """Whether it is known to have a name left."""


def find_names(capsule: NamespaceCapsule) -> dict[str, str]:
    """Removed name -> the name that is left, of all such files of the frozen `capsule`. Raises
    `ImageFailed` for one of which no other name is found."""
    found: dict[str, str] = {}
    root = f"/proc/{capsule.init.pid}/root"
    for member in capsule.members():
        pid = member.identity.pid
        for one in (*_open(pid, root), *_in_memory(pid, root)):
            if one.path in found:
                continue
            left = _find_name(one, root)
            if left is None and not one.named:
                continue
            if left is None:
                raise _refused(
                    f"its process {member.pid} uses {one.path}, which was deleted and has another "
                    "name elsewhere"
                )
            found[one.path] = left
    return found


def use_names(folder: str, names: Mapping[str, str]) -> None:
    """Change the image in `folder` so that it opens those files by the names that are left. Raises
    `ImageFailed` when it has one that is not among `names`."""
    try:
        with open(os.path.join(folder, _REMAPS), "rb") as file:
            remaps = file.read()
    except FileNotFoundError:
        return
    try:
        linked = {entry[_ORIGINAL] for entry in map(_numbers, messages(remaps)) if _is_link(entry)}
        if not linked:
            return
        _change(folder, _FILES, lambda entry: _renamed(entry, linked, names))
        _change(folder, _REMAPS, lambda entry: None if _is_link(_numbers(entry)) else entry)
    except (IndexError, KeyError, struct.error, ValueError) as error:
        raise _refused(
            f"its files are not where they are expected in the image ({error})"
        ) from None


def _open(pid: int, root: str) -> Iterator[_Opened]:
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        link = f"{folder}/{number}"
        with contextlib.suppress(OSError):
            path = os.readlink(link)
            if path.endswith(DELETED):
                yield from _still_named(pid, root, path, os.stat(link))


def _in_memory(pid: int, root: str) -> Iterator[_Opened]:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n") for line in file if line.endswith(f"{DELETED}\n")]
    for line in lines:
        words, path = line.split(), "/" + line.partition("/")[2]
        try:
            info = os.stat(f"/proc/{pid}/map_files/{_plain_range(words[0])}")
        except PermissionError:  # an agent that is not root may not look at these
            major, minor = (int(number, 16) for number in words[3].split(":"))
            inode = (os.makedev(major, minor), int(words[4]))
            yield _Opened(pid, path.removesuffix(DELETED), inode, named=False)
        except OSError:
            continue
        else:
            yield from _still_named(pid, root, path, info)


def _plain_range(text: str) -> str:
    """The name in map_files of a range in maps, which has zeros in front."""
    return "-".join(f"{int(end, 16):x}" for end in text.split("-"))


def _still_named(pid: int, root: str, path: str, info: os.stat_result) -> Iterator[_Opened]:
    if not stat.S_ISREG(info.st_mode) or info.st_nlink == 0:
        return
    inode = (info.st_dev, info.st_ino)
    if _inode_of(f"{root}{path}") != inode:  # else that is its name
        yield _Opened(pid, path.removesuffix(DELETED), inode)


def _inode_of(path: str) -> tuple[int, int] | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _find_name(one: _Opened, root: str) -> str | None:
    """The name that is left: in the same folder, or anywhere among the session's own files."""
    folder = os.path.dirname(one.path)
    private = next((base for base in PRIVATE_FOLDERS if one.path.startswith(f"{base}/")), None)
    with contextlib.suppress(OSError):
        for name in os.listdir(root + folder):
            if _inode_of(f"{root}{folder}/{name}") == one.inode:
                return f"{folder}/{name}"
    for at, _, names in os.walk(root + private) if private else ():
        for name in names:
            if _inode_of(f"{at}/{name}") == one.inode:
                return f"{at}/{name}".removeprefix(root)
    return None


def _refused(why: str) -> ImageFailed:
    return ImageFailed(
        f"the process image could not be taken: {why}; the session goes on as it was and its older "
        "checkpoints are kept, and it can be saved once that file is closed",
        step="dump",
        log=[],
        intact=True,
    )


# -- the image -------------------------------------------------------------------------------------


def _numbers(message: bytes) -> dict[int, int]:
    return {f.number: f.number_value for f in fields(message) if f.kind == VARINT}


def _is_link(entry: Mapping[int, int]) -> bool:
    return entry.get(_TYPE, _LINKED) == _LINKED and not entry[_REMAP] & _OLD_GHOST


def _renamed(entry: bytes, linked: set[int], names: Mapping[str, str]) -> bytes:
    parts = []
    for one in fields(entry):
        raw = one.raw
        if one.number == _REG and one.kind == BYTES and _numbers(one.value)[_ID] in linked:
            raw = encode_message(_REG, _with_name(one.value, names))
        parts.append(raw)
    return b"".join(parts)


def _with_name(reg: bytes, names: Mapping[str, str]) -> bytes:
    parts = []
    for one in fields(reg):
        raw = one.raw
        if one.number == _NAME:
            path = os.fsdecode(one.value)
            if path not in names:
                raise _refused(f"it uses {path}, which was deleted and has another name elsewhere")
            raw = encode_message(_NAME, os.fsencode(names[path]))
        parts.append(raw)
    return b"".join(parts)


def _change(folder: str, name: str, change: Callable[[bytes], bytes | None]) -> None:
    path = os.path.join(folder, name)
    with open(path, "rb") as file:
        data = change_messages(file.read(), change)
    with open(path, "wb") as out:
        out.write(data)
