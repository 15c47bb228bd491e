"""Whether a process image has everything of its capsule, so that none of it is left out in silence.

`check_tree` looks at a frozen capsule before CRIU does, for what CRIU would leave out without a
word. `check_image` holds an image against the capsule, process by process and descriptor by
descriptor: a difference is an error, and nothing was taken down yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.tree import descendants, inner_pid, namespace_of, state_of
from singularity_proxy.errors import ImageFailed

from .format import VARINT, fields, messages
from .io_rings import with_io_ring
from .system_v import find_objects

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_PID, _THREADS = 1, 5
"""Fields of a `pstree_entry`."""
_FILES_ID = 2
"""Field of a `task_kobj_ids_entry`."""
_FD = 4
"""Field of an `fdinfo_entry`."""


def check_tree(capsule: NamespaceCapsule) -> None:
    """Raise `ImageFailed` when something of the frozen `capsule` cannot be in an image."""
    inside = {member.identity.pid: member.pid for member in capsule.members()}
    ring = with_io_ring(inside)
    if ring is not None:
        raise _refused(f"its process {_name(ring, inside[ring])} uses io_uring")
    try:
        objects = find_objects(capsule)
    except OSError as error:
        raise _refused(f"its System V objects cannot be looked at ({error})") from None
    if objects:
        raise _refused(f"it has {objects} (ipcs shows it), which no image holds")
    main = capsule.main()
    below = {main, *(m.identity for m in descendants(main))} if main else set()
    for member in capsule.members():
        pid = member.identity.pid
        if member.identity not in below:
            raise _refused(f"its process {_name(pid, member.pid)} is not below its main one")
        if state_of(pid) in ("Z", "X", ""):
            continue
        for kind in _NAMESPACES:
            # A restore gives the whole tree clocks of its own, so that they go on.
            first = main if kind == "time" and main is not None else capsule.init
            own, common = namespace_of(pid, kind), namespace_of(first.pid, kind)
            if own and common and own != common:
                raise _refused(
                    f"its process {_name(pid, member.pid)} has a {kind} namespace of its own"
                )


def check_image(capsule: NamespaceCapsule, folder: str) -> None:
    """Raise `ImageFailed` when a process, thread or descriptor of the frozen `capsule` is not in
    the image that `folder` holds, or the other way round."""
    _compare(capsule, folder, _refused)


def check_back(capsule: NamespaceCapsule, folder: str) -> None:
    """Raise `ImageFailed` when what was restored in `capsule` from the image in `folder`, and does
    not run, is not what the image has: a process, thread or descriptor is missing or too many."""
    _compare(capsule, folder, _not_back)


def _compare(capsule: NamespaceCapsule, folder: str, refused: Callable[[str], ImageFailed]) -> None:
    try:
        taken = _read_tree(folder)
        for member in capsule.members():
            pid = member.identity.pid
            threads = taken.pop(member.pid, None)
            if threads is None:
                raise refused(f"its process {_name(pid, member.pid)} is not in the image")
            if state_of(pid) in ("Z", "X", ""):
                continue
            if threads != _threads(pid):
                raise refused(
                    f"threads of its process {_name(pid, member.pid)} are not in the image"
                )
            missing = _descriptors(pid) ^ _read_descriptors(folder, member.pid)
            if missing:
                number = min(missing)
                raise refused(
                    f"its process {_name(pid, member.pid)} has descriptor {number} "
                    f"({_link(pid, number)}) beside the image"
                )
    except (OSError, IndexError, KeyError, ValueError) as error:
        raise refused(f"the image cannot be held against it ({error})") from None
    if taken:
        raise refused(f"its process {min(taken)} is not there")


def _refused(why: str) -> ImageFailed:
    return ImageFailed(
        f"the process image could not be taken because it would not be the whole session: {why}; "
        "the session goes on as it was, and its older checkpoints are kept",
        step="dump",
        log=[],
        intact=True,
    )


def _not_back(why: str) -> ImageFailed:
    return ImageFailed(
        f"what came back from the process image is not what it holds: {why}; the checkpoint is as "
        "it was",
        step="restore",
        log=[],
    )


def _name(pid: int, inside: int) -> str:
    """The pid inside, and what the process calls itself."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return f"{inside} ({file.read().strip()})"
    except OSError:
        return str(inside)


def _threads(pid: int) -> set[int]:
    return {inner_pid(f"{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")}


def _descriptors(pid: int) -> set[int]:
    return {int(number) for number in os.listdir(f"/proc/{pid}/fd")}


def _link(pid: int, number: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return "closed"


# -- the image -------------------------------------------------------------------------------------


def _read_tree(folder: str) -> dict[int, set[int]]:
    """Pid -> its threads, of each process in the image."""
    found: dict[int, set[int]] = {}
    for message in _read(folder, "pstree.img"):
        numbers = [(f.number, f.number_value) for f in fields(message) if f.kind == VARINT]
        pid = next(value for number, value in numbers if number == _PID)
        found[pid] = {value for number, value in numbers if number == _THREADS}
    return found


def _read_descriptors(folder: str, pid: int) -> set[int]:
    [ids] = _read(folder, f"ids-{pid}.img")
    table = next(f.number_value for f in fields(ids) if f.number == _FILES_ID)
    return {
        field.number_value
        for message in _read(folder, f"fdinfo-{table}.img")
        for field in fields(message)
        if field.number == _FD
    }


def _read(folder: str, name: str) -> list[bytes]:
    with open(os.path.join(folder, name), "rb") as file:
        return list(messages(file.read()))
