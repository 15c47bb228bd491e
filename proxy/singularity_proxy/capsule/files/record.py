"""The record of a checkpoint: what a frozen capsule has open.

A process image refers to files by path, and CRIU refuses a file that is missing or has another
size. Three kinds of files are told apart:

* *scratch*: in the session's folder, its private /tmp or /dev/shm. They travel (`scratch.py`).
* *ring*: in the session's ring folder. They travel as device state.
* *outside*: everything else, such as a CSV in home or a library. They stay where they are, and
  others use them. How each is when the session comes back is `reconcile`'s to see, by what is
  written down here: size, time and hash, where descriptors stand, which locks are held.

`describe` is called with the tree frozen, and blocks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from singularity_proxy.capsule import connections
from singularity_proxy.capsule.namespace import NamespaceCapsule
from singularity_proxy.capsule.sockets import TcpSocket, tcp_sockets
from singularity_proxy.capsule.tree import owner_of

from . import links, outside
from .kinds import HEAD_BYTES, Kind, Lock, has_wal, in_transaction, kind_of, parse_locks


@dataclass(frozen=True)
class Descriptor:
    """One descriptor of a process, by its pid inside."""

    pid: int
    number: int
    flags: int
    position: int
    locks: list[Lock] = field(default_factory=list)

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def appends(self) -> bool:
        return bool(self.flags & os.O_APPEND)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Descriptor:
        return cls(**{**data, "locks": [Lock(**lock) for lock in data["locks"]]})


@dataclass(frozen=True)
class OpenFile:
    """A file that the image refers to. `use`: "read", "write", "mapped" (data in memory) or
    "library" (code in memory)."""

    path: str
    place: str
    use: str
    size: int
    mtime_ns: int
    digest: str | None = None
    kind: str = Kind.PLAIN.value
    wal: bool = False
    """A database with a write-ahead log."""
    mapped: bool = False
    """Also in memory, beside its descriptors."""
    mode: int = 0o644
    inode: int = 0
    device: int = 0
    folder: int = 0
    """Inode of its folder: tells, with the device, whether this is the same storage."""
    held: list[Descriptor] = field(default_factory=list)
    """Of files outside that are no libraries."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> OpenFile:
        held = [Descriptor.from_json(one) for one in data.get("held", ())]
        return cls(**{**data, "held": held})

    @property
    def locks(self) -> list[Lock]:
        return [lock for one in self.held for lock in one.locks]


@dataclass(frozen=True)
class Record:
    """Travels with the checkpoint as JSON (part `record`)."""

    stopped: list[int]
    """Pids inside that the user had stopped; for `image.restore`."""
    files: list[OpenFile] = field(default_factory=list)
    tcp: list[TcpSocket] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        return cls(
            [int(pid) for pid in data["stopped"]],
            [OpenFile.from_json(one) for one in data["files"]],
            [TcpSocket(**one) for one in data["tcp"]],
        )

    def lost(self) -> list[str]:
        """What no restore brings back, one sentence each, for the loss report."""
        return [
            f"the network connection to {one.remote} was closed"
            for one in self.tcp
            if one.remote and not one.kept
        ]

    def written_outside(self) -> set[str]:
        """Paths of files outside that the session has open for writing."""
        return {one.path for one in self.files if (one.place, one.use) == ("outside", "write")}


def describe(capsule: NamespaceCapsule, *, session_folder: str, ring_folder: str) -> Record:
    """The record of a frozen capsule; the folders are paths inside. Files that were deleted are in
    the image itself and not in here. Raises `ImageFailed` for a file that no restore could open."""
    names = links.find_names(capsule)
    mounts = _private_mounts(capsule.init.pid)
    owner = owner_of(capsule.init.pid)[0]
    found: dict[str, OpenFile] = {}

    def place_of(path: str) -> str:
        if path.startswith(f"{ring_folder}/"):
            return "ring"
        if path.startswith(f"{session_folder}/"):
            return "scratch"
        inside = [m for m in mounts if path.startswith(f"{m}/")]
        return "scratch" if inside and max(inside, key=len) in ("/tmp", "/dev/shm") else "outside"

    members = capsule.members()
    for member in members:
        for link, one in _descriptors(member.identity.pid, member.pid):
            path = os.readlink(link)
            path = names.get(path.removesuffix(links.DELETED), path)
            if path.startswith("/proc/"):
                continue  # the capsule's own, and CRIU's to open again
            use = "write" if one.writes else "read"
            known = found.get(path)
            if known is None or known.use not in (use, "write"):
                new = _look_at(link, path, place_of(path), use)
                found[path] = replace(new, held=known.held if known else [])
            if found[path].place == "outside":
                found[path].held.append(one)
    for member in members:
        for path, info, code in _mapped(member.identity.pid, names):
            library = code or info.st_uid != owner
            known = found.get(path)
            if known is None or (library and known.use != "write"):
                use = "library" if library else "mapped"
                found[path] = OpenFile(
                    path,
                    place_of(path),
                    use,
                    info.st_size,
                    info.st_mtime_ns,
                    mode=stat.S_IMODE(info.st_mode),
                    inode=info.st_ino,
                    device=info.st_dev,
                    folder=_folder_inode(path),
                )
            elif known.use != "library":
                found[path] = replace(known, mapped=True)
    return Record(
        sorted(capsule.stopped_by_user),
        sorted(found.values(), key=lambda one: one.path),
        tcp_sockets((m.identity.pid for m in members), connections.kept_by(capsule)),
    )


