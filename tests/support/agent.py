"""A real node agent for tests, reached through the real `LocalFleet`.

`async with AgentBox() as box:` starts it; leaving the block ends it in good order and checks that
nothing is left of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity, processes_with
from singularity_proxy.capsule.tree import inner_pid
from singularity_scheduler.fleet import LocalFleet

SUPPORT = Path(__file__).parent


def _lasting(args: Sequence[str]) -> list[str]:
    """No service renews the leases of a test, and how long it takes is the machine's business."""
    option = "--NodeAgent.lease_ttl_s="
    return [] if any(arg.startswith(option) for arg in args) else [f"{option}600"]


class AgentBox:
    """One agent with its own folders. `double=True`: device proxies are the tests' stand-in;
    `script`: another file of this folder that runs the agent."""

    def __init__(
        self,
        *args: str,
        double: bool = False,
        script: str = "",
        warm: int = 0,
        **traits: Any,
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="ab-"))
        self.root.chmod(0o755)
        self.work = self.root / "work"
        self.work.mkdir()
        self.work.chmod(0o777)
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.reports: list[list[dict[str, Any]]] = []
        """What the agent said of its devices."""
        self.used: dict[str, list[dict[str, Any]]] = {}
        """session -> what it uses of its devices, by the newest report."""
        self.connections: list[bool] = []
        self._news = asyncio.Event()
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._seq = 0
        options = {
            "state_dir": str(self.root / "state"),
            "runtime_dir": str(self.root / "rt"),
            "agent_args": [f"--NodeAgent.warm_proxies={warm}", *_lasting(args), *args],
        }
        self.fleet = LocalFleet(**{**options, **traits})
        script = "agent_with_double.py" if double else script
        if script:
            self.fleet = ScriptFleet(SUPPORT / script, **{**options, **traits})
        self.fleet.on_event(self._event)
        self.fleet.on_connection(lambda _, up: self.connections.append(up))
        self.fleet.on_command(self._command)
        self.commands: list[dict[str, Any]] = []

    def _event(self, _node: str, session: str, type: str, data: dict[str, Any]) -> None:
        if type == "node.devices":
            self.reports.append(data["devices"])
            self.used = data["sessions"]
        else:
            self.events.append((session, type, data))
        self._news.set()

    async def _command(
        self, node: str, session: str, verb: str, args: dict[str, Any], by: str
    ) -> Any:
        self.commands.append({"session": session, "verb": verb, "args": args, "by": by})
        return {"verb": verb}

    async def __aenter__(self) -> AgentBox:
        await self.fleet.start()
        self.shm = Path(self.announced()["shm_dir"])
        self.runtime = Path(self.announced()["runtime_dir"])
        return self

    async def __aexit__(self, *failure: object) -> None:
        shm, runtime = self.shm, self.runtime
        await self.fleet.stop_agent()
        for server in self._servers.values():
            stop(server)
        leftover = [p for p in (shm, runtime) if p.exists()]
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)
        assert failure[0] is not None or leftover == []

    # -- the agent process ------------------------------------------------------------------------

    def announced(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.root / "state" / "agent.json").read_text())
        return body

    @property
    def agent_pid(self) -> int:
        return int(self.announced()["process"][0])

    async def kill_agent(self) -> None:
        """SIGKILL, and wait until another one answers."""
        instance = self.announced()["instance"]
        os.kill(self.agent_pid, signal.SIGKILL)
        await until(lambda: self.connections[-1:] == [False])
        await until(lambda: self.connections[-1:] == [True])
        assert self.announced()["instance"] != instance

    async def end_agent(self, signum: int = signal.SIGKILL, timeout: float = 60.0) -> None:
        """Signal it and wait for its end; nobody starts another one until `fleet.start`."""
        pid = self.agent_pid
        await self.fleet.stop()
        os.kill(pid, signum)
        await until(lambda: not alive(pid), timeout=timeout)
        with contextlib.suppress(ChildProcessError):  # not started by this process
            await asyncio.to_thread(os.waitpid, pid, 0)

    async def clear(self) -> None:
        """End all sessions and forget what was told: the next test finds it as it began."""
        [hello] = await self.fleet.hello()
        for one in hello["sessions"]:
            await self.end(one["session"])
        left = (self.runtime / "s", self.runtime / "p", self.shm)
        await until(lambda: not any(any(folder.iterdir()) for folder in left), lambda: str(left))
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for told in (self.events, self.reports, self.commands):
            told.clear()
        self.used = {}

    # -- calls ------------------------------------------------------------------------------------

    async def call(self, method: str, **params: Any) -> Any:
        return await self.fleet.call(self.fleet.node, method, **params)

    async def start(
        self,
        argv: list[str],
        *,
        user: str = "alice",
        virtual_devices: int = 1,
        mode: str = "capsule",
        **launch: Any,
    ) -> str:
        """Start a session that runs `argv`; returns its id."""
        session = uuid.uuid4().hex[:12]
        self._seq += 1
        paths = [str(SUPPORT.parent), *os.environ.get("PYTHONPATH", "").split(":")]
        env = {**os.environ, "PYTHONPATH": ":".join(filter(None, paths)), "HOME": str(self.work)}
        # A kernel that finds it does not show what processes that its code starts print.
        env.pop("PYTEST_CURRENT_TEST", None)
        self.started = await self.call(
            "session.start",
            session=session,
            user=user,
            kind="batch",
            tier="standard",
            virtual_devices=virtual_devices,
            epoch=0,
            seq=self._seq,
            launch={
                "mode": mode,
                "argv": argv,
                "env": env,
                "cwd": str(self.work),
                "connection": None,
                "owner_pid": await self.server(user),
                **launch,
            },
        )
        return session

    async def server(self, user: str) -> int:
        """The process that sessions of `user` belong to, in the place of a Jupyter server: this one
        where users have no uids of their own."""
        options = await self.user_options(user)
        if not options:
            return os.getpid()
        if user not in self._servers:
            self._servers[user] = sleeper(env={}, **options)
        return self._servers[user].pid

    async def python(self, code: str, **options: Any) -> str:
        """Start a session that runs Python `code`."""
        return await self.start([sys.executable, "-c", code], **options)

    async def worker(self, *words: str, **options: Any) -> str:
        """Start a session whose process is `support/agent_worker.py`."""
        argv = [sys.executable, str(SUPPORT / "agent_worker.py"), *words]
        return await self.start(argv, **options)

    async def attach(self, session: str, epoch: int, *devices: str, seq: int | None = None) -> Any:
        self._seq += 1
        return await self.call(
            "device.attach",
            session=session,
            epoch=epoch,
            seq=self._seq if seq is None else seq,
            devices=list(devices) or ["cpu:0"],
            reason="test",
        )

    async def resize(self, session: str, epoch: int, *devices: str, seq: int | None = None) -> Any:
        self._seq += 1
        return await self.call(
            "device.resize",
            session=session,
            epoch=epoch,
            seq=self._seq if seq is None else seq,
            devices=list(devices),
            reason="test",
        )

    async def park(self, session: str, epoch: int, seq: int | None = None) -> Any:
        self._seq += 1
        return await self.call(
            "device.park",
            session=session,
            epoch=epoch,
            seq=self._seq if seq is None else seq,
            reason="test",
        )

    async def end(self, session: str, grace_s: float = 0.0) -> Any:
        return await self.call("session.end", session=session, reason="test", grace_s=grace_s)

    async def session(self, session: str) -> dict[str, Any]:
        """The session in `hello`."""
        [hello] = await self.fleet.hello()
        [found] = [s for s in hello["sessions"] if s["session"] == session]
        return dict(found)

    async def user_options(self, user: str = "alice") -> dict[str, Any]:
        """Options of Popen for a process of `user`'s own."""
        identity = await self.call("identity", user=user)
        return {"user": identity["uid"]} if identity["mapped"] else {}

    # -- what one sees ----------------------------------------------------------------------------

    def folder(self, session: str) -> Path:
        return self.runtime / "s" / session

    def log(self, session: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder(session) / "capsule.log").read_text()
        return ""

    def agent_log(self, count: int = 4000) -> str:
        """The last characters of what the agents said."""
        return (self.root / "state" / "agent.log").read_text()[-count:]

    async def logged(self, session: str, text: str) -> None:
        """Wait until the session's process printed `text`."""
        await until(lambda: text in self.log(session), lambda: self._said(session))

    def _said(self, session: str) -> str:
        """What is known of a session that did not do what it should; one that ended has no log."""
        ends = [d["reason"] for s, t, d in self.events if (s, t) == (session, "process.exited")]
        return "; ".join([*ends, self.log(session)])

    async def event(self, type: str, session: str | None = None, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th event of `type`; returns its data."""

        def found() -> list[dict[str, Any]]:
            return [d for s, t, d in self.events if t == type and session in (None, s)]

        await until(lambda: len(found()) >= count, lambda: str(self.events))
        return found()[count - 1]

    def forget_events(self) -> None:
        self.events.clear()

    def processes(self, session: str) -> list[ProcessIdentity]:
        """The session's own processes: the main process and everything below, no holder."""
        return [p for p in self.everything_of(session) if not _is_holder(p.pid)]

    def everything_of(self, session: str) -> list[ProcessIdentity]:
        """All that runs with the session's environment, the holder of its capsule included."""
        marker = f"SINGULARITY_SOCKET={self.folder(session)}/agent.sock".encode()
        return list(processes_with(marker, in_environment=True))

    def host_pid(self, session: str, pid: int) -> int:
        """The pid here of the session's process that calls itself `pid`."""
        return next(p.pid for p in self.processes(session) if inner_pid(p.pid) == pid)

    def below(self, session: str) -> list[ProcessIdentity]:
        """The session's processes without the first one."""
        first = min(self.processes(session), key=lambda p: (p.start, p.pid))
        return [p for p in self.processes(session) if p != first]

    def proxies(self) -> list[int]:
        """Pids of the device proxies of this agent and of the ones before it."""
        return device_proxies(str(self.runtime))

    def template(self) -> int:
        """Pid of the process that this agent's device proxies are copies of."""
        [pid] = [pid for pid in _with_words(lambda words: "--template" in words) if self._ours(pid)]
        return pid

    def _ours(self, pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1]) == self.agent_pid

    def proxies_of(self, session: str) -> list[int]:
        """Pids of the device proxies that serve rings of the session."""
        return proxies_of(str(self.runtime), str(self.shm), session)

    def relays(self, session: str) -> list[int]:
        return _with_words(lambda words: f"{self.runtime}/r/{session}/client.json" in words)


