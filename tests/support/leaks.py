"""What a test run may not leave behind: processes, open files, shared memory, folders in /tmp.

`tests/conftest.py` takes a `Baseline` when the run begins and asks for `leaks` when it is over.
Each leak is one sentence that says what it is and, where known, which test it grew in.

A process is ours when it carries the run's mark in its environment (every descendant inherits it),
is a descendant, or is an orphan that runs one of our modules from this checkout's environment
without any run's mark while there is no other run. Two runs on one machine, and the workers of one
(`-n`), therefore do not accuse each other.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MARK = "SINGULARITY_TEST_RUN"
"""Environment variable whose value names the run; set by `conftest.py` before anything starts."""

SCRATCH = "sgt-"
"""How the temp folder of a run begins; `conftest.py` makes it in /tmp."""

PID_FILE = "pid"
"""File in it with the process id of that run."""

FD_SLACK = 8
"""Descriptors the run may keep: what libraries hold for the next time (the random source, an event
loop of jupyter_core's and of tornado's with what was open in it last). What a test leaks each time
it or its like runs soon is more."""

_OUR_MODULES = re.compile(
    r"singularity_(proxy|scheduler|kernel|spawner|labext)|jupyter-singularity|configurable-http-proxy"
)
_SHARED = (Path("/dev/shm"), Path("/tmp"))


def open_fds() -> dict[int, str]:
    """What each descriptor of this process leads to, as /proc says it."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if "/site-packages/" not in target:  # a library keeps a file, such as a font, for later
            found[int(fd)] = target
    return found


def fd_targets() -> Counter[str]:
    """What this process has open, sockets and pipes counted by kind."""
    return Counter(re.sub(r"^(socket|pipe):.*", r"\1", target) for target in open_fds().values())


def name_fds(before: Collection[str] = ()) -> list[str]:
    """What each descriptor leads to that is none of `before`; a socket by both its ends. The pair
    of an event loop, beside its eventpoll, has no names."""
    sockets = {c.fd: c for c in psutil.Process().net_connections("all")}
    named = []
    for fd, target in sorted(open_fds().items()):
        if target in before:
            continue
        if (found := sockets.get(fd)) is not None:
            ends = " > ".join(_name_end(end) for end in (found.laddr, found.raddr) if end)
            state = "" if found.status == psutil.CONN_NONE else f" {found.status}"
            named.append(f"{fd} {found.family.name} {ends or 'without a name'}{state}")
        else:
            named.append(f"{fd} {target}")
    return named


def _name_end(end: Any) -> str:
    return end if isinstance(end, str) else f"{end.ip}:{end.port}"


def fd_count() -> int:
    """Open descriptors of this process, the listing's own not counted."""
    return len(os.listdir("/proc/self/fd")) - 1


def _shared_folders() -> set[Path]:
    return {path for base in _SHARED for path in base.glob("singularity-*")}


@dataclass
class Baseline:
    """The state of the machine before the first test."""

    run: str
    started: float = field(default_factory=lambda: psutil.Process().create_time())
    fds: Counter[str] = field(default_factory=fd_targets)
    targets: frozenset[str] = field(default_factory=lambda: frozenset(open_fds().values()))
    folders: set[Path] = field(default_factory=_shared_folders)
    fd_growth: Counter[str] = field(default_factory=Counter)
    """Descriptors gained per test id, so that a leak can be traced to the tests it grew in."""

    def look_at_fds(self) -> None:
        """What is open by now is nobody's leak."""
        self.fds, self.targets = fd_targets(), frozenset(open_fds().values())


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def _is_ours(process: psutil.Process, baseline: Baseline, descendants: set[int]) -> bool:
    if process.pid in descendants:
        return True
    mark = _mark_of(process)
    if mark is not None:
        return mark == baseline.run
    line = " ".join(process.cmdline())
    return (
        process.create_time() >= baseline.started
        and process.ppid() == 1
        and sys.prefix in line
        and _OUR_MODULES.search(line) is not None
        and not another_run()
        and not platform_runs()
    )


