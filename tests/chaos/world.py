"""The platform under test, as users run it: `jupyter singularity up` with several nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from singularity_proxy.errors import NotFound, SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_spawner.platform.hubapi import HubApi
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.settings import Settings, StateFolder

from . import processes
from .clock import Clock
from .disk import Disk
from .processes import Found
from .timeline import Timeline

T = TypeVar("T")
Json = dict[str, Any]

READY_S = 120.0
"""How long the platform may take to start."""

PATIENCE_S = 60.0
"""Nothing may be stuck for longer while everything that it needs is there."""


class World:
    """One platform in a state folder of its own. `devices` of each of the two nodes."""

    nodes = ("node-1", "node-2")

    def __init__(self, timeline: Timeline, users: int, devices: int, store_mib: int) -> None:
        self.timeline = timeline
        self.users = [f"user{n}" for n in range(1, users + 1)]
        self.devices = devices
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/var/tmp"))
        self.folder.chmod(0o711)
        self.state = StateFolder(self.folder)
        store = self.folder / "scheduler" / "agent" / "store"
        self.disk = Disk(store, self.folder / "store.img", store_mib)
        self.clock = Clock(self.folder / "clock")
        self.off: set[str] = set()
        """Nodes without power."""
        self.ending = asyncio.Event()
        """Set when the faults are over: everybody finishes what they do."""
        self.service_back: list[float] = []
        """Seconds without an answer of the service, each time that it went away."""
        self.hits: list[tuple[float, str, str]] = []
        """(when, whose user, which session): what was hit between kernels and tabs; "":
        everybody's."""
        self.ended: dict[str, float] = {}
        """Sessions that the campaign has ended -> when."""
        self.stopped = 0
        """How many processes the campaign has stopped (SIGSTOP) at the moment."""
        self.draining = ""
        """What an administrator is emptying now: one thing at a time."""
        self.calm_s = 0.0
        """Seconds in which everything was there that a session needs: patience is counted in
        these."""
        self.starts = 0
        self._up: subprocess.Popen[bytes] | None = None
        (self._port,) = free_ports(1)
        self._tokens: dict[str, str] = {}
        self._starting = asyncio.Lock()
        self._measuring: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------

    async def make(self) -> None:
        """The state folder with the disk of the store in it."""
        self.state.create()
        for folder in (self.state.scheduler / "agent",):
            folder.mkdir(mode=0o700, exist_ok=True)
        await self.disk.make()
        self.clock.make()

    async def start(self) -> None:
        """Start the platform and wait until both nodes answer. Raises Unavailable."""
        self.starts += 1
        log = self.folder / f"up-{self.starts}.log"
        command = [sys.executable, "-m", "jupyter", "singularity", "up"]
        command += ["--state", str(self.folder), "--port", str(self._port)]
        command += ["--nodes", str(len(self.nodes)), "--devices", str(self.devices)]
        self._up = _start(command, self.folder, log, self.clock.environment())
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._up.poll() is not None:
                raise Unavailable(f"up ended with {self._up.returncode}: {self.up_said()}")
            if "ready in" in log.read_text(errors="replace"):
                self.timeline.add("world", f"the platform is ready (start {self.starts})")
                return
            await asyncio.sleep(0.1)
        raise Unavailable(f"the platform was not ready after {READY_S:g} s: {self.up_said()}")

    def up_said(self) -> str:
        """The last lines of `up`."""
        log = self.folder / f"up-{self.starts}.log"
        return " | ".join(log.read_text(errors="replace").strip().splitlines()[-4:])

    def up_code(self) -> int | None:
        """The exit code of `up`; None while it runs."""
        return None if self._up is None else self._up.poll()

    async def stop(self, limit_s: float = 240.0) -> str:
        """Ctrl-C, as a person would; what `up` said at its end. Kills what does not end."""
        if self._up is None:
            return ""
        up, self._up = self._up, None
        if up.poll() is None:
            up.send_signal(signal.SIGINT)
        try:
            await asyncio.to_thread(up.wait, limit_s)
        except subprocess.TimeoutExpired:
            self.timeline.violate("stop", "up", f"it did not end within {limit_s:g} s of Ctrl-C")
            up.kill()
            up.wait()
        return self.up_said()

    async def restart(self) -> str:
        """Stop the platform as a person does, and start it again; what the first one said."""
        async with self._starting:
            said = await self.stop()
            await self.start()
        return said

    async def kill_up(self, seconds: float) -> bool:
        """Kill `up` itself, and start it again so many seconds later."""
        if self._up is None or self._starting.locked():
            return False
        async with self._starting:
            self._up.kill()
            await asyncio.to_thread(self._up.wait)
            await asyncio.sleep(seconds)
            await self.start()
        return True

    @property
    def is_starting(self) -> bool:
        """Whether the campaign itself has stopped `up`, and starts it."""
        return self._starting.locked()

    async def ensure_up(self) -> None:
        """Start the platform again when `up` has ended; called by the watch."""
        async with self._starting:
            if self._up is not None and self._up.poll() is not None:
                self.timeline.add("world", f"up ended: {self.up_said()}")
                await self.start()

    async def remove(self) -> None:
        """Remove everything of it."""
        await self.disk.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def settings(self) -> Settings:
        """Of the run that is under way. Raises Unavailable while it starts."""
        settings = Settings.load(self.state)
        if settings is None:
            raise Unavailable("the platform is just starting")
        return settings

    # -- callers ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    @property
    def admin_token(self) -> str:
        return self.state.secret("platform_token", 48)

    @property
    def hub(self) -> HubApi:
        return HubApi(self.url, self.admin_token)

    def service(self, token: str = "", timeout: float = 60.0) -> ServiceClient:
        """A client through the Hub's proxy, as users have it; of an administrator without a
        token."""
        url = f"{self.url}services/singularity/"
        return ServiceClient(url, token or self.admin_token, timeout=timeout)

    def direct(self, timeout: float = 5.0) -> ServiceClient:
        """An administrator's client that does not need the Hub's proxy."""
        url = f"{self.settings.service_url}/services/singularity/"
        return ServiceClient(url, self.admin_token, timeout=timeout)

    async def token(self, user: str) -> str:
        """A token of the user, asked for once."""
        if user not in self._tokens:
            self._tokens[user] = await self.hub.new_token(user)
        return self._tokens[user]

    async def persist(
        self, call: Callable[[], Awaitable[T]], seconds: float = 240.0, what: str = ""
    ) -> T:
        """`call` until it is answered, through everything that may be away now."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return await call()
            except (Unavailable, OSError) as error:
                last = error
            except SingularityError as error:
                if error.fields.get("status") not in (500, 502, 503, 504, 599) and not any(
                    word in error.message for word in ("50", "599", "404", "302")
                ):
                    raise
                last = error
            if time.monotonic() > deadline:
                raise Unavailable(f"{what or 'a call'} was not answered in {seconds:g} s: {last}")
            await asyncio.sleep(0.5)

    async def session(self, session: str) -> Json:
        """The document of a session, however long the service is away; {} when there is none."""
        try:
            return await self.persist(
                lambda: self.service(timeout=10.0).get_session(session), what="get_session"
            )
        except NotFound:
            return {}

    def hit(self, user: str = "", session: str = "") -> None:
        """Messages of this user, or session, or of everybody, may be lost on their way now."""
        self.hits.append((self.timeline.now, user, session))

    def hit_since(self, at: float, user: str, session: str) -> bool:
        """Whether messages of `session` of `user` may have been lost since `at`."""
        return any(
            when >= at and u in ("", user) and session.startswith(s) for when, u, s in self.hits
        )

    def measure_service(self) -> None:
        """The service was killed now: write down when it answers again."""
        if self._measuring is not None:
            self._measuring.cancel()
        self._measuring = asyncio.create_task(self._until_service())

    async def _until_service(self) -> None:
        began, kept = time.monotonic(), not self.is_starting
        while time.monotonic() - began < 120.0:
            await asyncio.sleep(0.05)
            kept = kept and not self.is_starting
            with contextlib.suppress(SingularityError, OSError):
                await self.direct(timeout=1.0).cluster()
                break
        if not kept:  # who keeps it running was not there: `up` was killed, or is being restarted
            self.timeline.add("world", "the service is back, after up")
            return
        self.service_back.append(time.monotonic() - began)
        self.timeline.add("world", f"the service is back after {self.service_back[-1]:.1f} s")

    # -- processes --------------------------------------------------------------------------------

    async def find(self, role: str = "", **about: str) -> list[Found]:
        """The processes of a role, with these facts, oldest first."""
        try:
            instance = self.settings.instance
        except Unavailable:
            return []
        found = await asyncio.to_thread(processes.find, instance)
        return [
            f
            for f in found
            if role in ("", f.role) and all(getattr(f, k) == v for k, v in about.items())
        ]

    async def proxies_of(self, session: str) -> list[Found]:
        """The device proxies of a session."""
        return [f for f in await self.find("proxy") if f.session and session.startswith(f.session)]

    def agent_ledger(self, node: str) -> dict[str, Json]:
        """Session -> what the agent of the node has written down about it; empty while it cannot be
        read."""
        path = self.state.scheduler / "agent" / node / "agent.sqlite"
        with (
            contextlib.suppress(sqlite3.Error, ValueError),
            contextlib.closing(
                sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
            ) as db,
        ):
            rows = db.execute("SELECT name, body FROM document WHERE kind = 'session'")
            return {name: json.loads(body) for name, body in rows}
        return {}

    async def cut_power(self, node: str, seconds: float, wipe: bool = False) -> int:
        """Kill everything of a node at once, and its agents for so many seconds as often as one is
        started; how many processes it had. `wipe`: what it had in shared memory is gone too."""
        self.off.add(node)
        try:
            for relay in await self.find("relay", node=node):
                self.hit(relay.user, relay.session)
            killed = await asyncio.to_thread(self._kill_node, node)
            if wipe:
                shared = f"{self.settings.shm_dir}-{node}"
                await asyncio.to_thread(shutil.rmtree, shared, ignore_errors=True)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await asyncio.sleep(0.1)
                await asyncio.to_thread(self._kill_node, node)
            return killed
        finally:
            self.off.discard(node)

    def _kill_node(self, node: str) -> int:
        try:
            found = processes.find(self.settings.instance)
        except Unavailable:
            return 0
        roots = {f.pid for f in found if f.node == node and f.role in ("agent", "proxy", "relay")}
        if not roots:
            return 0
        for record in self.agent_ledger(node).values():
            for identity in _identities(record):
                pid, started = identity
                now = processes.read_process(pid)
                if now is not None and now.started == started:
                    roots.add(pid)
        victims = processes.descendants(roots)
        processes.kill(victims)
        return len(victims)

    # -- files ------------------------------------------------------------------------------------

    def home(self, user: str) -> Path:
        return self.state.homes / user

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs and ledgers of the state folder to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.rglob("*"):
            wanted = path.suffix in (".log", ".json") or ".sqlite" in path.name
            if "store" in path.parts or not wanted or not path.is_file():
                continue
            place = folder / path.relative_to(self.folder)
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)


def _start(
    command: list[str], folder: Path, log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _identities(record: Any, key: str = "") -> list[tuple[int, int]]:
    """Every process (pid, start) in an agent's document of a session but its owner, which is a
    server's and not the node's."""
    if key == "owner":
        return []
    if key in ("process", "relay", "worker"):
        return [(record[0], record[1])] if record else []
    if isinstance(record, dict):
        return [found for name, value in record.items() for found in _identities(value, name)]
    return []


def is_root() -> bool:
    return os.geteuid() == 0
