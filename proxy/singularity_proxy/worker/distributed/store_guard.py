"""Keeps other users of the machine away from the stores at which ranks meet.

A `TCPStore` listens on all addresses and does whatever it is asked: other users could read and
write the keys of a running job. Its port has to stay, because ranks and launchers name it, and it
accepts connections itself. So its listening socket gets a filter that passes no data on, which
every connection inherits. A native thread beside it (`src/store_guard.cpp`) looks up whose process
is at the other end and takes the filter off for its own user's; others are disconnected before a
byte of theirs was read. What was sent meanwhile is sent again by TCP, some 0.2 s later. The thread
is native because torch connects to its own store while it holds the GIL (`split_group`).

Where the kernel lets nobody but root put a filter on a socket, the node agent does it: it is handed
the socket at the session's doorbell, and can do nothing else with it.

Instead of a network namespace for each session, which would cut it off from the servers that users
open on `localhost`, and of a password, for which TCPStore has no place.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time

from singularity_proxy.errors import Unavailable
from singularity_proxy.wire.peers import attach_no_data_filter
from singularity_proxy.worker.native import native

BACKLOG = 2048

ASKED_S, AGAIN_S = 30.0, 2.0
"""How long the agent is waited for that attaches a filter, and after which pause it is asked again:
it may just be started anew."""


SETTLE_S = 2.0
"""Longest time that the end of a store waits for those who have just connected to it."""


class Unguarded(Exception):
    """Nobody here may put a filter on a socket; the text says why."""


def listen(port: int) -> socket.socket:
    """A guarded socket that listens as a store's own would, on all addresses. Raises OSError, and
    as `attach_filter`."""
    with contextlib.suppress(OSError):
        return _listen(socket.AF_INET6, port)
    return _listen(socket.AF_INET, port)


def _listen(family: socket.AddressFamily, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        attach_filter(listener)
        listener.bind(("", port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def attach_filter(listener: socket.socket) -> None:
    """Let no data pass at the connections that `listener` accepts from now on.

    Raises `Unguarded` where nobody may, `Unavailable` when the node agent, who may, does not
    answer."""
    try:
        attach_no_data_filter(listener)
    except PermissionError:
        _ask_agent(listener)


def _ask_agent(listener: socket.socket) -> None:
    doorbell = os.environ.get("SINGULARITY_DOORBELL")
    if doorbell is None or not os.environ.get("SINGULARITY_SOCKET"):
        raise Unguarded("this kernel lets only root put a filter on a socket")
    until = time.monotonic() + ASKED_S
    while time.monotonic() < until:
        mine, its = socket.socketpair()
        with mine, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            with its, contextlib.suppress(OSError):  # nobody is there at the moment
                bell.connect(doorbell)
                socket.send_fds(bell, [b"guard"], [listener.fileno(), its.fileno()])
            mine.settimeout(AGAIN_S)
            try:
                answer = mine.recv(1)
            except OSError:
                continue
        if answer == b"y":
            return
        if answer == b"n":
            raise Unguarded("this kernel lets only root put a filter on a socket")
        time.sleep(AGAIN_S / 10)
    raise Unavailable(
        "the store at which ranks meet was not opened, because the node agent, which keeps other "
        "users of the machine away from it, does not answer; try again"
    )


def watch(listener: socket.socket) -> None:
    """Have the connections of `listener`, which has a filter, decided upon until it is closed."""
    native.guard_store(listener.fileno())


def settle() -> None:
    """Wait until those who have connected to the stores of this process were heard: called before
    it leaves them. Torch would have heard them at once; the filter has them say it again."""
    until = time.monotonic() + SETTLE_S
    while not native.guarded_stores_are_settled() and time.monotonic() < until:
        time.sleep(0.02)


atexit.register(settle)

os.register_at_fork(after_in_child=native.forget_guarded_stores)
