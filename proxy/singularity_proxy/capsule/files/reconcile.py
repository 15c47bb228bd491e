"""Files outside of a session, held against the record of its checkpoint when it comes back.

`check` looks, with the user's rights, and changes nothing; `carry_out` does what the table of
`rules` says and tells it; the `Plan` that it returns is what `image_files` changes in the
process image, so that CRIU opens each file as was decided. On the node of the return, before it.
All block.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.sockets import busy_ports, foreign_listeners
from singularity_proxy.errors import ImageFailed, OpenFilesChanged

from . import outside
from .kinds import Kind, database_of, in_transaction
from .record import OpenFile, Record
from .rules import Action, FileClass, Found, Way, decide

_HELPER_S = 600.0

ASIDE_BYTES = 1 << 30
"""A fork gets a copy of a file up to this size, and has a longer one open for reading only."""

STAND_INS = "closed-files"
"""Folder in a session's own one with files in the place of those that it may not use any more."""


@dataclass(frozen=True)
class Change:
    """How one path is opened when the processes come back."""

    path: str
    action: Action
    at_end: int = 0
    """Descriptors that write and stood here or later were at the end of the file,"""
    end: int = 0
    """which is here now."""
    target: str = ""
    """The file that is opened in its place; empty: itself."""
    inode: tuple[int, int] | None = None
    """(device, number) of the file that the user's rights led to."""


@dataclass(frozen=True)
class Plan:
    """What is changed in a process image before it is restored."""

    changes: list[Change] = field(default_factory=list)
    unlocked: frozenset[tuple[int, int]] = frozenset()
    """(pid inside, descriptor) whose locks are not taken again."""


@dataclass(frozen=True)
class Told:
    """What became of one file, for the loss report."""

    path: str
    file_class: FileClass
    found: Found
    action: Action
    way: Way
    copy: str = ""
    bytes: int = 0
    foreign: bool = False
    unlocked: bool = False

    @property
    def rank(self) -> int:
        """The lower, the more a person misses it; a transaction that is given up comes first."""
        gave_up = self.file_class is FileClass.TRANSACTION and self.action is Action.SEVER
        return 0 if gave_up else 1 + _RANKS.index(self.action)

    def sentence(self) -> str:
        how = _HOW[self.found]
        match self.action:
            case Action.CUT:
                return (
                    f"{self.path} had grown by {self.bytes} bytes after the checkpoint and was set "
                    f"back; the longer version is kept as {self.copy}"
                )
            case Action.ASIDE:
                return (
                    f"what it writes to {self.path} goes to the copy {self.copy}, because the "
                    "session it was forked from writes to the file itself"
                )
            case Action.READ:
                return f"{self.path} {how}; it is open for reading only: open it again to write"
            case Action.SEVER if self.file_class is FileClass.TRANSACTION:
                return (
                    f"the transaction that was open in {self.path} was given up, because the "
                    "database was used by others; connect to it again"
                )
            case Action.SEVER:
                return f"{self.path} {how}; what had it open gets errors: open it again"
            case Action.ANEW:
                return (
                    f"{self.path} was gone; it was made anew, with what the session writes from "
                    "now on"
                )
        if self.unlocked:
            return f"the lock on {self.path} was lost: another program holds it now"
        if self.way is Way.ROLLBACK and self.found is Found.LONGER:
            why = "others write to it" if self.foreign else "it could not be set back"
            return (
                f"{self.path} {how} after the checkpoint and is left so, because {why}; what the "
                "session wrote since can be in it twice"
            )
        if self.action is Action.END:
            return f"{self.path} {how} after the checkpoint; the session goes on at its end"
        return f"{self.path} {how} after the checkpoint and is left so"


_RANKS = [Action.ANEW, Action.SEVER, Action.READ, Action.KEEP, Action.ASIDE, Action.CUT, Action.END]
"""From what is gone, or cannot be used as it was, to what only has more in it now."""

