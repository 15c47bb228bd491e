"""Ports on 127.0.0.1."""

from __future__ import annotations

import random
import socket

from singularity_proxy.errors import Conflict, Unavailable

DEFAULT_PORT = 8000
CHOSEN_FROM = range(15000, 32768)
"""Free ports are looked for below those that Linux gives to outgoing connections: one of them could
take a chosen port before its server listens."""


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
    chosen: list[int] = []
    for port in random.sample(CHOSEN_FROM, len(CHOSEN_FROM)):
        if is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise Unavailable(f"fewer than {count} ports from {CHOSEN_FROM.start} on are free")


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
