"""Which sockets the processes of a capsule have open, and who is at the other end.

What becomes of them: a connection whose both ends are inside travels in the process image (of TCP
connections: `inner_connections`); a unix connection to a process outside makes a dump impossible
(`outside_peers`); any other TCP connection is closed by a restore; a listening TCP port is taken
again. Read from /proc and, for the peers of unix sockets, from sock_diag(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_DUMP_REQUEST = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_UNIX_DIAG_NAME, _UNIX_DIAG_PEER = 0, 2
_SHOW_NAME_AND_PEER = 0x1 | 0x4
_TCP_ESTABLISHED, _TCP_LISTEN = 1, 10

_TICKS = os.sysconf("SC_CLK_TCK")

_PIDFD_GETFD = 438
"""The number of the system call, the same on every processor."""

TIME_WAIT_S = 65.0
"""Linux keeps the port of a connection that has ended for 60 s."""

REUSED_S = 58.0
"""With less of that left it gives the addresses of one on the loopback to another one: the
connection's timestamps have gone on by a second."""

SETTLE_S = 0.5
"""What is sent on one machine arrives in microseconds, and is confirmed within 40 ms."""


@dataclass(frozen=True)
class UnixPeer:
    """A connected unix socket of the tree whose other end is outside."""

    pid: int
    path: str
    """The name of the other end, "" when it has none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class TcpSocket:
    """A TCP socket of the tree; `remote` is "" when it listens."""

    local: str
    remote: str
    port: int
    kept: bool = False
    """Whether it is an end of a connection that travels in the image."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def socket_inodes(pids: Iterable[int]) -> dict[int, int]:
    """Inode -> pid, of all sockets that the processes have open."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    link = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if link.startswith("socket:["):
                        found.setdefault(int(link[8:-1]), pid)
    return found


def outside_peers(pids: Iterable[int]) -> list[UnixPeer]:
    """Connections from inside to outside; nothing where the kernel has no sock_diag for unix."""
    inside = socket_inodes(pids)
    if not inside:
        return []
    try:
        known = _unix_sockets()
    except OSError:
        return []
    found = []
    for inode, pid in inside.items():
        _, peer = known.get(inode, ("", 0))
        if peer and peer not in inside and peer in known and not _waits(known, inside, peer):
            found.append(UnixPeer(pid, known[peer][0]))
    return found


def _waits(known: dict[int, tuple[str, int]], inside: dict[int, int], peer: int) -> bool:
    """Whether `peer` is nobody's descriptor because a listener inside has not accepted it yet."""
    name = known[peer][0]
    return bool(name) and any(known.get(i, ("", 0)) == (name, 0) for i in inside)


def tcp_sockets(pids: Iterable[int], kept: Collection[int] = ()) -> list[TcpSocket]:
    """The connected and the listening TCP sockets of the processes, which share a network. `kept`:
    inodes of `inner_connections`."""
    found = []
    for row in _tcp_rows(list(pids)):
        if row.state in (_TCP_ESTABLISHED, _TCP_LISTEN):
            local, port = _address(row.local)
            remote, _ = ("", 0) if row.state == _TCP_LISTEN else _address(row.remote)
            found.append(TcpSocket(local, remote, port, row.inode in kept))
    return sorted(set(found), key=lambda s: (s.local, s.remote))


def inner_connections(pids: Iterable[int], settle_s: float = SETTLE_S) -> frozenset[int]:
    """Inodes of the TCP sockets of a frozen tree that are connected with one another.

    Both ends are descriptors of its processes, and all that one has sent has reached the other's
    buffer: what the other has no room for could only be sent to somebody who is there. The network
    gets `settle_s` seconds to bring it there.
    """
    pids = list(pids)
    deadline = time.monotonic() + settle_s
    while True:
        ends = {
            (_address(row.local)[0], _address(row.remote)[0]): row
            for row in _tcp_rows(pids)
            if row.state == _TCP_ESTABLISHED
        }
        pairs = [(row, ends.get((remote, local))) for (local, remote), row in ends.items()]
        on_its_way = False
        kept = set()
        for one, other in pairs:
            if other is not None:
                if one.unsent or other.unsent:
                    on_its_way = True
                else:
                    kept.add(one.inode)
        if not on_its_way or time.monotonic() > deadline:
            return frozenset(kept)
        time.sleep(0.005)