_HOW = {
    Found.SAME: "is as it was",
    Found.LONGER: "was written to by others",
    Found.REWRITTEN: "was rewritten",
    Found.CHANGED: "was changed",
    Found.SHORTER: "was made shorter",
    Found.MISSING: "is gone",
    Found.REPLACED: "is another kind of file now",
    Found.LINKED: "is a link to another file now",
    Found.READ_ONLY: "is read-only now",
    Found.UNREADABLE: "may not be opened any more",
    Found.ELSEWHERE: "is not on this node",
    Found.UNREACHABLE: "cannot be read at the moment",
}


@dataclass(frozen=True)
class Checked:
    """One file and what is to be done with it."""

    file: OpenFile
    file_class: FileClass
    found: Found
    action: Action
    answer: dict[str, Any]
    foreign: bool = False
    unlocked: bool = False

    @property
    def size(self) -> int:
        return int(self.answer.get("size", 0))


@dataclass(frozen=True)
class Outlook:
    """What a return has to do; nothing is changed yet."""

    files: list[Checked]
    way: Way
    own: tuple[str, str]

    @property
    def cuts(self) -> bool:
        """Whether a file of the user is cut: only when all of the checkpoint is here."""
        return any(one.action is Action.CUT for one in self.files)


@dataclass(frozen=True)
class Reconciled:
    """What was done, for the loss report and for the image."""

    told: list[Told]
    plan: Plan

    def sentences(self) -> list[str]:
        """What became of each, what a person misses most first."""
        return [one.sentence() for one in sorted(self.told, key=lambda one: one.rank)]


def reconcile(
    record: Record,
    *,
    way: Way,
    own: tuple[str, str],
    uid: int | None = None,
    gid: int | None = None,
    label: str,
    shared: Collection[str] = (),
) -> Reconciled:
    """`check`, then `carry_out`."""
    looked = check(record, way=way, own=own, uid=uid, gid=gid, shared=shared)
    return carry_out(looked, uid=uid, gid=gid, label=label)


def check(
    record: Record,
    *,
    way: Way,
    own: tuple[str, str],
    uid: int | None = None,
    gid: int | None = None,
    shared: Collection[str] = (),
    other_node: bool = False,
    running: Collection[int] | None = None,
) -> Outlook:
    """Look at everything outside, with the rights of `uid`; nothing is changed.

    `own`: the session's folder as it is called inside, and here. `shared`: paths that other
    sessions of the user have open for writing. `other_node`: the checkpoint is of another one.
    `running`: inodes of the sockets of the session itself, which still runs here and has its ports
    until it is taken down; None: it does not, and ports that connections of it left are waited for.
    Raises `OpenFilesChanged` with every file without which the session cannot come back, and
    `ImageFailed` for ports that somebody else listens on.
    """
    files = [one for one in record.files if one.place == "outside"]
    answers = as_user("examine", [_wanted(one) for one in files], uid, gid)
    groups: dict[str, list[tuple[OpenFile, dict[str, Any]]]] = {}
    checked: list[Checked] = []
    for one, answer in zip(files, answers, strict=True):
        if answer["found"] == "missing" and _is_elsewhere(one, answer, other_node):
            answer["found"] = "elsewhere"
        if one.kind in _OF_A_DATABASE:
            name = database_of(one.path, Kind(one.kind))
            groups.setdefault(name, []).append((one, answer))
        else:
            checked.append(_check_one(one, answer, way, shared))
    for group in groups.values():
        checked += _check_database(group, way)
    checked = _with_writers(checked, way)
    wrong = {one.file.path: one.found.value for one in checked if one.action is Action.REFUSE}
    if wrong:
        names = ", ".join(
            f"{path} ({_WRONG.get(what, what)})" for path, what in sorted(wrong.items())[:5]
        )
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise OpenFilesChanged(
            f"the session cannot be restored because files that it has in memory or open are not "
            f"as they were: {names}{more}; nothing was changed: put them back, or restore another "
            "checkpoint",
            files=wrong,
        )
    ports = busy_ports(record.tcp) if running is None else foreign_listeners(record.tcp, running)
    if ports:
        raise ImageFailed(
            f"the session cannot be restored because it listens on {', '.join(ports)}, which "
            "another program uses here; nothing was changed: end that program, or restore it on "
            "another node",
            step="restore",
            ports=ports,
            log=[],
        )
    return Outlook(checked, way, own)


