"""Who is who among the processes of a running platform, as /proc shows it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from singularity_spawner.platform.processes import of_run
from singularity_spawner.proc import Process, read_process

ROLES = {
    "hub": "singularity_spawner.platform.hub",
    "chp": "configurable-http-proxy",
    "service": "singularity_scheduler.service",
    "agent": "singularity_scheduler.agent",
    "template": "--template",
    "proxy": "singularity_proxy.device",
    "relay": "singularity_kernel.relay.app",
    "server": "jupyterhub.singleuser",
    "batch": "singularity_kernel.batch",
}
"""Role -> the module, program or option in the first arguments of its command line; the first
that fits."""

_NAMES = {"capsule-outer": "holder", "capsule-init": "init", "criu": "criu"}
"""Name of a process (comm) -> role."""

_NODE = re.compile(r"(?:NodeAgent\.node=|singularity-[0-9a-f]+-)(node-\d+)")
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438


@dataclass(frozen=True)
class Found:
    """A process of the platform. `session`: the id, or what of it is known (a proxy's name has the
    first six digits); "" for what belongs to no session."""

    process: Process
    role: str
    node: str
    session: str
    user: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        now = read_process(self.pid)
        return now is not None and now.started == self.process.started and not now.zombie

    def signal(self, signum: int) -> bool:
        """Send a signal; False when the process has ended."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True

    def __str__(self) -> str:
        about = " ".join(word for word in (self.node, self.session[:6], self.user) if word)
        return f"{self.role} {self.pid}" + (f" ({about})" if about else "")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def variable(pid: int, name: str) -> str:
    """A variable of the environment that a process was started with; "" when it has none."""
    for item in _read(pid, "environ").split(b"\0"):
        if item.startswith(name.encode() + b"="):
            return item.split(b"=", 1)[1].decode(errors="replace")
    return ""


def describe(process: Process) -> Found | None:
    """Who `process` is; None for what has no role of its own (kernels, users' commands)."""
    pid = process.pid
    line = [word.decode(errors="replace") for word in _read(pid, "cmdline").split(b"\0")]
    name = _read(pid, "comm").decode(errors="replace").strip()
    role = _NAMES.get(name, "")
    if not role:
        role = next((r for r, what in ROLES.items() if any(what in w for w in line[1:4])), "")
    if not role:
        return None
    found = _NODE.search(" ".join(line))
    session = user = ""
    if role == "proxy":
        session = name.rsplit("-", 1)[1] if name.startswith("sg-") else ""
    elif role in ("holder", "init"):
        inside = (variable(below, "SINGULARITY_SESSION") for below in sorted(descendants([pid])))
        session = next(filter(None, inside), "")
    elif role == "relay" and "--session" in line:
        session = line[line.index("--session") + 1]
    elif role == "server":
        user = variable(pid, "JUPYTERHUB_USER")
    return Found(process, role, found[1] if found else "", session, user)


def find(instance: str) -> list[Found]:
    """Every process of the run that has a role, by start."""
    found = [f for p in of_run(instance) if (f := describe(p)) is not None]
    agents = {f.pid for f in found if f.role == "agent"}
    # A fork of the agent that has not become another program yet is not one.
    found = [f for f in found if not (f.role == "agent" and f.process.parent in agents)]
    return sorted(found, key=lambda f: (f.process.started, f.pid))


def descendants(pids: Iterable[int]) -> set[int]:
    """`pids` and everything that they have started and that still runs."""
    wanted, seen = list(pids), set()
    while wanted:
        pid = wanted.pop()
        if pid in seen:
            continue
        seen.add(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                wanted += map(int, task.read_text().split())
            except OSError:
                continue
    return seen


def of_session(session: str) -> set[int]:
    """The processes with this session in their environment that still run, helpers of ours
    aside, and what is only there to prove a checkpoint."""
    wanted = f"SINGULARITY_SESSION={session}".encode()
    entries = os.listdir("/proc")
    proofs = [int(e) for e in entries if e.isdigit() and _read(int(e), "comm") == b"proof-init\n"]
    proved = descendants(proofs)
    found = set()
    for entry in entries:
        if entry.isdigit() and int(entry) in proved:
            continue
        if entry.isdigit() and wanted in _read(int(entry), "environ").split(b"\0"):
            process = read_process(int(entry))
            if process is not None and not process.zombie:
                found.add(int(entry))
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP, or frozen by its capsule)."""
    stat = _read(pid, "stat")
    return stat[stat.rfind(b")") + 2 : stat.rfind(b")") + 3] in (b"T", b"t")


def rss(pid: int) -> int:
    """Resident bytes of a process that are its own (not shared with files); 0 when it has ended."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def fds(pid: int) -> int:
    """Open descriptors of a process; 0 when it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def kill(pids: Iterable[int]) -> None:
    """SIGKILL for each of `pids` that still runs. All of them stand still before: without power
    none learns of the end of another."""
    pids = list(pids)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


def cut_connections(pid: int, path: str) -> int:
    """Shut down the sockets of `pid` that are bound to the unix path `path` and connected, as a
    broken network would; how many."""
    inodes = set()
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[7] == path and words[5] == "03":  # connected
            inodes.add(words[6])
    libc, cut = ctypes.CDLL(None, use_errno=True), 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except OSError:
            continue
        if target.removeprefix("socket:[").rstrip("]") not in inodes:
            continue
        pidfd = libc.syscall(_PIDFD_OPEN, pid, 0)
        if pidfd < 0:
            continue
        fd = libc.syscall(_PIDFD_GETFD, pidfd, int(entry), 0)
        os.close(pidfd)
        if fd < 0:
            continue
        with socket.socket(fileno=fd) as connection:
            try:
                connection.shutdown(socket.SHUT_RDWR)
                cut += 1
            except OSError:
                continue
    return cut
