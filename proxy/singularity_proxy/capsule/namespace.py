"""Capsules in a pid, mount and IPC namespace of their own: `NamespaceLauncher`.

A process image needs it: every process must get its pid back at a restore, so the pids must be the
capsule's own. It also keeps users apart: a capsule sees neither the processes nor the /tmp nor the
/dev/shm of another. `holder.cpp` says how it is made; what holds for people is in docs/.

What is different inside, besides that:
* /tmp is a folder of the session, and /dev/shm is empty but for the session's ring folder. Folders
  that the command names (working folder, home, paths among its arguments) keep their place; if one
  of them is /tmp itself, /tmp stays the machine's.
* What loses its parent (daemons, `nohup`, `&`) becomes a child of the main process and not of pid 1
  (PR_SET_CHILD_SUBREAPER): CRIU dumps what is below one process. The shim reaps it.
* Low pids are free for CRIU; the main process has pid 5001 and is the leader of a session (setsid):
  CRIU refuses a tree whose session leader is outside. Linux makes an autogroup of it, so that
  a worker which yields (sched_yield) the only core that it shares with its device proxy yields to
  nobody; it goes to sleep after the spin of `wire/ring.h` then. docs/explanation/capsules.md has
  the measured price.
* System V semaphores, queues and shared memory are the capsule's own and end with it, so that it is
  known whose they are: no process image holds them (`images/system_v.py`).
* Pid 1 stops everything when the time is over that the agent gave the capsule (`lease_word`).
* A uid that the agent gave out can become no other one (no_new_privs): setuid programs such as sudo
  do not work there, as they did not before for a uid without a password entry. A capsule of the
  agent's own uid keeps what the agent may do.

An agent that is not root makes a user namespace around it, where the machine permits that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from singularity_proxy import build
from singularity_proxy.errors import BadRequest, SingularityError, Unavailable, Unsupported
from singularity_proxy.probes import (
    PASSING,
    CutShort,
    ask_again,
    check_ended,
    is_passing,
    run_probe,
)

from .launcher import (
    Capsule,
    CapsuleLauncher,
    CapsuleSpec,
    last_words,
    open_log,
    start_error,
    stripped_environment,
)
from .process import ProcessIdentity, ProcessWatch
from .rights import missing_right
from .tree import (
    Member,
    children,
    descendants,
    inner_pid,
    is_stopped,
    namespace_of,
    owner_of,
    send,
    state_of,
    tracer_of,
)

MAIN_PID = 5001
"""The main process's pid inside, of every capsule; holder.cpp has the same number."""

AFTER_RESTORE_PID = 6000
"""Where the namespace goes on counting after a restore."""

FREEZE_S = 5.0
"""A process that does not stop within this many seconds hangs in the system (a dead NFS server)."""

PRIVATE_FOLDERS = ("/tmp", "/dev/shm")
"""What is the session's own inside."""

_OWN_FOLDERS = (sys.prefix, str(Path(__file__).resolve().parents[2]))
"""The environment and the checkout of this product: a worker and a shim load parts of it."""
_PGROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9


_SOURCE = Path(__file__).with_name("holder.cpp")


def holder_program() -> Path:
    """The holder, built first if needed; raises `Unsupported` where it cannot be."""
    return build.build_program(_SOURCE)


def find_holder() -> Path | None:
    """Return the holder if it is built already."""
    return build.find_program(_SOURCE)


