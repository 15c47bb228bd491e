"""TCP connections between processes of one capsule: they travel in its process image.

So ranks come back connected to their launcher's store. CRIU keeps either all of a tree's TCP
connections or none. One to the outside must not be kept: nobody would answer a program that waits
there for ever, and its address may be another node's. So CRIU is told to keep all, and what is no
inner connection is changed in the image into a closed socket: what a program has of a connection
that CRIU itself closes. The network is not locked meanwhile, for both ends stand still.

Nothing of an inner connection depends on the node: one over a network address is moved to the
loopback address in the image.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Collection, Iterable

from singularity_proxy.errors import ImageFailed

from .images.format import BYTES, VARINT, change_messages, encode_message, encode_number, fields
from .namespace import NamespaceCapsule
from .sockets import SETTLE_S, inner_connections

KEEP = ("--tcp-established",)
CLOSE = ("--tcp-close",)
DUMP_KEEP = (*KEEP, "--network-lock", "skip")

_OF_TORCHRUN = b"TORCHELASTIC_RUN_ID="
_FILES = "files.img"
_STREAM = "tcp-stream-"
_TCP_REPAIR = 19

_ISK = 4
"""Field of a `file_entry`: it is an internet socket. Below: fields of that `inet_sk_entry`."""
_INO, _PROTO, _STATE, _SRC_PORT, _DST_PORT = 2, 5, 6, 7, 8
_SRC_ADDR, _DST_ADDR, _IFNAME, _SHUTDOWN = 11, 12, 17, 19
_TCP_CLOSE = 7
_SHUTDOWN_BOTH = 3

_LOOPBACK4 = struct.unpack("=I", socket.inet_aton("127.0.0.1"))[0]
_LOOPBACK6 = struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, "::1"))
_MAPPED = struct.unpack("=3I", socket.inet_pton(socket.AF_INET6, "::ffff:0.0.0.0")[:12])


def can_keep(capsule: NamespaceCapsule) -> bool:
    """Whether CRIU may take connections of this capsule along. The right to do so (CAP_NET_ADMIN)
    is the network's, so an agent with a user namespace for its capsules has it never."""
    if capsule.user_namespace:
        return False
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    except OSError:
        return False
    return True


def needing_them(pids: Iterable[int]) -> int | None:
    """The first of the processes that does not outlive the end of its connections, None when there
    is none: `torchrun` ends its ranks when it has lost its own store."""
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if any(word.startswith(_OF_TORCHRUN) for word in file.read().split(b"\0")):
                return pid
    return None


def kept_by(capsule: NamespaceCapsule, settle_s: float = SETTLE_S) -> frozenset[int]:
    """Inodes of the TCP sockets of a frozen capsule whose connections an image takes along."""
    if not can_keep(capsule):
        return frozenset()
    return inner_connections((m.identity.pid for m in capsule.members()), settle_s)


def are_in(folder: str) -> bool:
    """Whether the image in `folder` has connections to restore."""
    return any(name.startswith(_STREAM) for name in os.listdir(folder))


def close_others(folder: str, kept: Collection[int]) -> None:
    """Change the image in `folder`, taken with `DUMP_KEEP`, so that a restore brings back the
    connections of the sockets with these inodes alone. Raises `ImageFailed` when it is not the
    image that is expected."""
    path = os.path.join(folder, _FILES)
    with open(path, "rb") as file:
        data = file.read()
    try:
        changed, found = changed_files(data, kept)
    except (IndexError, struct.error, ValueError) as error:
        raise _unknown(str(error)) from None
    if missing := set(kept) - found.keys():
        raise _unknown(f"{len(missing)} connections are not in it")
    for inode, name in found.items():
        if inode not in kept:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    with open(path, "wb") as file:
        file.write(changed)


def changed_files(data: bytes, kept: Collection[int]) -> tuple[bytes, dict[int, str]]:
    """(what `files.img` becomes, inode of every connected TCP socket -> the file with its data)."""
    found: dict[int, str] = {}

    def change(entry: bytes) -> bytes:
        parts = []
        for field in fields(entry):
            raw = field.raw
            if field.number == _ISK and field.kind == BYTES:
                inode, connected = _connected(field.value)
                if connected:
                    found[inode] = f"{_STREAM}{inode:x}.img"
                    turn = _on_loopback if inode in kept else _closed
                    raw = encode_message(_ISK, turn(field.value))
            parts.append(raw)
        return b"".join(parts)

    return change_messages(data, change), found


def _unknown(why: str) -> ImageFailed:
    return ImageFailed(
        f"the process image could not be taken: the connections between the session's processes "
        f"are not where they are expected in it ({why}); the session goes on as it was, and its "
        "older checkpoints are kept",
        step="dump",
        log=[],
        intact=True,
    )


def _connected(isk: bytes) -> tuple[int, bool]:
    """(its inode, whether it is a TCP socket with another end)."""
    values = {field.number: field.number_value for field in fields(isk) if field.kind == VARINT}
    tcp = values.get(_PROTO) == socket.IPPROTO_TCP
    return values[_INO], tcp and values.get(_DST_PORT, 0) != 0


def _closed(isk: bytes) -> bytes:
    """A socket that was never connected and is shut down: readers see the end, writers an error."""
    new = {_STATE: _TCP_CLOSE, _SRC_PORT: 0, _DST_PORT: 0}
    out = [
        encode_number(field.number, new[field.number]) if field.number in new else field.raw
        for field in fields(isk)
        if field.number not in (_SHUTDOWN, _IFNAME)
    ]
    return b"".join([*out, encode_number(_SHUTDOWN, _SHUTDOWN_BOTH)])


def _on_loopback(isk: bytes) -> bytes:
    kept = [field for field in fields(isk) if field.number != _IFNAME]
    words = {
        number: [field.number_value for field in kept if field.number == number]
        for number in (_SRC_ADDR, _DST_ADDR)
    }
    if all(_is_loopback(address) for address in words.values()):
        return isk
    out = [field.raw for field in kept if field.number not in words]
    for number, address in words.items():
        out += [encode_number(number, word) for word in _loopback(address)]
    return b"".join(out)


def _is_loopback(address: list[int]) -> bool:
    mapped = len(address) == 4 and tuple(address[:3]) == _MAPPED
    if len(address) == 1 or mapped:
        return struct.pack("=I", address[-1])[0] == 127
    return tuple(address) == _LOOPBACK6


def _loopback(address: list[int]) -> tuple[int, ...]:
    """Of the same family, and for an IPv4 address in an IPv6 socket one of these."""
    if len(address) == 1:
        return (_LOOPBACK4,)
    return (*_MAPPED, _LOOPBACK4) if tuple(address[:3]) == _MAPPED else _LOOPBACK6
