"""System V objects of a capsule, which outlive the processes that made them and are in no image.

They belong to the capsule's IPC namespace and not to a process, so CRIU does not see them: it
refuses shared memory that a process is attached to, and leaves out all else without a word.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

from singularity_proxy.capsule.namespace import NamespaceCapsule

TABLES = "/proc/sysvipc"
"""Where Linux lists those of the reader's namespace; not there where it is built without them."""

LIMIT_S = 10.0

_NAMES = {
    "semid": "System V semaphores",
    "msqid": "a System V message queue",
    "shmid": "System V shared memory that no process is attached to",
}
"""Second column of a table -> what stands in its lines."""


def find_objects(capsule: NamespaceCapsule) -> str:
    """Return what is in `capsule` of what CRIU leaves out, in words; "": nothing. Raises
    `Unavailable` when it has ended, `OSError` when it cannot be looked at."""
    if not os.path.isdir(TABLES):
        return ""
    with capsule.entering(rights=False) as (enter, descriptors):
        try:
            done = subprocess.run(
                [*enter, "cat", *(f"{TABLES}/{name}" for name in ("sem", "msg", "shm"))],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=descriptors,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
                cwd="/",
                timeout=LIMIT_S,
                check=False,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"{TABLES} was not read within {LIMIT_S:.0f} s") from None
    if done.returncode:
        raise OSError(f"{TABLES} cannot be read: {done.stderr.strip()}")
    return name_first(done.stdout.splitlines())


def name_first(lines: Iterable[str]) -> str:
    """Return what the first object in these tables is, in words; "": there is none. Shared memory
    that a process is attached to counts for nothing: CRIU sees it."""
    columns: list[str] = []
    for line in lines:
        words = line.split()
        if words[:1] == ["key"]:
            columns = words
            continue
        found = dict(zip(columns, words, strict=False))
        if found and found.get("nattch", "0") == "0":
            return _NAMES[columns[1]]
    return ""
