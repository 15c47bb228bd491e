"""How the node agent starts a session's processes: the `CapsuleLauncher` seam.

`ProcessLauncher` starts an ordinary process in a process group of its own, as the session's user.
Not in a session (setsid) of its own: Linux schedules each of those as one group (sched_autogroup),
and a worker that yields the core it shares with its proxy would yield to nobody. A launcher that
adds namespaces stands behind the same three calls. Nothing of the agent goes along: not its
environment, not its descriptors, not its signal dispositions.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import errno
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from singularity_proxy.errors import BadRequest, Conflict, NoSpace, SingularityError, Unavailable

from .process import ProcessIdentity, ProcessWatch

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SECRET_PREFIXES = ("JUPYTERHUB_", "JPY_", "SINGULARITY_API_", "CONFIGPROXY_")
"""Variables that never enter a capsule: Hub tokens and service addresses would land in process
images, and JPY_PARENT_PID makes ipykernel end itself when its parent changes."""

SESSION_VARIABLES = frozenset(
    {
        "SINGULARITY_SESSION",
        "SINGULARITY_SOCKET",
        "SINGULARITY_DOORBELL",
        "SINGULARITY_DEVICES",
        "SINGULARITY_DEVICE_TYPE",
        "SINGULARITY_GANG",
        "SINGULARITY_LOG",
    }
)
"""What the agent sets for a session's processes; never taken from anywhere else."""

HARMLESS = frozenset({"JPY_SESSION_NAME"})
"""Kept in spite of its prefix: the notebook's path, which libraries read to find their notebook."""


def stripped_environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the Hub's secrets and another session's variables, and with a PATH: for
    capsules, whose users' own credentials are theirs. See also `helper_environment`."""
    kept = {
        name: value
        for name, value in env.items()
        if name in HARMLESS or not (name.startswith(SECRET_PREFIXES) or name in SESSION_VARIABLES)
    }
    kept.setdefault("PATH", DEFAULT_PATH)
    return kept


_SECRET = re.compile(
    r"SECRET|TOKEN|PASSW|CREDENTIAL|_SAS|KEY|CONNECTION_STRING|^(?:AZURE|AWS|GOOGLE)_", re.I
)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name is kept from the agent's helpers."""
    return _SECRET.search(name) is not None


def helper_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment for a helper that runs, now or later, as a session's user (relay,
    device proxy): that user can read it, so the store's credentials and keys stay behind."""
    return {k: v for k, v in stripped_environment(env).items() if not looks_secret(k)}