_WRONG = {
    Found.ELSEWHERE.value: "its folder is not on this node, or not mounted",
    Found.UNREACHABLE.value: "its storage gives an error",
}

_OF_A_DATABASE = {Kind.SQLITE.value, Kind.JOURNAL.value, Kind.WAL.value, Kind.WAL_INDEX.value}


def classify(one: OpenFile) -> FileClass:
    """Return the class of a file that is part of no database."""
    if one.use == "library":
        return FileClass.LIBRARY
    if one.use == "mapped" or one.mapped:
        return FileClass.MAPPED
    if one.use == "read":
        return FileClass.READ
    if one.kind == Kind.CONTAINER.value:
        return FileClass.CONTAINER
    writers = [held for held in one.held if held.writes]
    if writers and all(held.appends for held in writers):
        return FileClass.APPENDED
    if all(held.appends or held.position >= one.size for held in writers):
        return FileClass.SEQUENTIAL
    return FileClass.IN_PLACE


def _check_one(one: OpenFile, answer: dict[str, Any], way: Way, shared: Collection[str]) -> Checked:
    file_class, found = classify(one), Found(answer["found"])
    if found is Found.LINKED and file_class is FileClass.MAPPED:
        found = Found.REWRITTEN if answer["size"] >= one.size else Found.SHORTER
    foreign = one.path in shared
    action = decide(file_class, found, way, foreign=foreign)
    if action is Action.ASIDE and one.size > ASIDE_BYTES:
        action = Action.READ
    if file_class is FileClass.MAPPED and action is Action.KEEP and one.use == "write":
        # In memory everything can stay. What is written through a descriptor has its own rule.
        of_descriptors = decide(FileClass.IN_PLACE, found, way, foreign=True)
        action = Action.KEEP if of_descriptors is Action.ASIDE else of_descriptors
    if answer["locked"] and action in (Action.KEEP, Action.END, Action.CUT):
        writes_in_place = file_class in (FileClass.IN_PLACE, FileClass.CONTAINER)
        action = Action.READ if writes_in_place else action
        return Checked(one, file_class, found, action, answer, foreign, unlocked=True)
    return Checked(one, file_class, found, action, answer, foreign)


def _check_database(group: list[tuple[OpenFile, dict[str, Any]]], way: Way) -> list[Checked]:
    """Decide on a database and what belongs to it, all together."""
    wal = any(one.wal for one, _ in group)
    busy = any(in_transaction(Kind(one.kind), one.locks, wal=wal) for one, _ in group)
    file_class = FileClass.TRANSACTION if busy else FileClass.DATABASE
    main = next((a for one, a in group if one.kind == Kind.SQLITE.value), None)
    found = Found.SAME if main is None else Found(main["found"])
    if busy and found is Found.SAME:
        found = next(
            (f for one, a in group if (f := _of_companion(one, a)) is not Found.SAME), found
        )
    if any(answer["locked"] for _, answer in group):
        found, file_class = Found.CHANGED, FileClass.TRANSACTION
    action = decide(file_class, found, way)
    out = []
    for one, answer in group:
        own = action
        if action is Action.KEEP and one.kind != Kind.SQLITE.value:
            own = _for_companion(one, Found(answer["found"]))
        out.append(Checked(one, file_class, found, own, answer))
    return out