@dataclass(frozen=True)
class _TcpRow:
    """A line of /proc/net/tcp; the addresses as they are written there."""

    inode: int
    local: str
    remote: str
    state: int
    unsent: int
    """Bytes that the other end has not got yet."""
    left_s: float
    """Until a timer of it rings: of one that has ended, how long its address is kept."""


def _tcp_rows(pids: list[int]) -> Iterator[_TcpRow]:
    """Of the sockets that the processes have open."""
    inside = socket_inodes(pids)
    for name in ("tcp", "tcp6") if inside else ():
        for pid in pids:
            try:
                rows = list(_rows_in(f"/proc/{pid}/net/{name}"))
            except OSError:
                continue
            yield from (row for row in rows if row.inode in inside)
            break


def busy_ports(wanted: Iterable[TcpSocket], wait_s: float = TIME_WAIT_S) -> list[str]:
    """Those of the addresses that a restore could not take because somebody else has them now: the
    listening ones, and both ends of connections that travel in the image. One that is only kept
    by a connection which has ended is waited for, `wait_s` seconds at most."""
    left = [one for one in wanted if not one.remote or one.kept]
    deadline = time.monotonic() + wait_s
    while left:
        rows = list(_all_rows())
        left = [one for one in left if not _can_be_taken(rows, one)]
        taken = [one.local for one in left if not _will_be_free(rows, *_place_of(one))]
        if taken:
            return list(dict.fromkeys(taken))
        if time.monotonic() > deadline:
            break
        if left:
            time.sleep(0.1)
    return list(dict.fromkeys(one.local for one in left))


def _can_be_taken(rows: Iterable[_TcpRow], wanted: TcpSocket) -> bool:
    """Whether a restore can have that address at once."""
    host, port = _place_of(wanted)
    if not wanted.remote:
        return _is_free(host, port)
    # CRIU binds an end of a connection whoever else has the port (SK_FORCE_REUSE), and connects it
    # as Linux does where the same connection has ended: inet(7), tcp_twsk_unique.
    found = _on_port(rows, host, port)
    if any(row.inode for row in found):
        return False
    other = int(wanted.remote.rpartition(":")[2])
    ended = [row for row in found if _address(row.remote)[1] == other]
    return not ended or (_reuses() and all(row.left_s < REUSED_S for row in ended))


def _reuses() -> bool:
    """Whether Linux gives the address of a connection on the loopback that has ended to another
    one before its minute is over."""
    try:
        with open("/proc/sys/net/ipv4/tcp_tw_reuse", encoding="ascii") as file:
            reuse = int(file.read())
        with open("/proc/sys/net/ipv4/tcp_timestamps", encoding="ascii") as file:
            return reuse > 0 and int(file.read()) > 0
    except (OSError, ValueError):
        return False


def foreign_listeners(wanted: Iterable[TcpSocket], own: Collection[int]) -> list[str]:
    """Those of the addresses on which a process listens that has none of the sockets `own`
    (inodes), while whoever has these is still there."""
    rows = [row for row in _all_rows() if row.state == _TCP_LISTEN and row.inode not in own]
    places = {_place_of(one): one.local for one in wanted if not one.remote or one.kept}
    return [local for place, local in places.items() if _on_port(rows, *place)]


def end_without_trace(pids: Iterable[int]) -> None:
    """Let the connections among the frozen processes vanish with them. Otherwise the system keeps
    their ports for a minute, and nobody could listen on these again."""
    pids = list(pids)
    own = socket_inodes(pids)
    inner = inner_connections(pids, 0)
    for inode in inner:
        with contextlib.suppress(OSError), _borrow(own[inode], inode) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))


