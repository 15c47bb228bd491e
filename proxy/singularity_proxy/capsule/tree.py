"""The processes of a capsule as /proc shows them from outside: who is there, do they run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from .process import ProcessIdentity


@dataclass(frozen=True)
class Member:
    """A process of a capsule; `pid` is the one inside."""

    pid: int
    identity: ProcessIdentity


def descendants(first: ProcessIdentity) -> list[Member]:
    """Everything below a process, parents first; nothing when it has ended. Below pid 1 of a
    capsule that is the capsule: programs that were sent inside (CRIU) are nobody's children there.
    """
    found: list[Member] = []
    try:
        if ProcessIdentity.of(first.pid) != first:
            return []
    except ProcessLookupError:
        return []
    waiting = list(children(first.pid))
    while waiting:
        pid = waiting.pop(0)
        with contextlib.suppress(OSError):
            found.append(Member(inner_pid(pid), ProcessIdentity.of(pid)))
            waiting.extend(children(pid))
    return found


def children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                yield from (int(word) for word in file.read().split())


def inner_pid(pid: int | str) -> int:
    """The pid that process or thread `pid` (below /proc) has in its innermost namespace."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    raise ProcessLookupError(f"there is no process {pid}")


def owner_of(pid: int) -> tuple[int, int]:
    """Real uid and gid of process `pid`."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        found = {line.split(":")[0]: line.split() for line in file}
    return int(found["Uid"][1]), int(found["Gid"][1])


def namespace_of(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def state_of(path: int | str) -> str:
    """The state letter of process or thread `path` (below /proc); "" when it is gone. Raises
    `OSError` when that cannot be told now."""
    try:
        with open(f"/proc/{path}/stat", "rb") as file:
            return chr(file.read().rpartition(b") ")[2][0])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def tracer_of(pid: int) -> int:
    """Who traces process `pid`, as a pid here; 0: nobody, or the process is gone."""
    path = f"/proc/{pid}/status"
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0


def has_ended(identity: ProcessIdentity) -> bool:
    """Whether the process is gone, or waits for somebody to ask how it ended."""
    try:
        same = ProcessIdentity.of(identity.pid) == identity
    except ProcessLookupError:
        return True
    return not same or state_of(identity.pid) in ("Z", "X", "")


def is_stopped(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(state_of(f"{pid}/task/{task}") in ("T", "Z", "X", "") for task in tasks)


def send(identity: ProcessIdentity, signum: int) -> None:
    """Signal exactly this process, if it still is there."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(identity.pid)
        try:
            if ProcessIdentity.of(identity.pid) == identity:
                signal.pidfd_send_signal(fd, signum)
        finally:
            os.close(fd)