def _of_companion(one: OpenFile, answer: dict[str, Any]) -> Found:
    """How a file is that belongs to a database. What is in a WAL's index changes by reading."""
    found = Found(answer["found"])
    if one.kind != Kind.WAL_INDEX.value or found not in (Found.SAME, Found.CHANGED):
        return found
    inode = answer.get("inode")
    return Found.SAME if inode and inode[1] == one.inode else Found.CHANGED


def _for_companion(one: OpenFile, found: Found) -> Action:
    """What is done with it while nothing is open in the database: the last one to leave has removed
    log and index, and a program that comes back looks at both again."""
    if one.kind == Kind.WAL_INDEX.value and found in (Found.MISSING, Found.SHORTER):
        return Action.ANEW
    if one.kind == Kind.WAL.value and found is Found.MISSING:
        return Action.ANEW
    if found in (Found.MISSING, Found.REPLACED, Found.LINKED, Found.UNREADABLE):
        return Action.SEVER
    return Action.READ if found is Found.READ_ONLY else Action.KEEP


def _is_elsewhere(one: OpenFile, answer: dict[str, Any], other_node: bool) -> bool:
    """Whether a file is missing with all of its storage: home is not mounted, or not shared."""
    folder = answer.get("folder")
    if not one.folder or (folder and folder[1] == one.folder):
        return False
    return other_node or answer.get("device") != one.device


def _with_writers(checked: list[Checked], way: Way) -> list[Checked]:
    """Look for other programs of this machine that have files open that would be cut."""
    wanted = {tuple(one.answer["inode"]) for one in checked if one.action is Action.CUT}
    if not wanted:
        return checked
    written = set(_written_by_others(wanted))
    return [
        replace(one, action=decide(one.file_class, one.found, way, foreign=True), foreign=True)
        if one.action is Action.CUT and tuple(one.answer["inode"]) in written
        else one
        for one in checked
    ]


