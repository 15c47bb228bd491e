"""The agent's folders: one agent per state folder, no strays of the agent before it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from typing import TYPE_CHECKING

from singularity_proxy.errors import Conflict, SingularityError

from .processes import end_marked

if TYPE_CHECKING:
    from .node import Settings
    from .sessions.record import SessionRecord


def lock(folder: str) -> tuple[str, int]:
    """Make the state folder and hold it for this process; another agent on it is refused with one
    sentence. Returns its absolute path and the descriptor that holds it."""
    state_dir = os.path.abspath(folder)
    os.makedirs(state_dir, 0o700, exist_ok=True)
    path = os.path.join(state_dir, "agent.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Conflict(
            f"another node agent already runs with the state folder {state_dir}; stop it first, "
            "or give this one a folder of its own"
        ) from None
    return state_dir, fd


async def end_strays(private: str, owned: set[str]) -> None:
    """End device proxies that no session owns, and remove what they left in the private folder."""
    for name in os.listdir(private):
        path = os.path.join(private, name)
        if name.endswith((".sock", ".log")):
            socket_path = path.removesuffix(".log").removesuffix(".sock") + ".sock"
            if socket_path in owned:
                continue
            await end_marked(socket_path.encode(), in_environment=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def new_folder(base: str) -> str:
    return tempfile.mkdtemp(prefix="singularity-", dir=base)


def own_folder(folder: str, mode: int) -> None:
    """Make `folder`, or check that it is ours: /tmp is everybody's."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, mode)
    info = os.lstat(folder)
    if info.st_uid != os.geteuid() or not os.path.isdir(folder) or os.path.islink(folder):
        raise SingularityError(
            f"the folder {folder} belongs to uid {info.st_uid}; choose another one"
        )
    os.chmod(folder, mode)


def open_session_folders(settings: Settings, record: SessionRecord) -> None:
    """Make the folders of a session that starts or comes back here, its user's alone."""
    folders = (
        settings.session_dir(record.session),
        settings.session_shm(record.session),
        settings.session_tmp(record.session),
    )
    for folder in folders:
        os.mkdir(folder, 0o700)
    os.chmod(folders[-1], 0o1777)  # as programs expect of /tmp; the folder around it is 0700
    if os.geteuid() == 0:
        # What is inside first: as soon as a folder is the user's, a link may stand in its place.
        for folder in reversed(folders):
            os.chown(folder, record.uid, record.gid, follow_symlinks=False)
