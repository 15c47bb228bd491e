"""Who is at the other end of a TCP connection of this machine.

A port of the loopback can be reached by every user of the machine, and TCP tells nobody who called.
Linux does: /proc/net/tcp has the uid of each socket, and both ends of such a connection are in it.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

_TIME_WAIT = 6
"""A state in which the uid of a socket is no more known, and shown as 0."""


def uid_of_peer(connection: socket.socket) -> int | None:
    """The uid of the process at the other end of a connected TCP socket; None when there is none on
    this machine, or its end is closed already. Raises OSError when it is not connected."""
    remote, local = _written(connection.getpeername()), _written(connection.getsockname())
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}", encoding="ascii") as file:
            next(file)
            for line in file:
                words = line.split(maxsplit=8)
                if _plain(words[1]) == remote and _plain(words[2]) == local:
                    return None if int(words[3], 16) == _TIME_WAIT else int(words[7])
    return None


def _written(address: tuple[object, ...]) -> str:
    """As in /proc/net/tcp: words in host order, then the port; IPv4 also where IPv6 carries it."""
    ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if ip.version == 6 and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    words = struct.unpack(f"={len(ip.packed) // 4}I", ip.packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"


def _plain(written: str) -> str:
    return written.removeprefix(_MAPPED)


_MAPPED = "0000000000000000" + f"{struct.unpack('=I', bytes.fromhex('0000ffff'))[0]:08X}"
