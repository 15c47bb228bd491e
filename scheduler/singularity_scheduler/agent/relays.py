"""The relay of a session: its connection files, and its process.

Clients connect to the relay's tcp ports (client.json); the kernel listens on unix sockets in the
session's folder (kernel.json), with the same key, so that messages pass unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

from singularity_proxy.capsule.launcher import (
    Capsule,
    CapsuleSpec,
    last_words,
    spawn,
    stripped_environment,
)
from singularity_proxy.capsule.process import ProcessWatch
from singularity_proxy.errors import Conflict, SingularityError

from .launch import PORTS
from .node import Settings
from .sessions import SessionRecord

READY_LIMIT_S = 30.0
EXIT_PORT_TAKEN = 3


def kernel_connection(client: dict[str, Any], folder: str) -> dict[str, Any]:
    """The connection of the kernel behind the relay that listens at `client`: same key and
    scheme, unix sockets `<folder>/k-1` to `k-5`."""
    ports = {name: place for place, name in enumerate(PORTS, start=1)}
    return {**client, "transport": "ipc", "ip": os.path.join(folder, "k"), **ports}


def write_private(path: str, content: dict[str, Any], owner: tuple[int, int]) -> None:
    """Write a JSON file that only `owner` may read, in a folder of that user's: whatever was put
    in its place is removed, never followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        if os.geteuid() == 0:
            os.fchown(fd, *owner)
        json.dump(content, file)


async def start_relay(
    settings: Settings, record: SessionRecord, on_exit: Callable[[ProcessWatch], None]
) -> Capsule:
    """Start the relay as the session's user and wait until its ports listen. Raises `Conflict`
    with the field `port` when another process has one of them, `SingularityError` otherwise."""
    folder = settings.session_dir(record.session)
    log_path = os.path.join(folder, "relay.log")
    env = stripped_environment(os.environ)
    ready_r, ready_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        identity = spawn(
            CapsuleSpec(
                argv=[
                    *(settings.python, "-m", "singularity_kernel.relay"),
                    *("--connection", os.path.join(folder, "client.json")),
                    *("--kernel", os.path.join(folder, "kernel.json")),
                    *("--ready-fd", str(ready_w)),
                ],
                env=env,
                cwd="/",
                log_path=log_path,
                uid=record.uid,
                gid=record.gid,
                pass_fds=(ready_w,),
            )
        )
    except BaseException:
        os.close(ready_r)
        raise
    finally:
        os.close(ready_w)
    started = False

    def ended(watch: ProcessWatch) -> None:
        if started:
            on_exit(watch)

    relay = Capsule(identity, ended)
    try:
        started = await _is_ready(ready_r)
    finally:
        os.close(ready_r)
        if not started:
            await relay.end(0.0)
    if started:
        return relay
    why = last_words(log_path, record.uid) or "it said nothing"
    if relay.watch.exit_code == EXIT_PORT_TAKEN:
        raise Conflict(
            f"the kernel's ports could not be opened ({why}); nothing was started", port=True
        )
    raise SingularityError(f"the relay of the kernel did not start ({why}); nothing was started")


async def _is_ready(fd: int) -> bool:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), READY_LIMIT_S)
        return os.read(fd, 64) != b""
    except (asyncio.TimeoutError, TimeoutError):
        return False
    finally:
        loop.remove_reader(fd)
