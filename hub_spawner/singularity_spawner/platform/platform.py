"""`Platform`: starts the whole embedded platform, waits until it serves, and ends all of it.

    async with Platform(state_dir, devices=2) as platform:
        token = await platform.user_token("alice")
        await platform.start_server("alice", {"tier": "standard", "devices": 1})

Used by ``jupyter singularity up`` (`run`), the demo and the tests.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from singularity_proxy.errors import Conflict, SingularityError, Unavailable, Unsupported
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.fleet import namespaces

from singularity_spawner.homes import blocked_folder
from singularity_spawner.proc import Process

from . import processes
from .config import CONFIG_TEXT, hub_command
from .hubapi import HubApi, HubError
from .ports import free_ports, public_port
from .settings import MARK, Settings, StateFolder, write_private
from .tools import proxy_command, search_path

STOP_SECONDS = 3.5
"""How long processes get to end by themselves before they are killed."""


_FOREIGN = (
    "JUPYTERHUB_",
    "JPY_",
    *(
        f"SINGULARITY_{name}"
        for name in ("API_", "SESSION", "SOCKET", "DOORBELL", "DEVICE", "TIER")
    ),
)
"""Variables of another Hub or session, from whose terminal the platform may have been started."""


class Platform:
    """One platform on 127.0.0.1 with its state in `state_dir`; start and stop it once.

    `port`: for people (None: 8000, or a free one when that is taken). `devices`: number of ``cpu``
    devices of each node. `nodes`: how many nodes, each with folders and devices of its own; with
    `netns` they have network namespaces and addresses of their own too, which needs root.
    `service_args`: more command-line arguments of the scheduler service, for instance
    smaller timeouts in tests. `spawn_defaults`: traits of `SingularitySpawnerMixin`.

    All constructor work is free of side effects; `start` raises the typed errors.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        *,
        devices: int = 2,
        port: int | None = None,
        service_args: Sequence[str] = (),
        spawn_defaults: Mapping[str, int | str] | None = None,
        nodes: int = 1,
        netns: bool = False,
    ) -> None:
        self.folder = StateFolder(Path(state_dir).resolve())
        self._devices = devices
        self._wanted_port = port
        self._service_args = list(service_args)
        self._spawn_defaults = dict(spawn_defaults or {})
        self._nodes = [f"node-{n}" for n in range(1, nodes + 1)] if nodes > 1 or netns else []
        self._netns = netns
        self._settings: Settings | None = None
        self._hub: subprocess.Popen[bytes] | None = None
        self._lock_fd: int | None = None

    # -- facts ------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """What this run was started with; only after `start`."""
        if self._settings is None:
            raise Conflict("the platform is not started")
        return self._settings

    @property
    def url(self) -> str:
        """The URL for a browser, ending in a slash."""
        return self.settings.url

    @property
    def service_url(self) -> str:
        """Base URL of the scheduler service, through the Hub's proxy."""
        return f"{self.url}services/singularity/"

    @property
    def admin_token(self) -> str:
        """Token of the platform's own account: may administer users, servers and sessions."""
        return self.folder.secret("platform_token", 48)

    @property
    def password(self) -> str:
        """With it any user name logs in, except the administrator's."""
        return self.folder.secret("password", 16)

    @property
    def hub(self) -> HubApi:
        """The Hub's REST API with `admin_token`."""
        return HubApi(self.url, self.admin_token)

    def service(self, token: str | None = None) -> ServiceClient:
        """A client of the scheduler service with `token` (None: the administrator's)."""
        return ServiceClient(self.service_url, token or self.admin_token)

    # -- life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Platform:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, timeout: float = 90.0) -> None:
        """Start everything and return when a user can log in and the devices are there.

        Raises `Conflict` (port taken, state folder in use or closed to other uids), `Unsupported`
        (a program is missing, or network namespaces cannot be made) or `Unavailable` (something
        did not come up within `timeout` seconds; then it is all stopped again and the last lines of
        the log are in the sentence).
        """
        path = search_path()
        command = proxy_command(path)
        self.folder.create()
        refuse_unreachable(self.folder)
        self._lock_fd = take_lock(self.folder)
        try:
            await clean_up_after(Settings.load(self.folder))  # it may hold the wanted port
            port = public_port(self._wanted_port)
            hub_port, proxy_api_port, service_port = free_ports(3)
            self._settings = Settings(
                state_dir=str(self.folder.path),
                port=port,
                hub_port=hub_port,
                proxy_api_port=proxy_api_port,
                service_port=service_port,
                devices=self._devices,
                proxy_command=command,
                path=path,
                service_args=self._service_args,
                spawn_defaults=self._spawn_defaults,
                nodes=self._nodes,
            )
            self._settings.save()  # before anything is made: the next run cleans up after it
            if self._netns:
                await self._make_network()
            write_private(self.folder.hub_config, CONFIG_TEXT.format(folder=str(self.folder.path)))
            self.folder.hub_log.write_bytes(b"")
            self._start_hub()
            await self._wait_ready(timeout)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every process of this run and remove what they left in memory; within 5 s.

        Idempotent. Files in the state folder (homes, ledger, log) stay.
        """
        if self._settings is not None:
            await end_platform(self._settings)
        if self._hub is not None:
            self._hub.wait(timeout=10)
            self._hub = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def restart_hub(self, timeout: float = 60.0) -> None:
        """Stop JupyterHub, its proxy and the scheduler service, and start them again; servers,
        node agent and sessions go on."""
        assert self._hub is not None
        self._hub.send_signal(signal.SIGTERM)
        await self._wait_hub(30)
        self._start_hub()
        await self._wait_ready(timeout)

    def hub_exit_code(self) -> int | None:
        """None while JupyterHub runs."""
        return None if self._hub is None else self._hub.poll()

    # -- what callers do with it ------------------------------------------------------------

    async def user_token(self, name: str) -> str:
        """A new token with all rights of Hub user `name`, who is made when missing."""
        return await self.hub.new_token(name)

    async def start_server(
        self,
        user: str,
        options: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        timeout: float = 90.0,
    ) -> str:
        """Start `user`'s server with the spawn options and wait for it; returns its URL.

        Raises `HubError` with the refusal's sentence, or `Unavailable`."""
        hub = self.hub
        await hub.ensure_user(user)
        path = f"users/{quote(user, safe='')}/" + (f"servers/{name}" if name else "server")
        # The options always go along: without any, the Hub would take those of the last start.
        await hub.call("POST", path, {"user_options": dict(options or {})}, timeout=timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while loop.time() < deadline:
            server = await hub.server(user, name)
            if server is None:
                raise HubError(
                    f"the server of {user} did not start; why is in {self.folder.hub_log}",
                    status=500,
                )
            if server["ready"]:
                return self.url.rstrip("/") + str(server["url"])
            await asyncio.sleep(0.1)
        raise Unavailable(f"the server of {user} was not ready after {timeout:g} s")

    async def stop_server(self, user: str, *, name: str = "", timeout: float = 60.0) -> None:
        """Stop `user`'s server and wait until it is gone."""
        path = f"users/{quote(user, safe='')}/" + (f"servers/{name}" if name else "server")
        await self.hub.call("DELETE", path, timeout=timeout)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while await self.hub.server(user, name) is not None:
            if loop.time() >= deadline:
                raise Unavailable(f"the server of {user} still stops after {timeout:g} s")
            await asyncio.sleep(0.05)

    # -- inside -----------------------------------------------------------------------------

    async def _make_network(self) -> None:
        if why := await asyncio.to_thread(namespaces.why_not):
            raise Unsupported(
                f"The nodes cannot have network namespaces of their own ({why}); nothing was "
                "started: leave out --netns."
            )
        made = await asyncio.to_thread(namespaces.create, self.settings.network, self._nodes)
        self._settings = replace(self.settings, netns=made)
        self._settings.save()

    def _start_hub(self) -> None:
        settings = self.settings
        env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        env.update({MARK: settings.instance, "PATH": settings.path})
        with self.folder.hub_log.open("ab") as log:
            self._hub = subprocess.Popen(
                hub_command(self.folder),
                cwd=self.folder.path,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for `up` alone, which stops things in order.
                start_new_session=True,
            )

    async def _wait_hub(self, seconds: float) -> None:
        hub = self._hub
        assert hub is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while hub.poll() is None:
            if loop.time() >= deadline:
                raise Unavailable(f"JupyterHub did not end within {seconds:g} s")
            await asyncio.sleep(0.05)

    async def _wait_ready(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        # Asked directly at first: the proxy logs every request that it cannot pass on yet.
        direct = HubApi(f"http://127.0.0.1:{self.settings.hub_port}", self.admin_token)
        missing = "JupyterHub"
        while loop.time() < deadline:
            code = self.hub_exit_code()
            if code is not None:
                raise Unavailable(
                    f"JupyterHub ended with exit code {code} while it started; everything is "
                    f"stopped again. {log_tail(self.folder.hub_log)}"
                )
            if await direct.healthy():
                missing = await self._missing()
                if not missing:
                    return
            await asyncio.sleep(0.1)
        raise Unavailable(
            f"{missing} did not answer within {timeout:g} s; everything is stopped again. "
            f"{log_tail(self.folder.hub_log)}"
        )

    async def _missing(self) -> str:
        """What does not answer yet though the Hub does, "" when everything is there."""
        try:
            # Straight to the service: its route in the proxy comes last.
            client = ServiceClient(
                f"{self.settings.service_url}/services/singularity/", self.admin_token, timeout=5.0
            )
            cluster = await client.cluster()
            if not cluster["devices"]:
                return "the node agent with its devices"
            if sum(node["connected"] for node in cluster["nodes"]) < len(self._nodes):
                return "one of the node agents"
        except SingularityError:
            return "the scheduler service"
        if not await self.hub.healthy():
            if "EADDRINUSE" in self.folder.hub_log.read_text(errors="replace"):
                raise Conflict(
                    f"Port {self.settings.port} on 127.0.0.1 was taken by another program while "
                    "the platform started; everything is stopped again: start it once more, or "
                    "choose a port with --port.",
                    port=self.settings.port,
                )
            return "JupyterHub's proxy"
        try:
            await self.service().cluster()
        except SingularityError:
            return "the proxy's route to the scheduler service"
        return ""


def log_tail(path: Path) -> str:
    """What a person needs of the Hub's log to see why: its last lines that tell of an error."""
    lines = path.read_text(errors="replace").strip().splitlines()
    telling = [
        line
        for line in lines
        if "ConfigProxy" not in line and re.search(r"^\[[CE] |\w(Error|Exception): ", line)
    ]
    said = " | ".join(line.strip() for line in (telling or lines)[-3:])
    return f"The log is {path}; it says: {said}"


def take_lock(folder: StateFolder) -> int:
    """Hold the state folder for this process; raises `Conflict` when another run holds it."""
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        running = Settings.load(folder)
        where = f" at {running.url}" if running else ""
        raise Conflict(
            f"A platform already runs{where} with the state folder {folder.path}; nothing was "
            "started: use that one, stop it with Ctrl-C, or choose another folder with --state.",
            state_dir=str(folder.path),
        ) from None
    return descriptor


async def clean_up_after(last: Settings | None) -> None:
    """End what is left of an earlier run whose `up` was killed."""
    if last is not None:
        left = await processes.end_run(last.instance, 1.0)
        await asyncio.to_thread(_remove_memory, last)
        _refuse_survivors(left)


async def end_platform(settings: Settings) -> None:
    """End every process of the run: first all are asked, after `STOP_SECONDS` they are killed."""
    left = await processes.end_run(settings.instance, STOP_SECONDS)
    await asyncio.to_thread(_remove_memory, settings)
    _refuse_survivors(left)


def _refuse_survivors(left: set[Process]) -> None:
    if left:
        pids = ", ".join(str(process.pid) for process in sorted(left, key=lambda p: p.pid))
        raise Unavailable(f"These processes could not be ended, not even with SIGKILL: {pids}.")


def _remove_memory(settings: Settings) -> None:
    """Remove the folders of a run whose agents could not do it themselves, and its network."""
    for folder in settings.memory:
        shutil.rmtree(folder, ignore_errors=True)
    if settings.nodes and os.geteuid() == 0 and settings.network:
        namespaces.remove(settings.network)


def refuse_unreachable(folder: StateFolder) -> None:
    """Raise `Conflict` when servers under uids of their own could not reach their homes."""
    if os.geteuid() != 0 or blocked_folder(Path(sys.prefix)) is not None:
        return  # all servers run as this uid
    blocked = blocked_folder(folder.homes)
    if blocked is not None:
        raise Conflict(
            f"Each user's server runs as a uid of its own, and {blocked} cannot be passed by other "
            "uids; nothing was started: choose another folder with --state, or open that one with "
            f"chmod o+x {blocked}.",
            folder=str(blocked),
        )