class NamespaceCapsule(Capsule):
    """A capsule with a holder. `identity` is the holder's outer process, which ends as the main
    process does; `init` is pid 1 inside, whose end is the end of the whole tree.

    `freeze`, `thaw` and the look-ups block for milliseconds; they may be called from any thread.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        init: ProcessIdentity,
        on_exit: Callable[[ProcessWatch], None] | None = None,
    ) -> None:
        super().__init__(identity, on_exit)
        self.init = init
        self._told: set[int] = set()
        """Pids inside that `freeze` told to stop."""
        self.stopped_by_user: frozenset[int] = frozenset()
        """Pids inside that were stopped before `freeze`: `thaw` leaves them so. Part of the
        checkpoint's record, and set again before the `thaw` that follows a restore."""

    @property
    def user_namespace(self) -> bool:
        """Whether it has a user namespace of its own (the agent is not root)."""
        return namespace_of(self.init.pid, "user") != namespace_of(os.getpid(), "user")

    def members(self) -> list[Member]:
        """The processes inside, without pid 1, parents first."""
        return descendants(self.init)

    def main(self) -> ProcessIdentity | None:
        """The main process as seen from here; None when it has ended or is not there yet."""
        return self.host_process(MAIN_PID)

    def host_process(self, pid: int) -> ProcessIdentity | None:
        """Who has `pid` inside. A restored process has the same pid inside and another here."""
        return next((m.identity for m in self.members() if m.pid == pid), None)

    def signal(self, signum: int) -> bool:
        """Send `signum` to the main process's group; False when that is gone."""
        main = self.main()
        if main is None or not self.watch.alive:
            return False
        try:
            fd = os.pidfd_open(main.pid)
        except ProcessLookupError:
            return False
        try:
            if ProcessIdentity.of(main.pid) != main:
                return False
            try:
                signal.pidfd_send_signal(fd, signum, None, _PGROUP)
            except OSError as error:
                if isinstance(error, ProcessLookupError):
                    return False
                os.killpg(main.pid, signum)  # an older kernel; it leads a group of that number
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    async def end(self, grace_s: float) -> int | None:
        """End the tree: SIGTERM to the main process's group, `grace_s` seconds later SIGKILL to
        everything inside. When it returns no process of the capsule is left."""
        if self.watch.alive and grace_s > 0 and self.signal(signal.SIGTERM):
            self.thaw()  # a stopped process would not see SIGTERM before it goes on
            self.signal(signal.SIGCONT)
            await self.wait(grace_s)
        if self.watch.alive:
            send(self.init, signal.SIGKILL)
            if not await self.wait(10):
                self.watch.signal(signal.SIGKILL)
                await self.wait(10)
        return self.watch.exit_code

    # -- freeze -----------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop every process inside, at any instruction. Idempotent. Raises `Unavailable` when one
        cannot be stopped; then all go on.

        Parents are stopped before their children and continued after them: a shell never sees that
        its job was stopped.
        """
        if not self._running():
            return
        stopped = frozenset(m.pid for m in self.members() if state_of(m.identity.pid) == "T")
        before = self.stopped_by_user | (stopped - self._told)
        try:
            self._stop_all(before)
        except BaseException:
            self._continue(before)
            raise
        self.stopped_by_user = before - self._told

    def _stop_all(self, before: frozenset[int]) -> None:
        """Tell all to stop until they have; `before`: pids that were stopped already. Raises
        `Unavailable`, and what looking at a process raises."""
        deadline = time.monotonic() + FREEZE_S
        patience = 0.05
        while running := self._running():
            for member in running:
                self._told.add(member.pid)
                send(member.identity, signal.SIGSTOP)
            if time.monotonic() > deadline:
                names = ", ".join(str(m.pid) for m in running)
                traced = [m.pid for m in self.members() if tracer_of(m.identity.pid)]
                if traced:
                    raise Unavailable(
                        f"the session could not be frozen because process {traced[0]} is traced by "
                        "a debugger (ptrace); it goes on, nothing was saved: end the debugger and "
                        "try again",
                        pids=traced,
                    )
                raise Unavailable(
                    f"the session could not be frozen because process {names} hangs in the system; "
                    "it goes on, nothing was saved: try again when the disk or network it waits "
                    "for answers",
                    pids=[m.pid for m in running],
                )
            waited = time.monotonic() + patience
            while time.monotonic() < waited and self._running():
                time.sleep(0.001)
            if self._running():
                # A parent in vfork() waits for a child that we stopped: let both go on a moment.
                self._continue(before)
                time.sleep(0.005)
                patience = min(patience * 2, 1.0)

    def thaw(self) -> None:
        """Let everything go on that `freeze` stopped, also what CRIU has just let go of, which is
        not stopped again yet; nothing happens to what runs."""
        self._continue(self.stopped_by_user)
        self.stopped_by_user = frozenset()

    def wait_untraced(self, limit_s: float) -> None:
        """Before the `thaw` of what an agent left that was killed: wait until its CRIU has let go
        of the processes, `limit_s` seconds at most, and they are stopped as they were. Debuggers
        inside are left alone."""
        deadline = time.monotonic() + limit_s
        while not self._is_untraced() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.wait_frozen(1.0)

    def wait_frozen(self, limit_s: float) -> bool:
        """Wait until all are stopped that were told to by somebody else, `limit_s` seconds at most;
        whether they are. `thaw` passes over one that is only about to stop."""
        deadline = time.monotonic() + limit_s
        while not self.frozen:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def _is_untraced(self) -> bool:
        pids = [m.identity.pid for m in self.members()]
        return all(tracer_of(pid) in (0, *pids) for pid in pids)

    @property
    def frozen(self) -> bool:
        """Whether there is a process inside and none can execute an instruction."""
        return bool(self.members()) and not self._running()

    def _running(self) -> list[Member]:
        return [m for m in self.members() if not is_stopped(m.identity.pid)]

    def _continue(self, but: frozenset[int]) -> None:
        """Let everything go on that is stopped, and what `freeze` told to stop: it may only be
        about to, and would stand still afterwards. `but`: pids that stay as they were, unless
        `freeze` told them to stop as well."""
        for member in reversed(self.members()):
            stopped = member.pid not in but and state_of(member.identity.pid) == "T"
            if stopped or member.pid in self._told:
                send(member.identity, signal.SIGCONT)
        self._told.clear()

    # -- programs inside --------------------------------------------------------------------------

    @contextlib.contextmanager
    def entering(
        self, *, rights: bool, own_files: bool = False, handles: bool = False, last_pid: int = 0
    ) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        """(words to put before a command so that it runs inside, descriptors to pass on).

        It runs with all the agent's rights, or as the session's user without any. `own_files`: it
        has the rights of that user alone where files are concerned; with `handles` it may yet read
        all of them. `last_pid`: after a success the namespace counts on from there. Raises
        `Unavailable` when the capsule ended.
        """
        ended = "the session's processes have ended"
        try:
            fd = os.pidfd_open(self.init.pid)
        except OSError:
            raise Unavailable(ended) from None
        try:
            uid, gid = owner_of(self.init.pid)
            if ProcessIdentity.of(self.init.pid) != self.init:
                raise Unavailable(ended)
            words = [os.fspath(holder_program()), "enter", "--pidfd", str(fd)]
            if namespace_of(self.init.pid, "net") != namespace_of(os.getpid(), "net"):
                words += ["--sealed", "1"]
            if self.user_namespace:
                words.append("--user")
            elif uid != os.geteuid():
                words += ["--uid", str(uid), "--gid", str(gid)]
            if rights and (self.user_namespace or uid != os.geteuid()):
                words.append("--root")
                if own_files and not self.user_namespace:
                    words += ["--own-files", *(["--handles"] if handles else [])]
            if last_pid:
                words += ["--last-pid", str(last_pid)]
        except OSError:
            os.close(fd)
            raise Unavailable(ended) from None
        try:
            yield [*words, "--"], (fd,)
        finally:
            os.close(fd)


class NamespaceLauncher(CapsuleLauncher):
    """Starts capsules with a holder. Made by `probe`."""

    def __init__(self, holder: Path, *, user_namespace: bool, keep: Sequence[str] = ()) -> None:
        self._holder = holder
        self._user_namespace = user_namespace
        self._keep = tuple(keep)

    async def start(
        self, spec: CapsuleSpec, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> NamespaceCapsule:
        if not spec.argv:
            raise BadRequest("there is no command to start")
        return NamespaceCapsule(*self._run(spec, list(spec.argv)), on_exit)

    async def prepare(
        self, spec: CapsuleSpec, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> NamespaceCapsule:
        """An empty capsule for `image.restore`, with the mounts of `start`. It ends with the main
        process that is restored in it, or by `end`. `argv` still names folders to keep."""
        return NamespaceCapsule(*self._run(spec, None), on_exit)

    def adopt(
        self, identity: ProcessIdentity, on_exit: Callable[[ProcessWatch], None] | None = None
    ) -> Capsule:
        return adopt(identity, on_exit)

    def _run(
        self, spec: CapsuleSpec, argv: list[str] | None
    ) -> tuple[ProcessIdentity, ProcessIdentity]:
        """Start a holder; returns its outer process and pid 1. As in `launcher.spawn` the loop
        waits the few milliseconds, so that nobody reaps the child before it is watched."""
        os.close(open_log(spec.log_path, spec.uid, spec.gid))
        drop = spec.uid is not None and spec.uid != os.geteuid()
        words = [os.fspath(self._holder), "run", "--umask", str(spec.umask)]
        words += ["--cwd", spec.cwd, "--log", spec.log_path, "--shm"]
        if drop:
            words += ["--uid", str(spec.uid), "--gid", str(spec.gid)]
        if self._user_namespace:
            words.append("--user")
        keep = kept_folders(spec, self._keep)
        if spec.tmp is not None and keep is not None:
            words += ["--tmp", spec.tmp]
        for folder in keep or [f for f in spec.keep if _private_base(f) == "/dev/shm"]:
            words += ["--keep", folder]
        for path, folder in sorted(spec.moved.items()):
            if not _private_base(path) and spec.views is None:
                raise Unsupported(
                    f"the session was started in {path}, which is neither below /tmp nor below "
                    "/dev/shm, so its processes cannot be restored in another place",
                    path=path,
                )
            words += ["--keep", folder, "--at", path]
            words += ["--writable"] if spec.views is not None else []
        if spec.views is not None:
            words += ["--sealed", str(os.getpid())]
            for folder in spec.views:
                words += ["--view", folder]
        words += ["--idle", "--"] if argv is None else ["--", *argv]
        read, write = os.pipe()
        passed = [write]
        try:
            if spec.lease is not None:
                passed.append(os.open(spec.lease, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
                words[2:2] = ["--lease", str(passed[1])]
            child = subprocess.Popen(
                [*words[:2], "--report", str(write), *words[2:]],
                env=dict(spec.env),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
                pass_fds=passed,
            )
        except OSError as error:
            os.close(read)
            raise Unavailable(
                f"the session could not be started: {self._holder} cannot be run "
                f"({error.strerror}); nothing was changed"
            ) from None
        except ValueError as error:  # an embedded null byte
            os.close(read)
            raise BadRequest(f"the session cannot be started: {error}") from None
        finally:
            for fd in passed:
                os.close(fd)
        with open(read, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
        outer = ProcessIdentity.of(child.pid)
        failed = next((words for words in lines if words[0] == "error"), None)
        init = next((int(words[1]) for words in lines if words[0] == "init"), None)
        if failed is not None or init is None:
            child.wait()
            step, number = (failed[1], int(failed[2])) if failed else ("holder", 0)
            raise _failure(spec, step, number)
        child.returncode = 0  # the watch reaps it; this object must not try to
        try:
            inner = ProcessIdentity.of(init)
        except ProcessLookupError:  # a command that ended at once: the watch tells how
            inner = ProcessIdentity(init, -1)
        return outer, inner


def adopt(
    identity: ProcessIdentity, on_exit: Callable[[ProcessWatch], None] | None = None
) -> Capsule:
    """The capsule that an earlier agent started with either launcher."""
    with contextlib.suppress(OSError):
        if ProcessIdentity.of(identity.pid) == identity:
            for child in children(identity.pid):
                if inner_pid(child) == 1:
                    return NamespaceCapsule(identity, ProcessIdentity.of(child), on_exit)
    return Capsule(identity, on_exit)


def probe(keep: Sequence[str] = ()) -> tuple[NamespaceLauncher | None, str]:
    """The launcher where this machine permits namespaces, and one sentence that says so or why not.

    Called by the agent at start; runs `true` in a capsule (about 50 ms, and a second more when the
    holder has to be compiled first). `keep`: folders below /tmp that every capsule sees. Raises
    `CutShort` when the machine did not get to say whether it permits them.
    """
    try:
        holder = ask_again(_holder)
    except (SingularityError, OSError) as error:
        text = error.message if isinstance(error, SingularityError) else str(error)
        return None, f"capsules have no namespaces: {text.rstrip('.')}."
    why = ""
    for user_namespace in (False, True) if os.geteuid() == 0 else (True,):
        why = ask_again(lambda own=user_namespace: _try(holder, own))  # type: ignore[misc]
        if not why:
            kind = "pid, mount and user" if user_namespace else "pid and mount"
            launcher = NamespaceLauncher(holder, user_namespace=user_namespace, keep=keep)
            if not user_namespace or os.geteuid() != 0:
                return launcher, f"capsules have {kind} namespaces of their own."
            # Other uids do not exist in the user namespace of one uid.
            why = "this node's root may not make namespaces for other users"
    return None, f"capsules have no namespaces: {missing_right() or why}."


def probe_sealed(holder: Path) -> str:
    """Return why no capsule that leaves no trace (`CapsuleSpec.views`) can be made here, as a
    clause; "": one can. Called by the doctor; runs `true` in one. Raises `CutShort`."""
    own = os.geteuid() != 0
    return missing_right() or ask_again(lambda: _try(holder, own, sealed=True))


def _holder() -> Path:
    try:
        return holder_program()
    except OSError as error:
        if is_passing(error):
            raise CutShort(f"the holder of capsules cannot be built ({error.strerror})") from None
        raise


def _try(holder: Path, user_namespace: bool, *, sealed: bool = False) -> str:
    """ "" when a capsule can be started, else why not. Raises `CutShort`."""
    with tempfile.TemporaryDirectory(prefix="capsule-") as made:
        report, write = os.pipe()
        folder = os.path.realpath(made)  # a view is made of no path with links
        words = ["--report", str(write), "--log", f"{folder}/log", "--tmp", folder, "--shm"]
        words += ["--cwd", "/", "--keep", folder]
        if sealed:
            os.mkdir(view := f"{folder}/view")
            words += ["--writable", "--sealed", str(os.getpid()), "--view", view]
        if user_namespace:
            words.append("--user")
        try:
            done = run_probe(
                [holder, "run", *words, "--", "true"],
                10,
                env=stripped_environment({}),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(write,),
            )
        except OSError as error:
            return str(error)
        finally:
            os.close(write)
            with open(report, encoding="utf-8", errors="replace") as file:
                said = file.read()
        for line in said.splitlines():
            word, step, number = (*line.split(), "", "")[:3]
            if word == "error" and int(number) in PASSING:
                raise CutShort(f"'{step}' failed ({os.strerror(int(number))})")
            if word == "error":
                return f"'{step}' is refused here ({os.strerror(int(number))})"
        if done.returncode > 128:  # what the first process was ended by
            check_ended(128 - done.returncode)
        if done.returncode:
            return f"the first process ended with {done.returncode} {last_words(f'{folder}/log')}"
    return ""


def kept_folders(spec: CapsuleSpec, more: Sequence[str] = ()) -> list[str] | None:
    """The folders that keep their place in the private /tmp and /dev/shm, outer ones first; None
    when the command works in /tmp itself, which then cannot be private.

    Those are the session's own, and where the things are that the command names: its working
    folder, its home, Python's path, this product, every file or folder that is an argument. Of
    these the whole folder of /tmp counts, `/tmp/work` for `/tmp/work/.venv/bin/python`: who names a
    part needs the rest. Only what holds the session's own folders is no such whole.
    """
    named = [spec.cwd, *more, *_folders_of(spec.argv), *_folders_in(spec.env), *_OWN_FOLDERS]
    named = [os.path.normpath(p) for p in named if os.path.isabs(p)]
    own = [os.path.normpath(p) for p in (*spec.keep, *spec.moved)]
    if set(PRIVATE_FOLDERS) & {*own, *named}:
        return None
    wanted = {*own[: len(spec.keep)], *(_whole(p, own) for p in named if os.path.isdir(p))}
    inside = sorted(p for p in wanted if _private_base(p) and os.path.isdir(p))
    kept: list[str] = []
    for path in inside:
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def _private_base(path: str) -> str | None:
    return next((base for base in PRIVATE_FOLDERS if path.startswith(f"{base}/")), None)


def _whole(path: str, own: Sequence[str]) -> str:
    """The highest folder above `path`, below /tmp or /dev/shm, that holds none of `own`."""
    base = _private_base(path)
    while base and (above := os.path.dirname(path)) != base:
        if any(folder == above or folder.startswith(f"{above}/") for folder in own):
            break
        path = above
    return path


def _folders_of(argv: Sequence[str]) -> Iterator[str]:
    for word in argv:
        path = word.rpartition("=")[2]
        if os.path.isabs(path) and _private_base(os.path.normpath(path)):
            yield path if os.path.isdir(path) else os.path.dirname(path)


def _folders_in(env: Mapping[str, str]) -> Iterator[str]:
    for name in ("HOME", "PYTHONPATH", "PATH", "VIRTUAL_ENV"):
        yield from (p for p in env.get(name, "").split(":") if p not in PRIVATE_FOLDERS)


def _failure(spec: CapsuleSpec, step: str, number: int) -> SingularityError:
    error = OSError(number, os.strerror(number))
    if step == "exec":
        return start_error(spec, error)
    if step == "chdir":
        error.filename = spec.cwd
        return start_error(spec, error)
    if step == "log":
        return BadRequest(
            f"the session's log {spec.log_path} cannot be opened ({error.strerror}); "
            "nothing was changed",
            path=spec.log_path,
        )
    return Unsupported(
        f"the capsule of the session could not be made ('{step}': {error.strerror}); nothing was "
        "changed: an administrator can set NodeAgent.capsule to 'process'",
        step=step,
    )
