"""A process of somebody else's that tries one socket in some ways, and says what it got. Run under
another uid:

    python -I stranger_at_sockets.py ATTEMPT,... KIND ADDRESS IDENTITY SECONDS [PATH...]

Prints a line of JSON: attempt -> {"refused": errno's name}, {"got": text} or {"hung": true}.
Whoever runs it gives it a hard time limit too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

HUGE = 1 << 40
"""Bytes that a frame says it has."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""ZMTP 3.0 without a mechanism."""

STORE_MAGIC = 0x3C85F7CE
"""What a client of a TCPStore says first, behind query type 0."""

VALIDATE, NUMBER_OF_KEYS = 0, 7
"""Query types of torch's TCPStore."""


class Target:
    """What is tried, and until when."""

    def __init__(self, kind: str, address: str, identity: str, seconds: float) -> None:
        self.kind, self.identity = kind, identity
        self.address = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "127.0.0.1")
        self.until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.05, self.until - time.monotonic())

    def reach(self) -> socket.socket:
        """A connection to it. Raises OSError."""
        if self.kind == "tcp":
            host, _, port = self.address.rpartition(":")
            return socket.create_connection((host.strip("[]"), int(port)), self.left)
        last: OSError | None = None
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            one = socket.socket(socket.AF_UNIX, kind)
            one.settimeout(self.left)
            name = self.address if self.kind == "unix" else f"\0{self.address[1:]}"
            try:
                one.connect(name)
                return one
            except OSError as error:
                one.close()
                last = error
        assert last is not None
        raise last

    def read(self, one: socket.socket, most: int = 1 << 20) -> bytes:
        """What comes until the other side ends or the time is over."""
        got = b""
        with contextlib.suppress(OSError):
            while len(got) < most:
                one.settimeout(self.left)
                piece = one.recv(1 << 16)
                if not piece or time.monotonic() > self.until:
                    break
                got += piece
        return got


def connect(target: Target) -> bytes:
    """Connect and say nothing: what the other side says of itself."""
    with target.reach() as one:
        return target.read(one)


def subscribe(target: Target) -> bytes:
    """Take whatever is published."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.SUB) as one:
        one.linger = 0
        one.subscribe(b"")
        one.connect(f"tcp://{target.address}")
        return _hear(one, target)


def take_name(target: Target) -> bytes:
    """Connect under the routing id of a client of the kernel, and ask for something unsigned."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as one:
        one.linger = 0
        one.routing_id = target.identity.encode()
        one.connect(f"tcp://{target.address}")
        with contextlib.suppress(zmq.Again):
            one.send_multipart([b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"], zmq.NOBLOCK)
        return _hear(one, target)


def _hear(one: object, target: Target) -> bytes:
    got = b""
    while target.until > time.monotonic():
        if one.poll(round(target.left * 1000)):  # type: ignore[attr-defined]
            got += b"".join(one.recv_multipart())  # type: ignore[attr-defined]
    return got


def frames(target: Target) -> bytes:
    """A greeting of ZMTP without a mechanism, and then a frame without end. The other side's own
    greeting (64 bytes) is no answer."""
    with target.reach() as one:
        ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        with contextlib.suppress(OSError):
            one.sendall(GREETING + ready + b"\x02" + HUGE.to_bytes(8, "big"))
            while target.left > 0.5:
                one.sendall(b"x" * (1 << 18))
        got = target.read(one)
    return got[64:] if got.startswith(b"\xff") else b""


def store(target: Target) -> bytes:
    """Ask a TCPStore how many keys it has, in its own words."""
    with target.reach() as one:
        with contextlib.suppress(OSError):
            one.sendall(struct.pack("<BIB", VALIDATE, STORE_MAGIC, NUMBER_OF_KEYS))
        answer = target.read(one, 8)
    return answer if len(answer) == 8 and answer.endswith(bytes(6)) else b""


def page(target: Target, *paths: str) -> bytes:
    """The head and the beginning of each page, asked for without a token."""
    said = b""
    for path in paths:
        with target.reach() as one:
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = target.read(one)
        said += json.dumps([path, answer.decode("latin-1")]).encode() + b"\n"
    return said


ATTEMPTS: dict[str, Callable[..., bytes]] = {
    one.__name__: one for one in (connect, subscribe, take_name, frames, store, page)
}


def main() -> None:
    names, kind, address, identity, seconds, *paths = sys.argv[1:]
    found: dict[str, dict[str, object]] = {name: {"hung": True} for name in names.split(",")}

    def attempt(name: str) -> None:
        try:
            target = Target(kind, address, identity, float(seconds))
            more = paths if name == "page" else []
            found[name] = {"got": ATTEMPTS[name](target, *more).decode("latin-1")}
        except OSError as error:
            found[name] = {"refused": errno.errorcode.get(error.errno or 0, str(error))}

    threads = [threading.Thread(target=attempt, args=(name,), daemon=True) for name in found]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 5 * float(seconds)
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    print(json.dumps(found), flush=True)
    os._exit(0)  # one that hangs ends with the process


if __name__ == "__main__":
    main()
