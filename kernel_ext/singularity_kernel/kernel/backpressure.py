"""Make the kernel's iopub socket wait instead of dropping messages when nobody takes them.

A ZeroMQ publisher drops what its subscriber does not read in time. The shim stops reading when its
own queue is full (the relay is away, or its disk is full); from then on ipykernel's output thread
waits, and what the kernel says stays in that thread's queue.
"""

from __future__ import annotations

import sys
from typing import Any

import zmq

FLUSH_S = 600.0
"""How long `flush` of `sys.stdout` and `sys.stderr` waits for the output thread. ipykernel's 10 s
may be over before a relay is back, or before a frozen session goes on, and ipykernel then writes
into the cell that it did not wait any longer."""


def wait_for_subscribers(kernel: Any) -> None:
    """Called once when our extension is loaded into `kernel` (ipykernel's); a kernel without an
    output thread is left as it is."""
    thread = getattr(kernel, "iopub_thread", None)
    socket = getattr(thread, "socket", None)
    if thread is None or not isinstance(socket, zmq.Socket):
        return
    # ZeroMQ sockets belong to one thread: only that one may set the option.
    thread.schedule(lambda: socket.closed or socket.setsockopt(zmq.XPUB_NODROP, 1))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "flush_timeout"):
            stream.flush_timeout = FLUSH_S
