"""Process images of a capsule, by CRIU: `dump` and `restore`.

The order of a checkpoint, for the node agent (nothing in here knows devices or rings):

1. `capsule.freeze()`; then the device proxies drain, detach and write their state, and the agent
   closes its ends of the session's sockets: CRIU refuses half a connection.
2. `record = files.describe(...)`: what is open, in words, for the way back.
3. `dump(capsule, folder)`, the scratch files by `scratch.pack`, the rings by a copy.
4. `capsule.end(0)` once the checkpoint is published, or `capsule.thaw()` if it goes on.

And back, on any node with the same files at the same paths:

1. Rings and their state files at their place; `reconcile.reconcile(record, ...)`.
2. `capsule = await launcher.prepare(spec)`, `scratch.unpack`, `restore(capsule, folder,
   plan=...)`: there is the tree, frozen as it was.
3. Rings to their new workers (`capsule.host_process`), sockets open, `capsule.thaw()`.

CRIU runs inside the capsule's namespaces, so it sees no foreign one, and with the session's uid but
the agent's rights (`holder.cpp` says why); a restore has the user's where files are concerned,
because it goes by paths. It always runs under a time limit: it can wait for ever.
The images hold the user's memory: `folder` is made 0700 and everything in it belongs to the agent.
The calls block; the agent makes them with `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from singularity_proxy.capsule import connections
from singularity_proxy.capsule.files import links, reach
from singularity_proxy.capsule.files.reconcile import Plan
from singularity_proxy.capsule.namespace import (
    AFTER_RESTORE_PID,
    FREEZE_S,
    MAIN_PID,
    NamespaceCapsule,
)
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.capsule.sockets import outside_peers
from singularity_proxy.capsule.tree import descendants, owner_of, send
from singularity_proxy.errors import ImageFailed, NoSpace, Unavailable, Unsupported

from . import criu, daemons, timers, whole
from . import files as image_files

LIMIT_S = 120.0
"""CRIU is killed after this long; a GB of memory takes about two seconds."""

_LOGS = ("dump.log", "restore.log")
_BOTH = ("--file-locks", "--link-remap", "--manage-cgroups=ignore", "-v2")
_DUMP = ("--leave-running", "--skip-in-flight", "--ghost-limit", "16G")
"""Connections that nobody accepted yet are closed like the others; open files that were deleted are
stored in the image up to this size."""
_STAMP = re.compile(r"^\([0-9.]+\)\s*(?:pie: \d+: )?")
_HARMLESS = ("Can't setup RLIMIT_NOFILE", "net: Unexpected error", "XDG_RUNTIME_DIR")


@dataclass(frozen=True)
class Image:
    """What `dump` wrote."""

    bytes: int
    seconds: float


def dump(
    capsule: NamespaceCapsule,
    folder: str,
    *,
    command: Sequence[str] | None = None,
    limit_s: float = LIMIT_S,
) -> Image:
    """Write the image of the whole tree to `folder`, which must not exist yet.

    The tree is left as it was found: one that runs is frozen for the time and goes on, a frozen one
    stays frozen. `command`: how CRIU is started (default: `criu.probe`).

    Raises `ImageFailed`, `NoSpace`, `Unsupported` (no CRIU) or `Unavailable` (the capsule has ended
    or cannot be frozen, CRIU cannot be asked now). Nothing is left in `folder` then and the tree is
    as before, except when CRIU had to be killed at work: `fields["intact"]` is False then, and the
    session must be restored from an older checkpoint.
    """
    words = list(command) if command is not None else _criu()
    was_frozen = capsule.frozen
    os.mkdir(folder, 0o700)
    try:
        capsule.freeze()
        if capsule.main() is None:
            raise Unavailable("the session's processes have ended, so there is nothing to save")
        whole.check_tree(capsule)
        _refuse_half_connections(capsule)
        names = links.find_names(capsule)
        kept = connections.kept_by(capsule)
        began = time.monotonic()
        tcp = connections.DUMP_KEEP if kept else connections.CLOSE
        arguments = ["dump", "-t", str(MAIN_PID), *_DUMP, *tcp, "-o", _LOGS[0]]
        try:
            status, output = _run(capsule, words, arguments, folder, limit_s)
        except subprocess.TimeoutExpired:
            raise _hung(capsule, limit_s) from None
        if status != 0 or not os.path.exists(os.path.join(folder, "inventory.img")):
            raise _failure("dump", folder, output)
        if kept:
            connections.close_others(folder, kept)
        links.use_names(folder, names)
        daemons.lead_own_sessions(folder)
        timers.wind_up(folder)
        if not capsule.wait_frozen(1.0):  # it was killed in another way, or a process came in
            capsule.freeze()
        whole.check_image(capsule, folder)
        seconds = time.monotonic() - began
        return Image(_keep_private(folder), seconds)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if not was_frozen:
            capsule.thaw()


def restore(
    capsule: NamespaceCapsule,
    folder: str,
    *,
    stopped: Sequence[int] = (),
    plan: Plan | None = None,
    command: Sequence[str] | None = None,
    limit_s: float = LIMIT_S,
) -> float:
    """Bring the tree in `folder` back inside `capsule`, an empty one of `launcher.prepare`; returns
    the seconds it took. The tree is frozen then: `thaw` lets it go on, but for the pids `stopped`
    (of the checkpoint's record), which the user had stopped. `plan`: of `reconcile`, how files
    outside are opened; without one each must be as it was.

    The image can be restored again. Raises `ImageFailed` (with CRIU's reason), `NoSpace`,
    `Unsupported`, or `Unavailable` when CRIU or what it restored was killed meanwhile; then the
    caller ends the capsule, and nothing is left of the attempt.
    """
    words = list(command) if command is not None else _criu()
    if capsule.members():
        raise Unavailable("a process image is restored in an empty capsule only")
    if plan is not None:
        image_files.apply(folder, plan)
    began = time.monotonic()
    tcp = connections.KEEP if connections.are_in(folder) else connections.CLOSE
    arguments = ["restore", "-d", *tcp, "-o", _LOGS[1]]
    try:
        handles = reach.needs_handles(folder)
        with _handed_over(folder, *owner_of(capsule.init.pid)):
            status, output = _run(
                capsule,
                words,
                arguments,
                folder,
                limit_s,
                own_files=True,
                handles=handles,
                last_pid=AFTER_RESTORE_PID,
            )
    except subprocess.TimeoutExpired:
        raise ImageFailed(
            f"the session's processes were not back after {limit_s:g} s and the attempt was given "
            "up; the checkpoint is as it was: try again, or restore another one",
            step="restore",
            log=_errors(folder, ""),
        ) from None
    if status != 0 or capsule.main() is None:
        failed = _failure("restore", folder, output)
        if _was_killed(status, failed):
            raise Unavailable(
                "the restore of the session's processes was itself killed; nothing was left here "
                "and the checkpoint is as it was, try again"
            )
        raise failed
    if not capsule.wait_frozen(FREEZE_S):  # CRIU tells each to stop, and does not wait for it
        raise Unavailable(
            "the restored processes did not stop to be looked at; nothing was left here and the "
            "checkpoint is as it was, try again"
        )
    other = image_files.verify(capsule, plan) if plan is not None else None
    if other is None and handles and not capsule.user_namespace:
        other = reach.find_foreign(capsule)
    if other is not None:
        raise ImageFailed(
            f"the session could not be restored because {other} was exchanged at that moment; the "
            "checkpoint is as it was: try again",
            step="restore",
            log=[],
        )
    capsule.stopped_by_user = frozenset(stopped)
    return time.monotonic() - began


def files_of(folder: str) -> list[str]:
    """Names of the files in `folder` that make up the image, CRIU's logs not among them."""
    return sorted(n for n in os.listdir(folder) if n.endswith(".img"))


def _criu() -> list[str]:
    found = criu.probe()
    if not found.conclusive:
        raise Unavailable(
            f"{found.reason.rstrip('.')}; nothing was changed and older checkpoints were kept, try "
            "again"
        )
    if not found.ok:
        raise Unsupported(
            f"process images are not possible on this node: {found.reason.rstrip('.')}; device "
            "checkpoints and parks are",
        )
    return found.command()


def _run(
    capsule: NamespaceCapsule,
    words: list[str],
    arguments: list[str],
    folder: str,
    limit_s: float,
    *,
    own_files: bool = False,
    handles: bool = False,
    last_pid: int = 0,
) -> tuple[int, str]:
    # The folder goes in as a descriptor: its path may be hidden inside, and is nobody's business.
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with (
            capsule.entering(
                rights=True, own_files=own_files, handles=handles, last_pid=last_pid
            ) as (enter, descriptors),
            tempfile.TemporaryFile() as said,
        ):
            own = owner_of(capsule.init.pid)[0] != 0 or capsule.user_namespace
            options = ["--unprivileged"] if own else []
            process = subprocess.Popen(
                [*enter, *words, *arguments, *_BOTH, *options, "-D", f"/proc/self/fd/{at}"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(*descriptors, at),
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            )
            try:
                status = process.wait(limit_s)
            finally:
                _kill(process)
            said.seek(0)
            return status, said.read().decode("utf-8", "replace")
    finally:
        os.close(at)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a CRIU that is still at work, with all its helpers; nothing when it has ended."""
    if process.poll() is None:
        helpers = descendants(ProcessIdentity.of(process.pid))
        for helper in reversed(helpers):
            send(helper.identity, signal.SIGKILL)
        process.kill()
        process.wait()


@contextlib.contextmanager
def _handed_over(folder: str, uid: int, gid: int) -> Iterator[None]:
    """The image belongs to the session's user while CRIU reads it, which has no more rights to
    files than that user; nobody but the agent gets into the folder above it."""
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    _give(folder, uid, gid)
    try:
        yield
    finally:
        _give(folder, os.geteuid(), os.getegid())


def _give(folder: str, uid: int, gid: int) -> None:
    """The folder and what is in it, with no rights for anybody else."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name in os.listdir(at):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            try:
                os.fchown(fd, uid, gid)
                os.fchmod(fd, 0o600)
            finally:
                os.close(fd)
        os.fchown(at, uid, gid)
    finally:
        os.close(at)


def _keep_private(folder: str) -> int:
    """Everything becomes the agent's, unreadable for anybody else; returns the bytes."""
    total = 0
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(fd, os.geteuid(), os.getegid())
            os.fchmod(fd, 0o600)
            total += os.fstat(fd).st_size
        finally:
            os.close(fd)
    return total


def _refuse_half_connections(capsule: NamespaceCapsule) -> None:
    peers = outside_peers([m.identity.pid for m in capsule.members()])
    if peers:
        names = ", ".join(sorted({p.path or "a socket without a name" for p in peers}))
        raise ImageFailed(
            f"no process image can be taken while the session is connected to {names}; it goes on "
            "and can be saved with its device state only, or once that connection is closed",
            step="dump",
            sockets=[p.to_json() for p in peers],
            intact=True,
            log=[],
        )


def _errors(folder: str, output: str) -> list[str]:
    """The lines of CRIU's log, and of what it printed, that tell what went wrong."""
    lines = output.splitlines()
    for name in _LOGS:
        with (
            contextlib.suppress(OSError),
            open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file,
        ):
            lines = [*file.read().splitlines(), *lines]
    found = [_STAMP.sub("", line.strip()) for line in lines if "rror" in line]
    return [line for line in found if not any(h in line for h in _HARMLESS)][:12]


def _reason(log: list[str]) -> str:
    """The first error in few words: it is the cause, what follows are its consequences."""
    first = log[0] if log else "CRIU gave no reason"
    if found := re.search(r"ctty inheritance detected sid/pgrp (\d+)", first):
        return f"process {found[1]} is a shell that controls jobs in a terminal of the session"
    return re.sub(r"^Error \([^)]*\): *", "", first).rstrip(".")[:200]


def _failure(step: str, folder: str, output: str) -> ImageFailed | NoSpace:
    log = _errors(folder, output)
    kept = (
        "the session goes on as it was, and its older checkpoints are kept"
        if step == "dump"
        else "the checkpoint is as it was"
    )
    if any("No space left on device" in line for line in log):
        return NoSpace(f"there is no room for the process image ({folder}); {kept}", path=folder)
    what = "taken" if step == "dump" else "restored"
    return ImageFailed(
        f"the process image could not be {what}: {_reason(log)}; {kept}",
        step=step,
        log=log,
        intact=True,
    )


def _was_killed(status: int, failed: ImageFailed | NoSpace) -> bool:
    """Whether a signal ended CRIU (`status`: of the program that started it), or a process that it
    was restoring: that says nothing of the image. Only the first error is a cause: CRIU kills what
    it has made when it gives up by itself."""
    if status < 0 or status == 128 + signal.SIGKILL:
        return True
    log = failed.fields.get("log") or [""]
    return "killed by signal" in log[0]


def _hung(capsule: NamespaceCapsule, limit_s: float) -> ImageFailed:
    """CRIU was killed in the middle: does the tree still run its own code?"""
    harmed = [m.pid for m in capsule.members() if _has_foreign_code(m.identity.pid)]
    kept = (
        "the session goes on as it was"
        if not harmed
        else "its processes cannot go on, so it must be restored from its previous checkpoint"
    )
    return ImageFailed(
        f"the process image was not ready after {limit_s:g} s and the attempt was given up; {kept}",
        step="dump",
        intact=not harmed,
        log=[],
        pids=harmed,
    )


def _has_foreign_code(pid: int) -> bool:
    # CRIU works inside the processes it dumps, from a mapping of this name, and removes it after.
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any("CRIUMFD" in line for line in file)
    except OSError:
        return False
