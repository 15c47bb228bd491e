"""What processes that a cell forked print reaches the kernel over a unix socket, not a TCP port.

ipykernel listens on a TCP port of the machine for it. A port is the machine's: a session that comes
back while somebody else has it could not be restored, and a fork of a session that still runs never
could on the same machine. The unix socket is in the session's own folder and comes back with it.
"""

from __future__ import annotations

from typing import Any

import zmq

_MARK = "_singularity_forked_output"

LINGER_MS = 3000
"""How long a process that ends waits for what it printed to be taken, as in ipykernel."""


def listen_in_the_folder(kernel: Any) -> None:
    """Called when our extension is loaded into `kernel` (ipykernel's) behind a shim, also for a
    second time; any other kernel is left as it is."""
    app, thread = getattr(kernel, "parent", None), getattr(kernel, "iopub_thread", None)
    pipe, port = getattr(thread, "_pipe_in", None), getattr(thread, "_pipe_port", None)
    place = getattr(app, "ip", "") if getattr(app, "transport", "") == "ipc" else ""
    if thread is None or pipe is None or not port or not place:
        return
    address = f"ipc://{place}-forked"
    if getattr(thread, _MARK, "") == address:
        return
    setattr(thread, _MARK, address)

    def move() -> None:
        if not pipe.closed():
            pipe.socket.bind(address)
            pipe.socket.unbind(f"tcp://127.0.0.1:{port}")

    def connect() -> tuple[Any, Any]:
        context: zmq.Context[Any] = zmq.Context()
        out = context.socket(zmq.PUSH)
        out.linger = LINGER_MS
        out.connect(address)
        return context, out

    thread._setup_pipe_out = connect
    thread.schedule(move)  # ZeroMQ sockets belong to one thread