def platform_runs() -> bool:
    """Whether a node agent of this checkout runs that no tests have started (`./dev up`): what its
    sessions start becomes an orphan as well."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            mine = line and line[0].startswith(sys.prefix) and "singularity_scheduler.agent" in line
            if mine and process.ppid() != 1 and MARK not in process.environ():
                return True  # its parent is the platform; one that tests left has none
    return False


def leaked_processes(baseline: Baseline) -> list[psutil.Process]:
    """Processes of this run that are still alive (or dead and never waited for)."""
    me = psutil.Process()
    descendants = {child.pid for child in me.children(recursive=True)}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == me.pid or not _is_ours(process, baseline, descendants):
                continue
            if "multiprocessing.resource_tracker" in " ".join(process.cmdline()):
                continue  # Python's own helper; it ends with this process
            found.append(process)
        except psutil.Error:
            continue  # it ended while we looked
    return found


def _in_use(folder: Path) -> bool:
    """Whether a live process holds a bound socket, a mapping, a cwd or a file below `folder`."""
    prefix = f"{folder}/"
    if prefix in Path("/proc/net/unix").read_text(errors="replace"):
        return True
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{os.readlink(entry / 'cwd')}/".startswith(prefix):
                return True
            if prefix in (entry / "maps").read_text(errors="replace"):
                return True
            if any(os.readlink(fd).startswith(prefix) for fd in (entry / "fd").iterdir()):
                return True
        except OSError:
            continue  # gone, or of another user
    return False


def another_run(base: Path = Path("/tmp")) -> bool:
    """Whether the tests of another checkout (or a second run of this one, or another worker of it)
    are running now, whose scratch folder is in `base`."""
    own = Path(os.environ.get("TMPDIR", "/tmp"))
    for file in base.glob(f"{SCRATCH}*/{PID_FILE}"):
        try:
            if file.parent != own and Path(f"/proc/{int(file.read_text())}").exists():
                return True
        except (OSError, ValueError):
            continue  # that run is just ending or starting
    return False


KEPT = "singularity-compiled-"
"""Folders of a user's compiled graphs: they stay for the next session, by design."""


def leaked_folders(baseline: Baseline) -> list[Path]:
    """New `singularity-*` entries of the temp folder of this run, and those of /dev/shm and /tmp
    that no live process uses.

    Nothing says whose an unused one of /dev/shm or /tmp is (the other run may be about to use or to
    remove it), so they are nobody's leak while there is another run.
    """
    own_tmp = Path(os.environ.get("TMPDIR", "/tmp"))
    mine = set() if own_tmp in _SHARED else set(own_tmp.glob("singularity-*"))
    new = {folder for folder in _shared_folders() - baseline.folders if not _in_use(folder)}
    found = mine | (set() if new and another_run() else new)
    return sorted(folder for folder in found if not folder.name.startswith(KEPT))


def leaked_fds(baseline: Baseline) -> Counter[str]:
    """What is open now and was not at the start; empty when the growth is within `FD_SLACK`."""
    gc.collect()
    grown = fd_targets() - baseline.fds
    return grown if grown.total() > FD_SLACK else Counter()


def _describe(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"process {process.pid} ({process.name()}) ended but nobody waited for it"
        line = " ".join(process.cmdline())[:160] or process.name()
    except psutil.Error:
        return f"process {process.pid} was alive at the end of the run"
    done = "was killed" if _is_marked(process) else "goes on, it may be a platform's"
    return f"process {process.pid} outlived the run and {done}: {line}"


def _is_marked(process: psutil.Process) -> bool:
    """Whether it is surely of this run."""
    return _mark_of(process) is not None or process.pid in {
        child.pid for child in psutil.Process().children(recursive=True)
    }


def leaks(baseline: Baseline, wait_s: float = 5.0) -> list[str]:
    """One sentence per leak, after giving what is on its way out `wait_s` seconds to go.

    Leaked processes are killed, so that one bad test does not disturb the next run; one without the
    run's mark is only told of: `./dev up` of the same checkout may have begun it meanwhile.
    """
    deadline = time.monotonic() + wait_s
    processes, folders = leaked_processes(baseline), leaked_folders(baseline)
    while (processes or folders) and time.monotonic() < deadline:
        time.sleep(0.2)
        processes, folders = leaked_processes(baseline), leaked_folders(baseline)
    sentences = []
    for process in processes:
        sentences.append(_describe(process))
        with contextlib.suppress(psutil.Error):
            if _is_marked(process):
                process.kill()
    sentences += [f"{folder} was left behind and no process uses it" for folder in folders]
    grown = leaked_fds(baseline)
    if grown:
        kinds = ", ".join(f"{count} x {name}" for name, count in grown.most_common(6))
        tests = ", ".join(
            f"{name} (+{n})" for name, n in baseline.fd_growth.most_common(3) if n > 0
        )
        sentences.append(
            f"{grown.total()} file descriptors stayed open: {kinds}; grown most in: {tests or '?'}"
            f"; new are: {', '.join(name_fds(baseline.targets)[:40])}"
        )
    return sentences