def device_proxies(runtime: str) -> list[int]:
    """Pids of the device proxies of the agent whose runtime folder this is."""
    return _with_words(lambda words: f"{runtime}/p/" in words)


def proxies_of(runtime: str, shm: str, session: str) -> list[int]:
    """Of those, the ones that serve rings of the session."""
    return [pid for pid in device_proxies(runtime) if _has_open(pid, f"{shm}/{session}/")]


def _has_open(pid: int, start: str) -> bool:
    try:
        return any(
            os.readlink(f"/proc/{pid}/fd/{fd}").startswith(start)
            for fd in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False


def _is_holder(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().startswith("capsule-")
    return False


def _with_words(wanted: Callable[[str], bool]) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and alive(int(entry)):
            try:
                words = Path(f"/proc/{entry}/cmdline").read_text(errors="replace")
            except OSError:
                continue
            if wanted(words):
                found.append(int(entry))
    return found


class ScriptFleet(LocalFleet):
    """The agent as `script` runs it."""

    def __init__(self, script: Path, **traits: Any) -> None:
        super().__init__(**traits)
        self._script = str(script)

    def command(self, node: str = "") -> list[str]:
        command: list[str] = super().command(node)
        place = command.index("-m")
        command[place : place + 2] = [self._script]
        return command


async def until(
    true: Callable[[], bool], why: Callable[[], str] = lambda: "", timeout: float = 30.0
) -> None:
    """Wait until `true()`; fails with `why()` after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not true():
        assert loop.time() < deadline, f"it did not happen within {timeout:g} s: {why()}"
        await asyncio.sleep(0.02)


def sleeper(**options: Any) -> subprocess.Popen[bytes]:
    """Start a process that sleeps for hours; the caller ends it."""
    return subprocess.Popen(["/bin/sleep", str(4 * 3600)], **options)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
