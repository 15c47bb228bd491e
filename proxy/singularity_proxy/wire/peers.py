"""Who is at the other end of a TCP connection of this machine.

A port of the loopback can be reached by every user of the machine, and TCP tells nobody who called.
Linux does: /proc/net/tcp has the uid of each socket, and both ends of such a connection are in it.
"""

from __future__ import annotations

import ctypes
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


_SO_ATTACH_FILTER = 26

_NO_DATA = (
    (0x30, 0, 0, 12),  # A = length of the TCP header, in the upper half of byte 12
    (0x74, 0, 0, 2),
    (0x54, 0, 0, 0x3C),
    (0x07, 0, 0, 0),  # X = A
    (0x80, 0, 0, 0),  # A = length of the segment
    (0x1C, 0, 0, 0),  # A -= X
    (0x15, 0, 1, 0),  # nothing but a header: pass
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)
"""A classic BPF program (code, jump if true, jump if false, value)."""


def attach_no_data_filter(listener: socket.socket) -> None:
    """Let no data pass at the connections that a TCP socket accepts from now on, until
    SO_DETACH_FILTER for each (socket(7)). Raises PermissionError where the kernel lets only root do
    that, and OSError."""
    program = b"".join(struct.pack("=HBBI", *line) for line in _NO_DATA)
    lines = ctypes.create_string_buffer(program)
    fprog = struct.pack("@HP", len(_NO_DATA), ctypes.addressof(lines))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)


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