def _written_by_others(wanted: Collection[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yield those of the inodes that a process of this machine has open for writing."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                info = os.stat(f"/proc/{pid}/fd/{number}")
                inode = (info.st_dev, info.st_ino)
                if inode not in wanted:
                    continue
                with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
                    flags = next(int(x.split()[1], 8) for x in file if x.startswith("flags:"))
            except (OSError, StopIteration):
                continue
            if flags & os.O_ACCMODE != os.O_RDONLY:
                yield inode


# -- doing it --------------------------------------------------------------------------------------


def carry_out(
    looked: Outlook, *, uid: int | None = None, gid: int | None = None, label: str
) -> Reconciled:
    """Do what `check` found to be done. A copy gets the name of its file plus "." and `label`, such
    as "after-CHECKPOINT". What cannot be done (a full disk) is done in the next more careful way,
    and told; nothing is raised for it."""
    inside, here = looked.own
    work: list[tuple[int, dict[str, Any]]] = []
    for number, one in enumerate(looked.files):
        body: dict[str, Any] = {"path": one.file.path, "size": one.file.size, "mode": one.file.mode}
        match one.action:
            case Action.CUT:
                work.append((number, {**body, "do": "cut", "expected": one.size}))
            case Action.ASIDE:
                work.append((number, {**body, "do": "aside"}))
            case Action.ANEW:
                size = one.file.size if one.file.mapped else 0
                work.append((number, {**body, "do": "make", "size": size}))
    done = dict(
        zip(
            [number for number, _ in work],
            as_user("put right", [body for _, body in work], uid, gid, label),
            strict=True,
        )
    )
    acted = [
        (one, _fall_back(one, done.get(number)), done.get(number, {}))
        for number, one in enumerate(looked.files)
    ]
    severed = [one for one, action, _ in acted if action is Action.SEVER]
    bodies = [
        {
            "do": "stand in",
            "path": os.path.join(here, STAND_INS, str(number)),
            "size": one.file.size if one.file.mapped else 0,
            "mode": 0o600,
        }
        for number, one in enumerate(severed)
    ]
    made = as_user("put right", bodies, uid, gid)
    for answer in made:
        if "copy" not in answer:
            raise ImageFailed(
                f"the session cannot be restored because its folder cannot be written to "
                f"({answer.get('error')}); the checkpoint is as it was: free some space and try "
                "again",
                step="restore",
                log=[],
            )
    places = {id(one): os.path.join(inside, STAND_INS, str(n)) for n, one in enumerate(severed)}
    inodes = {id(one): answer["inode"] for one, answer in zip(severed, made, strict=True)}
    changes, told, unlocked = [], [], set()
    for one, action, answer in acted:
        copy = str(answer.get("copy", "")) if action is Action.ASIDE else ""
        target = places.get(id(one), copy)
        inode = inodes.get(id(one)) or answer.get("inode") or one.answer.get("inode")
        if one.file.use != "library":
            end = (
                one.file.size if action is Action.CUT else 0 if action is Action.ANEW else one.size
            )
            changes.append(
                Change(
                    one.file.path,
                    action,
                    one.file.size,
                    end,
                    target,
                    None if inode is None else (inode[0], inode[1]),
                )
            )
        if one.unlocked or action is Action.SEVER or action is Action.READ:
            unlocked |= {(held.pid, held.number) for held in one.file.held}
        sentence = _told(one, action, answer, looked.way)
        if sentence is not None:
            told.append(sentence)
    return Reconciled(told, Plan(changes, frozenset(unlocked)))


def _fall_back(one: Checked, answer: dict[str, Any] | None) -> Action:
    """What is done, given how the attempt went."""
    if answer is None or "copy" in answer:
        return one.action
    if one.action is Action.CUT:
        return decide(one.file_class, one.found, Way.RESUME)
    return Action.READ if one.action is Action.ASIDE else Action.SEVER


def _told(one: Checked, action: Action, answer: dict[str, Any], way: Way) -> Told | None:
    """What people are told of it; None: nothing, for it is as a program expects it."""
    kind = Kind(one.file.kind)
    companion = kind in (Kind.JOURNAL, Kind.WAL, Kind.WAL_INDEX)
    if companion or one.file_class is FileClass.LIBRARY:
        return None
    if action is Action.KEEP and not one.unlocked:
        unread = one.file_class in (FileClass.READ, FileClass.APPENDED) and not one.foreign
        uncut = way is Way.ROLLBACK and one.file_class is FileClass.APPENDED
        if one.found is Found.SAME or (one.found is Found.LONGER and unread and not uncut):
            return None
        if one.file_class is FileClass.DATABASE and way is not Way.ROLLBACK:
            return None
    return Told(
        one.file.path,
        one.file_class,
        one.found,
        action,
        way,
        copy=str(answer.get("copy", "")),
        bytes=one.size - one.file.size,
        foreign=one.foreign,
        unlocked=one.unlocked,
    )


def _wanted(one: OpenFile) -> dict[str, Any]:
    return {
        "path": one.path,
        "use": one.use,
        "size": one.size,
        "mtime_ns": one.mtime_ns,
        "inode": one.inode,
        "digest": one.digest,
        "kind": one.kind,
        "wal": one.wal,
        "locks": [asdict(lock) for lock in one.locks],
    }


def as_user(
    do: str,
    files: Sequence[dict[str, Any]],
    uid: int | None,
    gid: int | None,
    label: str = "",
) -> list[dict[str, Any]]:
    """What `outside.py` answers to each of `record`, with the rights of `uid`. Raises `ImageFailed`
    when it cannot be asked."""
    if not files:
        return []
    drop = uid is not None and uid != os.geteuid()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", os.fspath(Path(outside.__file__))],
            input=json.dumps({"do": do, "label": label, "files": list(files)}),
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
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        last = f"its storage did not answer within {_HELPER_S:g} s"
    if last:
        raise ImageFailed(
            f"the session's open files could not be looked at ({last}); the checkpoint is as it "
            "was: try again",
            step="restore",
            log=[last],
        )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
