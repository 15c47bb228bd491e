"""Ports on 127.0.0.1."""

from __future__ import annotations

import socket

from singularity_proxy.errors import Conflict

DEFAULT_PORT = 8000


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as sock:
        # As servers do: a port whose last connections linger in TIME_WAIT is free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """`count` different ports that are free now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for sock in held:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


def public_port(wanted: int | None) -> int:
    """The port people open: `wanted` if it is free, else `Conflict` with a sentence. None: 8000,
    or any free port when that is taken."""
    if wanted is None:
        return DEFAULT_PORT if is_free(DEFAULT_PORT) else free_ports(1)[0]
    if not 0 < wanted < 65536:
        raise Conflict(f"{wanted} is no port number; choose one from 1 to 65535.", port=wanted)
    if not is_free(wanted):
        raise Conflict(
            f"Port {wanted} on 127.0.0.1 is taken by another program; nothing was started: "
            "choose another one with --port, or stop that program.",
            port=wanted,
        )
    return wanted
