"""A kernel that is reached at another place than before, in a Jupyter server that still runs.

That happens when the node of its relay is lost: the session goes on elsewhere with a new relay, and
the old ports lead nowhere. The server's manager of the kernel learns the new ones, what watches the
kernel connects again, and websockets are closed, upon which the browser opens them anew. Variables,
kernel id and notebook stay.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from singularity_proxy.errors import NotFound, SingularityError

CLOSE_S = 5.0
"""How long a browser may take to agree that its websocket is closed."""

PLACE = ("ip", "transport", "shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")

KEYS = ("curve_publickey", "curve_secretkey")
"""Of a place that is reached over TCP."""

_CHANNELS = "jupyter_server.services.kernels.connection.channels"


class Follower:
    """Notices that a session has another connection; one per provisioner."""

    def __init__(self, epoch: int | None = None) -> None:
        """`epoch`: the session's when its connection was told; None: not known."""
        self._epoch = epoch

    async def look(self, client: Any, session: dict[str, Any], provisioner: Any) -> None:
        """After every answer about `session`. It can have changed only when the session has come
        back from the store, which raises its epoch."""
        epoch = session.get("epoch")
        if session.get("process_state") != "live" or epoch == self._epoch:
            return
        try:
            await move(provisioner, await client.connection(session["id"]))
        except NotFound:
            if not provisioner.connection_info.get("shell_port"):
                return  # it never had one here: its node is away for a moment
            # Else it has none, or its node is away: another return will tell.
        except SingularityError:
            return  # asked again next time
        self._epoch = epoch


async def move(provisioner: Any, given: dict[str, Any]) -> None:
    """Let everything in this process reach the kernel of `provisioner` as `given` says."""
    before, manager = provisioner.connection_info, provisioner.parent
    if all(given.get(name) == before.get(name) for name in (*PLACE, *KEYS)):
        return
    key = given["key"]
    info = {**given, "key": key.encode() if isinstance(key, str) else key}
    provisioner.connection_info = info
    log: logging.Logger = provisioner.log
    if before.get("shell_port"):
        log.warning(
            "Singularity: the node of the kernel's connection is lost; it goes on at another "
            "place, and requests that were not answered have to be made again"
        )
    else:
        log.info("Singularity: session %s has a connection again", provisioner.session_id)
    if manager is None:
        return
    forget_keys(manager, info)
    manager._reconcile_connection_info(info)
    if getattr(manager, "_control_socket", None) is not None:  # of the old place
        manager._close_control_socket()
        manager._connect_control_socket()
    kernels: Any = getattr(manager, "parent", None)
    kernel_id = getattr(provisioner, "kernel_id", None)
    if kernel_id in getattr(kernels, "_kernels", {}) and hasattr(
        kernels, "start_watching_activity"
    ):
        kernels.stop_watching_activity(kernel_id)
        await close_websockets(kernel_id, "the kernel is reached elsewhere now", CLOSE_S)
        if hasattr(kernels, "moved"):
            kernels.moved(kernel_id)
        kernels.start_watching_activity(kernel_id)


def forget_keys(manager: Any, info: Any) -> None:
    """Of a kernel manager whose kernel is reached without keys now: it would go on using those of
    the place before."""
    if manager is not None and not info.get(KEYS[0]):
        manager.curve_publickey = manager.curve_secretkey = None


def websockets(kernel_id: Any) -> list[Any]:
    """The connections of pages to a kernel in this process."""
    channels = sys.modules.get(_CHANNELS)
    if channels is None:
        return []
    every = channels.ZMQChannelsWebsocketConnection._open_sockets
    return [connection for connection in every if connection.kernel_id == kernel_id]


async def close_websockets(kernel_id: Any, why: str, limit_s: float) -> None:
    """Returns when the server has seen that they are closed, or after `limit_s` seconds; a browser
    opens others then. Called also for a server that stops."""
    ours = websockets(kernel_id)
    for connection in ours:
        connection.websocket_handler.close(1012, why)
    if ours:
        await asyncio.wait([asyncio.wrap_future(c._close_future) for c in ours], timeout=limit_s)
