"""Keeps other users of the machine away from the stores at which ranks meet.

A `TCPStore` listens on all addresses and does whatever it is asked: other users could read and
write the keys of a running job. Its port has to stay, because ranks and launchers name it, and it
accepts connections itself. So its listening socket gets a filter that passes no data on, which
every connection inherits. A thread beside it looks up whose process is at the other end and takes
the filter off for its own user's; others are disconnected before a byte of theirs was read. What
was sent meanwhile is sent again by TCP, some 0.2 s later.

Where the kernel lets nobody but root put a filter on a socket, the node agent does it: it is handed
the socket at the session's doorbell, and can do nothing else with it.

Instead of a network namespace for each session, which would cut it off from the servers that users
open on `localhost`, and of a password, for which TCPStore has no place.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time

from singularity_proxy.errors import Unavailable
from singularity_proxy.wire.peers import attach_no_data_filter, uid_of_peer

BACKLOG = 2048

FAST_S, SLOW_S = 0.02, 0.25
"""Between two looks at the connections: while ranks are coming, and later."""

BUSY_S = 60.0
"""Ranks are coming for so long after the start of a store, and after each that came."""

TRIES = 10
"""Looks at a connection whose other end is not found, before it counts as another machine's."""

ASKED_S, AGAIN_S = 30.0, 2.0
"""How long the agent is waited for that attaches a filter, and after which pause it is asked again:
it may just be started anew."""

_SO_DETACH_FILTER = 27


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


class Guard(threading.Thread):
    """Watches the connections of this process's stores; ends when the last one is closed."""

    def __init__(self) -> None:
        super().__init__(name="store guard", daemon=True)
        self._lock = threading.Lock()
        self._listeners: dict[int, int] = {}
        """Inode of a guarded listening socket -> its port."""
        self._decided: set[int] = set()
        self._tries: dict[int, int] = {}
        self._fast_until = 0.0
        self._over = False

    def watch(self, listener: socket.socket) -> bool:
        """Also `listener`; False when this guard has ended, and another one is needed."""
        with self._lock:
            if self._over:
                return False
            self._listeners[os.fstat(listener.fileno()).st_ino] = listener.getsockname()[1]
            self._fast_until = time.monotonic() + BUSY_S
            if self.ident is None:
                self.start()
            return True

    def run(self) -> None:
        while self._look():
            time.sleep(FAST_S if time.monotonic() < self._fast_until else SLOW_S)

    def _look(self) -> bool:
        """One look at all sockets of the process; False when no store is left."""
        with self._lock:
            found = _sockets()
            self._listeners = {i: p for i, p in self._listeners.items() if i in found}
            self._decided &= found.keys()
            ports = set(self._listeners.values())
            if not ports:
                self._over = True
                return False
            new = [i for i in found if i not in self._decided and i not in self._listeners]
            for inode in new:
                # A descriptor of its own: the store may close its one, and the number be reused.
                with contextlib.suppress(OSError), _duplicate(found[inode]) as connection:
                    if os.fstat(connection.fileno()).st_ino == inode:
                        self._decide(inode, connection, ports)
            return True

    def _decide(self, inode: int, connection: socket.socket, ports: set[int]) -> None:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            self._decided.add(inode)
            return
        try:
            peer = connection.getpeername()
        except OSError:
            return  # not connected yet, or no more
        if connection.getsockname()[1] not in ports:
            self._decided.add(inode)
            return
        self._fast_until = max(self._fast_until, time.monotonic() + BUSY_S)
        uid = uid_of_peer(connection)
        if uid == os.geteuid():
            with contextlib.suppress(FileNotFoundError):  # it had none
                connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        elif uid is None and self._tries.setdefault(inode, 0) < TRIES:
            self._tries[inode] += 1
            return
        else:
            connection.shutdown(socket.SHUT_RDWR)
            who = f"uid {uid}" if uid is not None else "another machine"
            print(
                f"singularity: a connection of {who} ({peer[0]}) to the store at port "
                f"{connection.getsockname()[1]} was refused: it is for ranks of this user on this "
                "machine",
                file=sys.stderr,
            )
        self._tries.pop(inode, None)
        self._decided.add(inode)


def _sockets() -> dict[int, int]:
    """Inode -> descriptor of all sockets of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:["):
                found[int(link[8:-1])] = int(name)
    return found


def _duplicate(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


_guard = Guard()


def _begin_anew() -> None:
    global _guard
    _guard = Guard()


os.register_at_fork(after_in_child=_begin_anew)


def watch(listener: socket.socket) -> None:
    """Have the connections of `listener`, which `listen` has made, decided upon."""
    while not _guard.watch(listener):
        _begin_anew()
