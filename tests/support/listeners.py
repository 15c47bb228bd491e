"""What a running platform listens on, and who may use it: declared once, in `TABLE`.

`find_listening` reads from /proc what the processes of a run listen on (TCP, UDP, unix sockets with
a path and abstract ones, in each network namespace); `find_row` finds the row of the table for one.
What has no row is unknown, and a test fails. `stranger_at_sockets.py` is how somebody else tries
them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

LISTENS, UNCONNECTED = "0A", "07"
"""States in /proc/net/tcp and, of a bound UDP socket, in /proc/net/udp."""

UNIX_LISTENS = 0x10000
"""Flag in /proc/net/unix: it accepts connections."""

HTTP = r"127\.0\.0\.1:\d+"


@dataclass(frozen=True)
class Socket:
    """One that processes of the run listen on."""

    kind: str
    """tcp, udp, unix or abstract."""
    address: str
    """host:port, or the path or name."""
    pid: int
    program: str
    uid: int


@dataclass(frozen=True)
class Row:
    """A line of the table. `by` is what keeps others out: `folder` (it or the socket in it is the
    user's alone), `token` (each request needs one), `keys` (CurveZMQ or TLS), `owner` (the process
    at the other end is looked up), `nothing` (they are not kept out)."""

    name: str
    program: str
    """Regular expression for the command line."""
    kind: str
    address: str
    """Regular expression for the whole address; {user} is the uid of the process."""
    who: str
    by: str
    paths: tuple[str, ...] = ()
    """Pages that somebody else asks for."""


HUB_PAGES = ("/hub/api/users", "/hub/home", "/hub/admin", "/hub/login", "/hub/user/alice/")
USER_PAGES = tuple(
    f"/user/alice/{page}"
    for page in ("lab", "api/kernels", "api/contents", "api/terminals", "files/secret.ipynb")
)
SERVICE_PAGES = tuple(
    f"/services/singularity/{page}"
    for page in ("api/v1/sessions", "api/v1/sessions?user=alice", "api/v1/cluster", "metrics", "")
)

TABLE = (
    Row(
        *("Hub", r"singularity_spawner\.platform\.hub", "tcp", HTTP),
        *("who has a token or login", "token", HUB_PAGES),
    ),
    Row(
        *("proxy", r"configurable-http-proxy", "tcp", HTTP),
        *("who has a token or login", "token"),
        (*HUB_PAGES, *USER_PAGES, *SERVICE_PAGES, "/api/routes"),
    ),
    Row(
        *("service", r"singularity_scheduler\.service", "tcp", HTTP),
        *("who has a token or login", "token", SERVICE_PAGES),
    ),
    Row(
        *("server", r"jupyterhub.singleuser|singleuser", "tcp", HTTP),
        *("its user, by token or login", "token", USER_PAGES),
    ),
    Row(
        *("session's socket", r"singularity_scheduler\.agent", "unix"),
        *(r".*/s/[0-9a-f]{12}/(agent\.sock|doorbell)", "the session's user", "folder"),
    ),
    Row(
        *("agent", r"singularity_scheduler\.agent", "unix"),
        *(r".*/agent\.sock", "the service's user", "folder"),
    ),
    Row(
        *("device proxies", r"singularity_(proxy|scheduler)", "unix"),
        *(r".*/p/[^/]+", "the agent", "folder"),
    ),
    Row(
        *("relay's control", r"singularity_kernel\.relay\.app", "unix"),
        *(r".*/r/[0-9a-f]{12}/control\.sock", "its user and the agent", "folder"),
    ),
    Row(
        *("kernel for Jupyter", r"singularity_kernel\.relay\.app", "unix"),
        *(r".*/c/{user}/[0-9a-f]{8}/k-\d+", "its user", "folder"),
    ),
    Row(
        *("kernel for its shim", r"ipykernel_launcher", "unix"),
        *(r".*/s/[0-9a-f]{12}/k\w*-(\d+|forked)", "its user", "folder"),
    ),
    Row(
        *("tunnel", r"singularity_kernel\.relay\.app", "tcp", HTTP),
        *("the session's shim, the agent of its node", "keys"),
    ),
    Row(
        *("bridge", r"singularity_proxy\.elastic\.bridge", "tcp", HTTP),
        *("the other parts of the gang; its rendezvous", "keys"),
    ),
    Row(
        *("store of ranks", r"singularity-cell|torch|train\.py", "tcp"),
        *(r"(0\.0\.0\.0|\[::\]):\d+", "ranks of its user", "owner"),
    ),
    Row(
        *("rendezvous", r"singularity_kernel\.batch", "tcp", HTTP),
        *("ranks of its user: the way to the store of part 0", "owner"),
    ),
    Row(
        *("gloo", r"singularity-cell|train\.py", "tcp", HTTP),
        *("everybody on the machine", "nothing"),
    ),
)


def find_row(found: Socket) -> Row | None:
    """The first row that describes it."""
    for row in TABLE:
        address = row.address.replace("{user}", str(found.uid))
        if (
            row.kind == found.kind
            and re.search(row.program, found.program)
            and re.fullmatch(address, found.address)
        ):
            return row
    return None


def find_listening(pids: Iterable[int]) -> list[Socket]:
    """What these processes listen on; a socket that several have is the first one's."""
    owners: dict[int, int] = {}
    for pid in sorted(pids):
        for inode in _list_sockets(pid):
            owners.setdefault(inode, pid)
    found, done = [], set()
    for pid in set(owners.values()):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            continue
        if namespace in done:
            continue
        done.add(namespace)
        for inode, kind, address in _read_tables(pid):
            if inode in owners:
                found.append(_describe(kind, address, owners[inode]))
    return sorted(_follow_moves(found), key=lambda s: (s.program, s.kind, s.address))


def _follow_moves(found: list[Socket]) -> list[Socket]:
    """With the places of sockets that were moved into a session's folder: Linux goes on naming the
    place at which they were made."""
    gone = [s for s in found if s.kind == "unix" and not Path(s.address).exists()]
    there = {s.address for s in found}
    files = [
        str(path)
        for runtime in sorted({Path(s.address).parent.parent for s in gone})
        for path in sorted(runtime.glob("s/*/*"))
        if path.is_socket() and str(path) not in there
    ]
    # Those of one agent are alike; one that is not found stays as it is, and has no row.
    now = dict(zip(gone, files, strict=False))
    return [replace(s, address=now.get(s, s.address)) for s in found]


def _list_sockets(pid: int) -> Iterator[int]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if link.startswith("socket:["):
            yield int(link[8:-1])


def _describe(kind: str, address: str, pid: int) -> Socket:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return Socket(kind, address, pid, words.strip(), os.stat(f"/proc/{pid}").st_uid)


def _read_tables(pid: int) -> Iterator[tuple[int, str, str]]:
    """(inode, kind, address) of all that listens in the network namespace of a process."""
    for kind, state in (("tcp", LISTENS), ("udp", UNCONNECTED)):
        for name in (kind, f"{kind}6"):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == state:
                    yield int(words[9]), kind, _write_address(words[1])
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        # Datagrams need nobody to accept them: whoever has a name is heard.
        if len(words) == 8 and (int(words[3], 16) & UNIX_LISTENS or words[4] == "0002"):
            abstract = words[7].startswith("@")
            yield int(words[6]), "abstract" if abstract else "unix", words[7]


def _write_address(text: str) -> str:
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words))
    return f"{f'[{address}]' if address.version == 6 else address}:{int(port, 16)}"
