"""The record of a checkpoint: what a frozen capsule has open, and whether it can find it again.

A process image refers to files by path, and CRIU refuses a file that is missing or has another
size. Three kinds of files are told apart:

* *scratch*: in the session's folder, its private /tmp or /dev/shm. They travel (`scratch.py`).
* *ring*: in the session's ring folder. They travel as device state.
* *outside*: everything else, such as a CSV in home or a library. They stay where they are. One that
  is open for writing is recorded with size, mtime and hash; `reconcile` copies one aside that has
  grown since, and cuts it, so that the session goes on writing where it was.

`describe` is called with the tree frozen, `reconcile` on the node of the restore, before it. Both
block.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from singularity_proxy.errors import ImageFailed, OpenFilesChanged

from . import connections, outside
from .namespace import NamespaceCapsule
from .sockets import TcpSocket, busy_ports, tcp_sockets

_HELPER_S = 600.0


@dataclass(frozen=True)
class OpenFile:
    """A file that the image refers to. `use`: "read", "write" or "library" (mapped)."""

    path: str
    place: str
    use: str
    size: int
    mtime_ns: int
    digest: str | None = None


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
            [OpenFile(**one) for one in data["files"]],
            [TcpSocket(**one) for one in data["tcp"]],
        )

    def lost(self) -> list[str]:
        """What no restore brings back, one sentence each, for the loss report."""
        return [
            f"the network connection to {one.remote} was closed"
            for one in self.tcp
            if one.remote and not one.kept
        ]


@dataclass(frozen=True)
class Kept:
    """A file outside that had grown: set back to the checkpoint, what it was is in `copy`."""

    path: str
    copy: str
    bytes: int
    rewritten: bool
    """Its older part is not what it was either."""

    def sentence(self) -> str:
        if self.rewritten:
            return (
                f"{self.path} was rewritten after the checkpoint; that version is kept as "
                f"{self.copy}, and the file was cut to its length at the checkpoint"
            )
        return (
            f"{self.path} had grown by {self.bytes} bytes after the checkpoint and was set back; "
            f"the longer version is kept as {self.copy}"
        )


@dataclass(frozen=True)
class Reconciled:
    """What `reconcile` did and found, for the loss report."""

    kept: list[Kept]
    changed: list[str]
    """Files open for writing that have the right length and another content."""

    def sentences(self) -> list[str]:
        return [
            *(one.sentence() for one in self.kept),
            *(f"{path} was changed after the checkpoint and is left so" for path in self.changed),
        ]


def describe(capsule: NamespaceCapsule, *, session_folder: str, ring_folder: str) -> Record:
    """The record of a frozen capsule; the folders are paths inside. Files that were deleted are in
    the image itself and not in here."""
    mounts = _private_mounts(capsule.init.pid)
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
        for link, use in _descriptors(member.identity.pid):
            path = os.readlink(link)
            known = found.get(path)
            if known is not None and known.use in (use, "write"):
                continue
            place = place_of(path)
            info = os.stat(link)
            found[path] = OpenFile(
                path,
                place,
                use,
                info.st_size,
                info.st_mtime_ns,
                _digest(link, info.st_size) if (place, use) == ("outside", "write") else None,
            )
        for path, info in _mapped(member.identity.pid):
            if path not in found:
                size, mtime = info.st_size, info.st_mtime_ns
                found[path] = OpenFile(path, place_of(path), "library", size, mtime)
    return Record(
        sorted(capsule.stopped_by_user),
        sorted(found.values(), key=lambda one: one.path),
        tcp_sockets((m.identity.pid for m in members), connections.kept_by(capsule)),
    )


@dataclass(frozen=True)
class Grown:
    """What a restore has to set back: files and whether what was in them was rewritten, too."""

    files: tuple[tuple[OpenFile, bool], ...]
    changed: tuple[str, ...]
    """Files that are not as they were, and can stay so."""


def reconcile(
    record: Record, *, uid: int | None = None, gid: int | None = None, label: str, cut: bool = True
) -> Reconciled:
    """`check`, then `set_back`."""
    return set_back(check(record, uid=uid, gid=gid, cut=cut), uid=uid, gid=gid, label=label)


def check(
    record: Record, *, uid: int | None = None, gid: int | None = None, cut: bool = True
) -> Grown:
    """Check that everything outside is there for the restore; nothing is changed.

    With `cut` False a grown file is an error: for a fork, whose original still writes.
    `OpenFilesChanged` names every file that is missing, shorter or not as a reader or a library
    needs it; `ImageFailed` the ports that somebody else listens on.
    """
    files = [one for one in record.files if one.place == "outside"]
    answers = _as_user("examine", files, uid, gid)
    wrong: dict[str, str] = {}
    grown: list[tuple[OpenFile, bool]] = []
    changed: list[str] = []
    for one, answer in zip(files, answers, strict=True):
        found = str(answer.get("found") or answer.get("error"))
        if found == "changed":
            changed.append(one.path)
        elif found in ("longer", "rewritten") and one.use == "write" and cut:
            grown.append((one, found == "rewritten"))
        elif found != "same":
            wrong[one.path] = found
    if wrong:
        names = ", ".join(f"{path} ({what})" for path, what in sorted(wrong.items())[:5])
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise OpenFilesChanged(
            f"the session cannot be restored because files that it has open are not as they were: "
            f"{names}{more}; nothing was changed: put them back, or restore another checkpoint",
            files=wrong,
        )
    ports = busy_ports(one for one in record.tcp if not one.remote)
    if ports:
        raise ImageFailed(
            f"the session cannot be restored because it listens on {', '.join(ports)}, which "
            "another program uses here; nothing was changed: end that program, or restore it on "
            "another node",
            step="restore",
            ports=ports,
            log=[],
        )
    return Grown(tuple(grown), tuple(changed))


def other_libraries(record: Record) -> list[str]:
    """Mapped files outside (libraries, Python itself) that are missing here or have another size,
    which CRIU would refuse after everything is fetched."""
    found = []
    for one in record.files:
        if (one.place, one.use) == ("outside", "library"):
            try:
                same = os.stat(one.path).st_size == one.size
            except PermissionError:
                continue  # its user may see it; `check` looks with that user's rights
            except OSError:
                same = False
            if not same:
                found.append(one.path)
    return found


def set_back(
    grown: Grown, *, uid: int | None = None, gid: int | None = None, label: str
) -> Reconciled:
    """Copy grown files aside and cut them to what they were.

    The user's files are touched with the rights of `uid`. A copy gets the name of its file plus
    "." and `label`, such as "after-CHECKPOINT". Raises `OpenFilesChanged` for one that cannot be
    set back.
    """
    before = {one.path: os.stat(one.path).st_size for one, _ in grown.files}
    copies = _as_user("set back", [one for one, _ in grown.files], uid, gid, label)
    kept = []
    for (one, rewritten), answer in zip(grown.files, copies, strict=True):
        if "copy" not in answer:
            raise OpenFilesChanged(
                f"{one.path} has grown since the checkpoint and could not be set back "
                f"({answer.get('error')}); free some space or move it away, and try again",
                files={one.path: "longer"},
            )
        kept.append(Kept(one.path, answer["copy"], before[one.path] - one.size, rewritten))
    return Reconciled(kept, list(grown.changed))


def _as_user(
    do: str, files: Sequence[OpenFile], uid: int | None, gid: int | None, label: str = ""
) -> list[dict[str, Any]]:
    if not files:
        return []
    body = json.dumps({"do": do, "label": label, "files": [asdict(one) for one in files]})
    drop = uid is not None and uid != os.geteuid()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", os.fspath(Path(outside.__file__))],
        input=body,
        capture_output=True,
        text=True,
        timeout=_HELPER_S,
        check=False,
        cwd="/",
        env={},
        user=uid if drop else None,
        group=gid if drop else None,
        extra_groups=[] if drop else None,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise ImageFailed(
            f"the session's open files could not be looked at ({last}); nothing was changed",
            step="restore",
            log=[last],
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _digest(link: str, size: int) -> str | None:
    try:
        fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None  # shared storage that root may not read; its size still tells
    try:
        return outside.digest(fd, size)
    finally:
        os.close(fd)


def _descriptors(pid: int) -> list[tuple[str, str]]:
    """(link in /proc, "read" or "write") of each open plain file that still has a name."""
    found = []
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        link = f"{folder}/{number}"
        try:
            info = os.stat(link)
            if not stat.S_ISREG(info.st_mode) or info.st_nlink == 0:
                continue
            with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                flags = next(int(x.split()[1], 8) for x in file if x.startswith("flags:"))
        except OSError:
            continue
        found.append((link, "read" if flags & os.O_ACCMODE == os.O_RDONLY else "write"))
    return found


def _mapped(pid: int) -> list[tuple[str, os.stat_result]]:
    found: dict[str, os.stat_result] = {}
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            path = f"/{path}" if path else ""
            if not path or path in found or path.endswith(" (deleted)"):
                continue
            try:
                info = os.lstat(f"/proc/{pid}/root{path}")
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode):
                found[path] = info
    return list(found.items())


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
