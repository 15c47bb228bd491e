"""What a device proxy does to its own process: whose it is, what it is called, how it ends."""

from __future__ import annotations

import contextlib
import os
from typing import NoReturn

from singularity_proxy.errors import Forbidden, SingularityError


def check_may_become(uid: int) -> None:
    """Raises Forbidden when this process cannot run as `uid`: only root can become someone else."""
    if os.geteuid() not in (0, uid):
        raise Forbidden(
            f"this device proxy runs as uid {os.geteuid()} and cannot serve uid {uid}; "
            "start the node agent as root to serve several users",
            uid=uid,
        )


def become(uid: int, gid: int) -> None:
    """Run as `uid`/`gid` from now on, for ever. Called once, before the first record."""
    if os.getuid() == uid and os.geteuid() == uid:
        return
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise SingularityError(f"cannot become uid {uid}: {error.strerror}", uid=uid) from error


def set_name(name: str) -> None:
    """Show `name` (15 bytes at most count) in `ps` and `top`."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name[:15])


def end_now(socket_path: str, status: int = 0) -> NoReturn:
    """End without running destructors: freeing gigabytes one by one takes longer than the kernel
    needs to take them all, and the device is wanted by someone else."""
    with contextlib.suppress(OSError):
        os.unlink(socket_path)
    os._exit(status)