@dataclass(frozen=True)
class CapsuleSpec:
    """What to start. `env` is the whole environment; `uid`/`gid` None: the agent's own."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    log_path: str
    """stdout and stderr are appended here (0600, the session's user)."""
    uid: int | None = None
    gid: int | None = None
    umask: int = 0o022
    pass_fds: tuple[int, ...] = ()
    """Descriptors of the relay's readiness pipe; empty for everything a user's code runs in."""
    tmp: str | None = None
    """A folder of the session's user that is /tmp inside, where the launcher can do that."""
    keep: tuple[str, ...] = ()
    """Folders of the session below /tmp or /dev/shm that stay at their place inside."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Path inside, below /tmp or /dev/shm -> the folder here that is shown there: the processes of
    a checkpoint find the folders of their session where they were on another node."""
    lease: str | None = None
    """The file of a `LeaseWord`, which the capsule obeys where the launcher can do that."""
    views: tuple[str, ...] | None = None
    """Not None: it leaves no trace. It has no network, ends with this process, and everything but
    `tmp` and what is `moved` is read-only; what is written below these folders goes to memory."""


class Capsule:
    """A started process tree. Also made from a `ProcessIdentity` alone after an agent restart."""

    def __init__(
        self,
        identity: ProcessIdentity,
        on_exit: Callable[[ProcessWatch], None] | None = None,
    ) -> None:
        self.watch = ProcessWatch(identity, on_exit, learn_code=True)

    @property
    def pid(self) -> int:
        return self.watch.pid

    @property
    def identity(self) -> ProcessIdentity:
        return self.watch.identity

    def signal(self, signum: int) -> bool:
        """Send `signum` to the process group, as Jupyter does to its kernels."""
        return self.watch.signal_group(signum)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the first process; False when `timeout` seconds pass first."""
        return await self.watch.wait(timeout)

    async def end(self, grace_s: float) -> int | None:
        """End the group: SIGTERM, `grace_s` seconds later SIGKILL (0: at once). Returns the exit
        code, None when nobody can tell it any more. Idempotent."""
        if self.watch.alive:
            if grace_s > 0:
                self.signal(signal.SIGTERM)
                # A stopped process would not see SIGTERM before it goes on.
                self.signal(signal.SIGCONT)
                await self.wait(grace_s)
            self.signal(signal.SIGKILL)
            await self.wait(10)
        return self.watch.exit_code


class CapsuleLauncher(abc.ABC):
    """The seam: the node agent starts kernels and runs through one of these and nothing else."""

    @abc.abstractmethod
    async def start(
        self, spec: CapsuleSpec, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> Capsule:
        """Start `spec`; `on_exit` is called on the loop when its first process has ended. Raises
        `BadRequest` when the program or folder does not exist or may not be used."""

    @abc.abstractmethod
    def adopt(
        self, identity: ProcessIdentity, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> Capsule:
        """The capsule that an earlier agent started; `on_exit` is called at once if it is gone."""


class ProcessLauncher(CapsuleLauncher):
    """Ordinary processes: own session and process group, mapped uid, no namespaces."""

    async def start(
        self, spec: CapsuleSpec, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> Capsule:
        return Capsule(spawn(spec), on_exit)

    def adopt(
        self, identity: ProcessIdentity, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> Capsule:
        return Capsule(identity, on_exit)


def open_log(path: str, uid: int | None, gid: int | None) -> int:
    """A descriptor that appends to the log at `path`, made if needed. The folder belongs to the
    session's user, so a link or a foreign file in its place is refused, never followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise Conflict(f"the log file {path} was replaced; remove it and try again") from None
        raise
    info = os.fstat(fd)
    wanted = os.geteuid() if uid is None else uid
    if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
        os.close(fd)
        raise Conflict(f"the log file {path} was replaced; remove it and try again")
    if info.st_uid not in (wanted, os.geteuid()):
        os.close(fd)
        raise Conflict(f"the log file {path} belongs to uid {info.st_uid}; remove it and try again")
    if info.st_uid != wanted:
        os.fchown(fd, wanted, gid if gid is not None else -1)
    os.set_blocking(fd, True)
    return fd


def trim_log(path: str, limit: int, uid: int | None = None) -> int:
    """Cut the log at `path` to its last half when it is longer than `limit` bytes; its writers
    append, so they go on behind the cut. Returns how many bytes were cut off. Called by the agent
    every few seconds. Nothing is done to a file that is not one of `uid` (None: our own) alone:
    in a folder of a user it may be a link to somebody else's."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        info = os.fstat(fd)
        own = info.st_uid == (os.geteuid() if uid is None else uid) and info.st_nlink == 1
        if not stat.S_ISREG(info.st_mode) or info.st_size <= limit or not own:
            return 0
        tail = os.pread(fd, limit // 2, info.st_size - limit // 2)
        os.pwrite(fd, tail, 0)  # over what is there: that needs no space
        os.ftruncate(fd, len(tail))
        return info.st_size - len(tail)
    except OSError:
        return 0  # full disk: the log stays as it is
    finally:
        os.close(fd)


def last_words(path: str, uid: int | None = None) -> str:
    """The last line in the log at `path` that says something, "" when there is none: the why for
    people. The file must be a plain one of `uid` (None: anybody's), because its folder may belong
    to a user who put a link to somebody else's file there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        info = os.fstat(fd)
        foreign = uid is not None and (info.st_uid != uid or info.st_nlink != 1)
        if not stat.S_ISREG(info.st_mode) or foreign:
            return ""
        data = os.pread(fd, 4096, max(0, info.st_size - 4096))
    finally:
        os.close(fd)
    lines = data.decode("utf-8", "replace").splitlines()
    last = next((line.strip()[:300] for line in reversed(lines) if any(map(str.isalnum, line))), "")
    return "".join(c if c.isprintable() else " " for c in last)


@contextlib.contextmanager
def _interrupt_not_ignored() -> Iterator[None]:
    # An ignored signal stays ignored across exec, and a shell starts background jobs with SIGINT
    # ignored: then no kernel could be interrupted. A handler, in contrast, is reset by exec.
    ignored = [s for s in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(s) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def spawn(spec: CapsuleSpec, *, own_session: bool = False) -> ProcessIdentity:
    """Start one process and return who it is; the caller watches it (`ProcessWatch` reaps it). In
    the caller's login session it shares the caller's part of the processors, else not."""
    asyncio.get_running_loop()
    if not spec.argv:
        raise BadRequest("there is no command to start")
    log = open_log(spec.log_path, spec.uid, spec.gid)
    drop = spec.uid is not None and spec.uid != os.geteuid()
    try:
        with _interrupt_not_ignored():
            child = subprocess.Popen(
                list(spec.argv),
                env=dict(spec.env),
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=None if own_session else 0,
                start_new_session=own_session,
                close_fds=True,
                pass_fds=spec.pass_fds,
                user=spec.uid if drop else None,
                group=spec.gid if drop else None,
                extra_groups=[] if drop else None,
                umask=spec.umask,
            )
    except OSError as error:
        raise start_error(spec, error) from None
    except ValueError as error:  # an embedded null byte
        raise BadRequest(f"'{spec.argv[0]}' cannot be started: {error}") from None
    finally:
        os.close(log)
    identity = ProcessIdentity.of(child.pid)
    child.returncode = 0  # the watch reaps it; this object must not try to
    return identity


def start_error(spec: CapsuleSpec, error: OSError) -> SingularityError:
    program = spec.argv[0]
    if error.errno == errno.ENOSPC:
        return NoSpace(f"'{program}' could not be started: the disk is full")
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return Unavailable(f"'{program}' could not be started: this node has no process to spare")
    if os.fspath(error.filename or "") == spec.cwd and spec.cwd != program:
        return BadRequest(
            f"the session cannot start in the folder '{spec.cwd}' ({error.strerror}); "
            "choose one that its user may enter",
            cwd=spec.cwd,
        )
    return BadRequest(
        f"'{program}' cannot be started ({error.strerror}); nothing was changed",
        program=program,
    )