def in_the_middle(capsule: NamespaceCapsule) -> str | None:
    """Return the path of a SQLite database that a process of the frozen capsule is changing at
    this moment, else None. One that is stopped there for long may lose its transaction."""
    for member in capsule.members():
        for link, one in _descriptors(member.identity.pid, member.pid):
            if not any(lock.write and lock.style == "posix" for lock in one.locks):
                continue
            path = os.readlink(link)
            kind = kind_of(path, _head(link))
            wal = kind is Kind.SQLITE and has_wal(_head(link))
            if in_transaction(kind, one.locks, wal=wal, writing=True):
                return path
    return None


def other_libraries(record: Record) -> list[str]:
    """Mapped files outside (libraries, Python itself) that are missing here or have another size,
    which CRIU would refuse after everything is fetched."""
    found = []
    for one in record.files:
        if (one.place, one.use) == ("outside", "library"):
            try:
                same = os.stat(one.path).st_size == one.size
            except PermissionError:
                continue  # its user may see it; `reconcile` looks with that user's rights
            except OSError:
                same = False
            if not same:
                found.append(one.path)
    return found


def _look_at(link: str, path: str, place: str, use: str) -> OpenFile:
    info = os.stat(link)
    plain = OpenFile(path, place, use, info.st_size, info.st_mtime_ns)
    if place != "outside":
        return plain
    head = _head(link)
    kind = kind_of(path, head)
    return replace(
        plain,
        digest=_digest(link, info.st_size) if use == "write" else None,
        kind=kind.value,
        wal=kind is Kind.SQLITE and has_wal(head),
        mode=stat.S_IMODE(info.st_mode),
        inode=info.st_ino,
        device=info.st_dev,
        folder=_folder_inode(path),
    )


def _folder_inode(path: str) -> int:
    try:
        return os.stat(os.path.dirname(path)).st_ino
    except OSError:
        return 0


def _head(link: str) -> bytes:
    try:
        fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""  # as in `_digest`
    try:
        return os.pread(fd, HEAD_BYTES, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _digest(link: str, size: int) -> str | None:
    try:
        fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # shared storage that root may not read; its size still tells
    try:
        return outside.digest(fd, size)
    finally:
        os.close(fd)


def _descriptors(pid: int, inside: int) -> Iterator[tuple[str, Descriptor]]:
    """(link in /proc, what is known of it) of each open plain file that still has a name. `inside`:
    the pid in the capsule."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        link = f"{folder}/{number}"
        try:
            info = os.stat(link)
            if not stat.S_ISREG(info.st_mode) or info.st_nlink == 0:
                continue
            with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                text = file.read()
        except OSError:
            continue
        words = dict(line.split(":", 1) for line in text.splitlines()[:2])
        flags, position = int(words["flags"], 8), int(words["pos"])
        yield link, Descriptor(inside, int(number), flags, position, parse_locks(text))


def _mapped(pid: int, names: Mapping[str, str]) -> list[tuple[str, os.stat_result, bool]]:
    """(path, what it is, whether some of it is code) of each plain file in memory. `names`: of
    `links.find_names`."""
    found: dict[str, os.stat_result] = {}
    code: set[str] = set()
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            path = f"/{path}" if path else ""
            if path.endswith(links.DELETED):
                path = names.get(path.removesuffix(links.DELETED), "")
            if not path:
                continue
            if line.split()[1][2] == "x":
                code.add(path)
            if path in found:
                continue
            try:
                info = os.lstat(f"/proc/{pid}/root{path}")
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode):
                found[path] = info
    return [(path, info, path in code) for path, info in found.items()]


def _private_mounts(init: int) -> list[str]:
    """Mount points inside that are not the machine's: the private /tmp and /dev/shm, and what keeps
    its place in them."""
    ours, theirs = _mounts(os.getpid()), _mounts(init)
    return [point for point, source in theirs.items() if ours.get(point) != source]


def _mounts(pid: int) -> dict[str, tuple[str, str]]:
    found = {}
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split()
            found[words[4].encode().decode("unicode_escape")] = (words[2], words[3])
    return found
