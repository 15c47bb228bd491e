"""The relay: the client-facing ports of one kernel, kept by a small process of their own.

    python -m singularity_kernel.relay --connection CLIENT.json --kernel KERNEL.json [--ready-fd N]

The node agent starts one per session and stops it with SIGTERM. It listens on the five channels of
CLIENT.json (the connection file that Jupyter's clients read, tcp as a rule) and passes every
connection on to the same channel of KERNEL.json (the file that the kernel got, ipc as a rule).
ZMTP is the same stream of bytes over both, so nothing is parsed: identities, signatures and curve
encryption stay between the client and the kernel.

* A client may come before the kernel has bound its sockets: it is held, unread, while the relay
  tries again, and let go after `--connect-s` seconds (ZeroMQ clients come back by themselves).
* A side that reads slowly slows the other side down: at most one chunk waits in each direction.
* Clients come and go; the relay stays until SIGTERM, which first lets what the kernel already
  said reach the clients (at most `DRAIN_S` seconds).

Only the standard library, and no asyncio: one runs per kernel, so it starts in well under 100 ms
and stays small. Exit codes: 0 stopped by SIGTERM or SIGINT, 2 wrong arguments or files, 3 a
client-facing address is taken.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")

EXIT_STOPPED = 0
EXIT_USAGE = 2
EXIT_BUSY = 3

CHUNK_BYTES = 256 << 10
"""How much one direction reads at a time, and the most that it holds."""

DRAIN_S = 0.3
"""How long SIGTERM waits for the last words of the kernel to reach the clients."""

RETRY_S = 0.01
RETRY_MAX_S = 0.25
"""Between two tries to reach the kernel: starts at the first, doubles to the second."""

ACCEPT_PAUSE_S = 0.2
"""How long no client is accepted after the process ran out of descriptors."""

BACKLOG = 128

Address: TypeAlias = "tuple[str, int] | str"
"""Where a channel is: (ip, port) for tcp, a path for ipc."""


class RelayError(Exception):
    """Ends the process with `code`; the message is the one sentence on stderr."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def read_addresses(path: str) -> dict[str, Address]:
    """The addresses of the five channels in the connection file at `path`."""
    try:
        with open(path, encoding="utf-8") as file:
            info = json.load(file)
        return {channel: _address(info, channel) for channel in CHANNELS}
    except OSError as error:
        raise RelayError(
            f"the connection file {path} cannot be read ({error.strerror})", EXIT_USAGE
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RelayError(
            f"the connection file {path} is not one of Jupyter's ({type(error).__name__}: {error})",
            EXIT_USAGE,
        ) from None


def _address(info: dict[str, Any], channel: str) -> Address:
    ip, port, transport = str(info["ip"]), int(info[f"{channel}_port"]), info["transport"]
    if transport == "ipc":
        return f"{ip}-{port}"
    if transport != "tcp":
        raise ValueError(f"transport is {transport!r}, it must be 'tcp' or 'ipc'")
    if not 0 < port < 65536:
        raise ValueError(f"{channel}_port is {port}")
    return ("" if ip == "*" else ip, port)


def _family(address: Address) -> socket.AddressFamily:
    if isinstance(address, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def listen(channel: str, address: Address, bind_s: float) -> socket.socket:
    """A socket listening at `address`. A taken address is tried again for `bind_s` seconds,
    because after a kernel restart the relay before this one may still be closing it."""
    deadline = time.monotonic() + bind_s
    while True:
        sock = socket.socket(_family(address), socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            if isinstance(address, str):
                os.chmod(address, 0o600)
            sock.listen(BACKLOG)
            sock.setblocking(False)
            return sock
        except OSError as error:
            sock.close()
            where = address if isinstance(address, str) else f"{address[0] or '*'}:{address[1]}"
            if error.errno != errno.EADDRINUSE:
                raise RelayError(
                    f"the {channel} channel cannot listen at {where} ({error.strerror})", EXIT_USAGE
                ) from None
            if time.monotonic() >= deadline:
                raise RelayError(
                    f"the {channel} channel's address {where} is taken by another process: "
                    "the kernel was not connected, start it again to get other ports",
                    EXIT_BUSY,
                ) from None
        time.sleep(0.05)


@dataclass
class Direction:
    """One way of a link: what was read from `source` and not yet written to `target`."""

    source: socket.socket
    target: socket.socket
    waiting: memoryview = field(default_factory=lambda: memoryview(b""))
    deaf: bool = False
    """`target` takes nothing any more; `source` is still read to its end, because closing a
    socket with unread bytes resets it and destroys what its owner has not read yet."""
    ended: bool = False
    """`source` has said all it will say."""
    done: bool = False
    """Ended and delivered; `target` has been told."""

    def move(self) -> None:
        """Write what waits; when nothing waits, read the next chunk and write that."""
        if not self.waiting and not self.ended:
            self._read()
        if self.waiting:
            self._write()
        if self.ended and not self.waiting and not self.done:
            self.done = True
            try:
                self.target.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the target is gone already

    def _read(self) -> None:
        try:
            data = self.source.recv(CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # reset by the other end
            data = b""
        self.ended = not data
        self.waiting = memoryview(b"" if self.deaf else data)

    def _write(self) -> None:
        try:
            sent = self.target.send(self.waiting)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.deaf = True
            sent = len(self.waiting)
        self.waiting = self.waiting[sent:]


@dataclass
class Link:
    """One client connection and, once it is there, its connection to the kernel."""

    client: socket.socket
    target: Address
    give_up_at: float
    retry_at: float = 0.0
    retry_s: float = RETRY_S
    kernel: socket.socket | None = None
    ways: tuple[Direction, ...] = ()
    """(client to kernel, kernel to client), once connected."""


class Relay:
    """The event loop: listeners, links and the two signals. `run` returns when it was stopped."""

    def __init__(
        self, listeners: dict[socket.socket, Address], connect_s: float, log: Any = sys.stderr
    ) -> None:
        self._listeners = listeners
        self._connect_s = connect_s
        self._log = log
        self._poll = select.epoll()
        self._asked: dict[int, int] = {}  # events asked for, by descriptor of a link's end
        self._links: dict[int, Link] = {}  # by the descriptor of either end
        self._accepting: dict[int, socket.socket] = {}
        self._accept_again_at: float | None = None
        self._stop_at: float | None = None
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wake_r, select.EPOLLIN)
        self._set_accepting(True)

    def stop_on_signals(self) -> None:
        """Make SIGTERM and SIGINT end `run`. Main thread only."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: None)

    def run(self) -> None:
        """Pass bytes on until a signal comes, then let the kernel's last words through."""
        while True:
            ready = [fd for fd, _ in self._poll.poll(self._timeout())]
            for fd in ready:
                if fd in self._links:
                    self._serve(self._links[fd])
            for fd in ready:  # after the links: a new client may get a descriptor just given back
                if fd in self._accepting:
                    self._accept(self._accepting[fd])
            if self._wake_r in ready:
                self._begin_stop()
            now = time.monotonic()
            if self._accept_again_at is not None and now >= self._accept_again_at:
                self._accept_again_at = None
                self._set_accepting(True)
            for link in self._pending():
                self._connect(link, now)
            if self._stop_at is not None and (not self._links or now >= self._stop_at):
                return

    def close(self) -> None:
        """Give every descriptor and ipc file back."""
        for link in {id(link): link for link in self._links.values()}.values():
            self._drop(link)
        self._set_accepting(False)
        for sock, address in self._listeners.items():
            sock.close()
            if isinstance(address, str):
                _remove(address)
        self._poll.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def _pending(self) -> list[Link]:
        return [link for link in self._links.values() if link.kernel is None]

    def _timeout(self) -> float | None:
        times = [link.retry_at for link in self._pending()]
        times += [at for at in (self._accept_again_at, self._stop_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _set_accepting(self, on: bool) -> None:
        if on == bool(self._accepting) or (on and self._stop_at is not None):
            return
        if on:
            self._accepting = {sock.fileno(): sock for sock in self._listeners}
            for fd in self._accepting:
                self._poll.register(fd, select.EPOLLIN)
        else:
            for fd in self._accepting:
                self._poll.unregister(fd)
            self._accepting = {}

    def _begin_stop(self) -> None:
        os.read(self._wake_r, 64)
        if self._stop_at is None:
            for signum in (signal.SIGTERM, signal.SIGINT):  # the end is near and has its own limit
                signal.signal(signum, signal.SIG_IGN)
            self._stop_at = time.monotonic() + DRAIN_S
            self._accept_again_at = None
            self._set_accepting(False)
            for link in self._pending():
                self._drop(link)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            # Out of descriptors: without a pause the listener would stay ready and spin.
            print(
                f"relay: no client can be accepted now ({error.strerror}); trying again",
                file=self._log,
            )
            self._set_accepting(False)
            self._accept_again_at = time.monotonic() + ACCEPT_PAUSE_S
            return
        client.setblocking(False)
        if client.family != socket.AF_UNIX:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now = time.monotonic()
        link = Link(client, self._listeners[listener], give_up_at=now + self._connect_s)
        self._links[client.fileno()] = link
        # Unread until the kernel is there; a client that leaves earlier is still noticed.
        self._ask(client.fileno(), select.EPOLLRDHUP)
        self._connect(link, now)

    def _connect(self, link: Link, now: float) -> None:
        """Try to reach the kernel for a link that has no connection to it yet."""
        if now < link.retry_at:
            return
        kernel: socket.socket | None = None
        try:
            kernel = socket.socket(_family(link.target), socket.SOCK_STREAM)
            if isinstance(link.target, str):
                kernel.setblocking(False)
            else:  # an address of this machine answers or refuses at once
                kernel.settimeout(1.0)
            kernel.connect(link.target)
            kernel.setblocking(False)
        except OSError:
            if kernel:
                kernel.close()
            if now >= link.give_up_at:
                self._drop(link)
                return
            link.retry_at = now + link.retry_s
            link.retry_s = min(link.retry_s * 2, RETRY_MAX_S)
            return
        link.kernel = kernel
        link.ways = (Direction(link.client, kernel), Direction(kernel, link.client))
        self._links[kernel.fileno()] = link
        self._watch(link)

    def _serve(self, link: Link) -> None:
        for way in link.ways:
            way.move()
        # ZeroMQ never half-closes: when one side ends the other one follows at once.
        if not link.ways or all(way.done for way in link.ways):
            self._drop(link)  # no ways yet: the client left before the kernel was there
        else:
            self._watch(link)

    def _watch(self, link: Link) -> None:
        """Ask for exactly the events that let one of the two directions move."""
        wanted = {way.source: 0 for way in link.ways}
        for way in link.ways:
            if way.waiting:
                wanted[way.target] |= select.EPOLLOUT
            elif not way.ended:
                wanted[way.source] |= select.EPOLLIN
        for sock, events in wanted.items():
            self._ask(sock.fileno(), events)

    def _ask(self, fd: int, events: int) -> None:
        """Watch `fd` for `events`. For none it leaves the poll object, which would otherwise
        report a hang-up over and over."""
        before = self._asked.get(fd, 0)
        if events == before:
            return
        if not events:
            self._poll.unregister(fd)
            del self._asked[fd]
            return
        if before:
            self._poll.modify(fd, events)
        else:
            self._poll.register(fd, events)
        self._asked[fd] = events

    def _drop(self, link: Link) -> None:
        for sock in (link.client, link.kernel):
            if sock is not None:
                self._ask(sock.fileno(), 0)
                self._links.pop(sock.fileno(), None)
                sock.close()


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def main(argv: list[str] | None = None) -> int:
    """Run one relay; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_kernel.relay",
        description="Pass the client-facing channels of one kernel on to the kernel.",
    )
    parser.add_argument("--connection", required=True, help="connection file of the clients")
    parser.add_argument("--kernel", required=True, help="connection file of the kernel")
    parser.add_argument("--ready-fd", type=int, help="'ready' is written here once it listens")
    parser.add_argument(
        "--bind-s", type=float, default=2.0, help="seconds to wait for a taken address (default 2)"
    )
    parser.add_argument(
        "--connect-s",
        type=float,
        default=60.0,
        help="seconds that a client is held until the kernel has bound (default 60)",
    )
    options = parser.parse_args(argv)
    listeners: dict[socket.socket, Address] = {}
    relay: Relay | None = None
    try:
        client, kernel = read_addresses(options.connection), read_addresses(options.kernel)
        for channel in CHANNELS:
            sock = listen(channel, client[channel], options.bind_s)
            listeners[sock] = kernel[channel]
        relay = Relay(listeners, options.connect_s)
        relay.stop_on_signals()
        if options.ready_fd is not None:
            try:
                os.write(options.ready_fd, b"ready\n")
                os.close(options.ready_fd)
            except OSError as error:
                raise RelayError(
                    f"--ready-fd {options.ready_fd} cannot be written ({error.strerror})",
                    EXIT_USAGE,
                ) from None
        relay.run()
        return EXIT_STOPPED
    except RelayError as error:
        print(f"relay: {error}", file=sys.stderr)
        return error.code
    finally:
        if relay:
            relay.close()
        else:
            for sock in listeners:
                sock.close()


if __name__ == "__main__":
    sys.exit(main())
