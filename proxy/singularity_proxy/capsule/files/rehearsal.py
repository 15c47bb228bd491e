"""A return of a session that is only tried out: which files it opens how, so that none is touched.

`rehearse` is called by the node agent when a checkpoint is proved, while the session itself may run
beside it with the same files open. Nothing of the user's is made, cut or locked: what the session
writes to is open for reading, and what `reconcile` would make anew or close is one of the stand-ins
in a folder that is thrown away. What cannot be opened for reading alone (memory that writes to its
file, sockets, pipes, files that were deleted) lies below folders that the capsule shows as a *view*
of its own. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from singularity_proxy.capsule.files.scratch import mount_points

from . import reconcile
from .reconcile import Change, Checked, Outlook, Plan
from .record import OpenFile, Record
from .rules import Action, Way


@dataclass(frozen=True)
class Rehearsal:
    """How a session is brought back without a trace."""

    plan: Plan
    views: tuple[str, ...]
    """Folders below which something may be written, outer ones first: see `CapsuleSpec.views`."""
    shown: tuple[str, ...]
    """What is mounted below them, and is shown at its place again."""


def rehearse(
    record: Record,
    *,
    own: tuple[str, str],
    made: Collection[str],
    uid: int | None = None,
    gid: int | None = None,
) -> Rehearsal:
    """Look at the files of `record` with the rights of `uid`. `own`: the session's folder as it is
    called inside, and the one to throw away; `made`: paths at which a restore makes something.
    Raises `OpenFilesChanged` for what the session cannot come back without now, and `ImageFailed`
    when the files cannot be looked at."""
    quiet = replace(record, tcp=[], files=[_as_looked_at(one) for one in record.files])
    looked = reconcile.check(quiet, way=Way.RESUME, own=own, uid=uid, gid=gid)
    harmless = Outlook([_as_rehearsed(one) for one in looked.files], looked.way, looked.own)
    plan = reconcile.carry_out(harmless, uid=uid, gid=gid, label="").plan
    anew = {one.file.path for one in looked.files if one.action is Action.ANEW}
    changes = [_as_opened(one, one.path in anew) for one in plan.changes]
    held = {(one.pid, one.number) for file in record.files for one in file.held}
    views = _folders_of(record, made)
    return Rehearsal(Plan(changes, frozenset(held)), views, _mounted_below(views))


def _as_looked_at(one: OpenFile) -> OpenFile:
    """The file as if it were only read, without locks: whoever looks whether it can be written to
    opens it for writing, which ends leases, and takes a lock to see whether it is free."""
    held = [replace(descriptor, locks=[]) for descriptor in one.held]
    use = "read" if one.use == "write" else one.use
    return replace(one, use=use, held=held, digest=None)


def _as_opened(one: Change, anew: bool) -> Change:
    """The change in the image. What would be made anew is its stand-in; below a view a file has
    another number."""
    if anew:
        return replace(one, action=Action.ANEW)
    return one if one.target else replace(one, inode=None)


def _as_rehearsed(one: Checked) -> Checked:
    """The action that makes and changes nothing outside."""
    if one.action in (Action.ANEW, Action.SEVER):
        return replace(one, action=Action.SEVER)
    return replace(one, action=Action.KEEP if _needs_view(one.file) else Action.READ)


def _needs_view(one: OpenFile) -> bool:
    """Whether it may be in memory for writing, which takes a descriptor that writes."""
    return one.place == "outside" and one.use != "library" and (one.mapped or one.use == "mapped")


def _folders_of(record: Record, made: Collection[str]) -> tuple[str, ...]:
    paths = {one.path for one in record.files if _needs_view(one)} | set(made)
    folders = sorted({os.path.dirname(path) for path in paths if os.path.isabs(path)})
    found: list[str] = []
    for folder in folders:
        inside = any(folder == f or folder.startswith(f"{f}/") for f in found)
        if not inside and os.path.isdir(folder):
            found.append(folder)
    return tuple(found)


def _mounted_below(views: tuple[str, ...]) -> tuple[str, ...]:
    points = sorted(mount_points())
    return tuple(p for p in points if any(p.startswith(f"{view}/") for view in views))