@contextlib.contextmanager
def _borrow(pid: int, inode: int) -> Iterator[socket.socket]:
    """A descriptor of our own for a socket of process `pid`. Raises `OSError`."""
    link = f"socket:[{inode}]"
    folder = f"/proc/{pid}/fd"
    number = next((n for n in os.listdir(folder) if _read_link(f"{folder}/{n}") == link), None)
    if number is None:
        raise FileNotFoundError(link)
    pidfd = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(_PIDFD_GETFD, pidfd, int(number), 0)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
    finally:
        os.close(pidfd)
    with socket.socket(fileno=fd) as one:
        yield one


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _place_of(one: TcpSocket) -> tuple[str, int]:
    """(host, port) that a restore takes: of a connection inside, on the loopback address."""
    host = one.local.rpartition(":")[0].strip("[]")
    if one.remote and not ipaddress.ip_address(host).is_loopback:
        host = "::1" if ":" in host else "127.0.0.1"
    return host, one.port


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _will_be_free(rows: Iterable[_TcpRow], host: str, port: int) -> bool:
    """Whether nobody has a port that is not free: what keeps it has ended."""
    found = _on_port(rows, host, port)
    return bool(found) and not any(row.inode for row in found)


def _on_port(rows: Iterable[_TcpRow], host: str, port: int) -> list[_TcpRow]:
    anywhere = ("0.0.0.0", "::")
    found = []
    for row in rows:
        local, number = _address(row.local)
        other = local.rpartition(":")[0].strip("[]")
        if number == port and (host == other or host in anywhere or other in anywhere):
            found.append(row)
    return found


def _all_rows() -> Iterator[_TcpRow]:
    """Of everybody in our network, also of nobody (`inode` 0): connections that have ended."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            yield from _rows_in(f"/proc/self/net/{name}")


def _rows_in(path: str) -> Iterator[_TcpRow]:
    with open(path, encoding="ascii") as file:
        lines = [line.split() for line in file][1:]
    for words in lines:
        unsent = int(words[4].partition(":")[0], 16)
        left_s = int(words[5].partition(":")[2], 16) / _TICKS
        yield _TcpRow(int(words[9]), words[1], words[2], int(words[3], 16), unsent, left_s)


def _address(text: str) -> tuple[str, int]:
    """("127.0.0.1:80", 80) of /proc/net's "0100007F:0050"; each 32-bit word is in host order. An
    IPv4 address that an IPv6 socket is connected to is shown as such."""
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words))
    if address.version == 6 and address.ipv4_mapped:
        address = address.ipv4_mapped
    number = int(port, 16)
    return (f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"), number


def _unix_sockets() -> dict[int, tuple[str, int]]:
    """Inode -> (name, inode of the peer or 0), of all unix sockets of this network namespace."""
    found: dict[int, tuple[str, int]] = {}
    body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME_AND_PEER, 0, 0)
    header = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_DUMP_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as netlink:
        netlink.settimeout(5)
        netlink.send(header + body)
        while True:
            data = netlink.recv(1 << 17)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    if kind == _NLMSG_ERROR:
                        raise OSError("sock_diag does not answer")
                    return found
                inode = struct.unpack_from("=I", data, at + 20)[0]
                found[inode] = _attributes(data[at + 32 : at + length])
                at += (length + 3) & ~3


def _attributes(data: bytes) -> tuple[str, int]:
    name, peer, at = "", 0, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        value = data[at + 4 : at + length]
        if kind == _UNIX_DIAG_NAME:
            name = value.rstrip(b"\0").replace(b"\0", b"@").decode("utf-8", "replace")
        elif kind == _UNIX_DIAG_PEER:
            peer = struct.unpack("=I", value[:4])[0]
        at += (length + 3) & ~3
    return name, peer
