"""`Platform`: starts the whole embedded platform, waits until it serves, and ends all of it.

    async with Platform(state_dir, devices=2) as platform:
        token = await platform.user_token("alice")
        await platform.start_server("alice", {"tier": "standard", "devices": 1})

Used by ``jupyter singularity up`` (`run`), the demo and the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import quote

from singularity_proxy import __version__
from singularity_proxy.capsule.supervisor import RestartPolicy, keep_running
from singularity_proxy.errors import Conflict, SingularityError, Unavailable, Unsupported
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.fleet import namespaces

from singularity_spawner.homes import blocked_folder
from singularity_spawner.proc import Process

from . import processes
from .config import CONFIG_TEXT
from .hibernate import put_notebooks_away
from .hubapi import HubApi, HubError
from .parts import ProcessPart, hub_part, proxy_part, service_part
from .ports import free_ports, public_port
from .settings import Settings, StateFolder, write_private
from .tools import proxy_command, search_path

STOP_SECONDS = 3.5
"""How long processes get to end by themselves before they are killed."""

RESTARTS = RestartPolicy(limit=5, within_s=60.0)
"""A part of the platform that is not well at more starts than that is broken, and the platform
stops."""

ROUTES_S = 60.0
"""How long the Hub is asked to give a proxy that was started again its routes."""

log = logging.getLogger("singularity.platform")


class Platform:
    """One platform on 127.0.0.1 with its state in `state_dir`; start and stop it once.

    `port`: for people (None: 8000, or a free one when that is taken). `devices`: number of ``cpu``
    devices of each node. `nodes`: how many nodes, each with folders and devices of its own; with
    `netns` they have network namespaces and addresses of their own too, which needs root.
    `service_args`: more command-line arguments of the scheduler service, for instance
    smaller timeouts in tests. `spawn_defaults`: traits of `SingularitySpawnerMixin`. `tell` hears
    one sentence for each part that ended and is started again as `restarts` says.

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
        tell: Callable[[str], None] = log.warning,
        restarts: RestartPolicy = RESTARTS,
    ) -> None:
        self.folder = StateFolder(Path(state_dir).resolve())
        self._devices = devices
        self._wanted_port = port
        self._service_args = list(service_args)
        self._spawn_defaults = dict(spawn_defaults or {})
        self._nodes = [f"node-{n}" for n in range(1, nodes + 1)] if nodes > 1 or netns else []
        self._netns = netns
        self._settings: Settings | None = None
        self._tell = tell
        self._restarts = restarts
        self.parts: list[ProcessPart] = []
        """What is kept running, from the start to the end."""
        self._keepers: dict[ProcessPart, asyncio.Future[NoReturn]] = {}
        self.taken_over = False
        """Whether the run of an ``up`` that was killed goes on."""
        self._revived = False
        """Whether the scheduler service was given up and is kept running all the same."""
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

    def operator(self, timeout: float = 60.0) -> ServiceClient:
        """The scheduler service as its operator, who needs neither the Hub nor its proxy."""
        url = f"{self.settings.service_url}/services/singularity/"
        return ServiceClient(url, self.admin_token, timeout=timeout)

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
            last = Settings.load(self.folder)
            if last is not None and self._may_take_over(last):
                self._settings = last
                self.taken_over = True
            else:
                if last is not None:
                    await self._clean_up_after(last)  # it may hold the wanted port
                await self._prepare(command, path)
            self._make_parts()
            for part in self.parts:
                await part.start()
            self._keep_running()
            await self._wait_ready(timeout)
            for part in self.parts:
                part.settled = True
        except BaseException:
            await self.stop()
            raise

    def _may_take_over(self, last: Settings) -> bool:
        """Whether something of an earlier run lives and is what is wanted now."""
        return (
            self._wanted_port in (None, last.port)
            and last.devices == self._devices
            and last.nodes == self._nodes
            and bool(last.netns) == self._netns
            and last.service_args == self._service_args
            and last.spawn_defaults == self._spawn_defaults
            and last.version == __version__
            and bool(processes.of_run(last.instance))
        )

    async def _prepare(self, command: list[str], path: str) -> None:
        """Choose ports and make what a new run needs."""
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
            version=__version__,
        )
        self._settings.save()  # before anything is made: the next run cleans up after it
        if self._netns:
            await self._make_network()
        write_private(self.folder.hub_config, CONFIG_TEXT.format(folder=str(self.folder.path)))
        self.folder.hub_log.write_bytes(b"")

    async def _clean_up_after(self, last: Settings) -> None:
        """Put the notebooks of an earlier run whose ``up`` was killed into the store, and end what
        is left of it."""
        if processes.of_run(last.instance):
            self._settings = last
            self._make_parts()
            service = self._service_part
            try:
                await service.start()
                self._keep(service)
                await put_notebooks_away(self, asyncio.Event())
            except Unavailable as error:
                raise Conflict(
                    f"An earlier run of this platform was killed, and its notebooks could not be "
                    f"stored ({error.message}); nothing was changed: start it again as it was "
                    "started then.",
                    state_dir=str(self.folder.path),
                ) from None
            finally:
                await self._release()
                self._settings = None
        await clean_up_after(last)

    async def stop(self) -> None:
        """End every process of this run and remove what they left in memory; within 5 s.

        Idempotent. Files in the state folder (homes, ledger, log) stay.
        """
        for keeper in self._keepers.values():
            keeper.cancel()  # first: what ends now is not started again
        if self._settings is not None:
            await end_platform(self._settings)
        await self.leave()

    async def leave(self) -> None:
        """Let everything go on without this object, as if it had been killed; the next `start`
        takes it over. Idempotent."""
        await self._release()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def _release(self) -> None:
        keepers, self._keepers = list(self._keepers.values()), {}
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for part in self.parts:
            await part.close()
        self.parts = []

    async def restart_hub(self, timeout: float = 60.0) -> None:
        """Stop the scheduler service, JupyterHub and its proxy, and start them again; servers,
        node agents and sessions go on."""
        for keeper in self._keepers.values():
            keeper.cancel()
        service, proxy, hub = self.parts
        # The proxy last: a Hub that stops its servers needs it for what they still send to pages.
        for part in (service, hub, proxy):
            if not await part.end(30.0):
                raise Unavailable(f"{part.name} did not end within 30 s")
        for part in self.parts:
            await part.start()
        self._keep_running()
        await self._wait_ready(timeout)

    async def failed(self) -> str:
        """Wait until a part was given up; why, in a sentence without its full stop."""
        await asyncio.wait(self._keepers.values(), return_when=asyncio.FIRST_COMPLETED)
        return self._failure()

    def _failure(self) -> str:
        """Why a part was given up, "" while all are kept running."""
        for keeper in self._keepers.values():
            if keeper.done() and not keeper.cancelled() and (error := keeper.exception()):
                return error.message if isinstance(error, SingularityError) else repr(error)
        return ""

    async def revive_service(self) -> None:
        """Keep the scheduler service running again, should it have been given up. Raises
        `Unavailable`, why, when it was given up once more after that."""
        service = self._service_part
        keeper = self._keepers[service]
        if not keeper.done():
            return
        if self._revived:
            keeper.result()
        self._revived = True
        with contextlib.suppress(Unavailable):
            await service.start()
        self._keep(service)

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

    def _make_parts(self) -> None:
        settings = self.settings
        self._service_part = service_part(settings)
        self.parts = [
            self._service_part,
            proxy_part(settings, self._restore_routes),
            hub_part(settings),
        ]

    def _keep_running(self) -> None:
        for part in self.parts:
            self._keep(part)

    def _keep(self, part: ProcessPart) -> None:
        def tell(how: str, again: bool) -> None:
            sentence = f"{part.name[0].upper()}{part.name[1:]} {how}"
            if again:
                self._tell(f"{sentence}; {part.goes_on}, it is started again.")

        self._keepers[part] = asyncio.ensure_future(keep_running(part, self._restarts, tell))

    async def _restore_routes(self) -> None:
        """Have the Hub give its proxy, which is new, the routes of all servers. A Hub that is away
        does so when it starts."""
        direct = HubApi(self.settings.hub_url, self.admin_token)
        loop = asyncio.get_running_loop()
        until = loop.time() + ROUTES_S
        while loop.time() < until:
            try:
                await direct.call("POST", "proxy", {}, timeout=ROUTES_S)
                return
            except SingularityError:
                await asyncio.sleep(0.2)

    async def _wait_ready(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        # Asked directly at first: the proxy logs every request that it cannot pass on yet.
        direct = HubApi(self.settings.hub_url, self.admin_token)
        missing = "JupyterHub"
        while loop.time() < deadline:
            if failure := self._failure():
                if not self.taken_over:
                    self._refuse_taken_port()
                raise Unavailable(
                    f"{failure[0].upper()}{failure[1:]}; everything is stopped again. "
                    f"{log_tail(self.folder.hub_log)}"
                )
            if await direct.healthy():
                missing = await self.missing()
                if not missing:
                    return
            await asyncio.sleep(0.1)
        raise Unavailable(
            f"{missing} did not answer within {timeout:g} s; everything is stopped again. "
            f"{log_tail(self.folder.hub_log)}"
        )

    async def missing(self) -> str:
        """What does not answer, or is not reached through the proxy, "" when everything is there;
        the Hub itself is asked last."""
        try:
            cluster = await self.operator(timeout=5.0).cluster()
            if not cluster["devices"]:
                return "the node agent with its devices"
            if sum(node["connected"] for node in cluster["nodes"]) < len(self._nodes):
                return "one of the node agents"
        except SingularityError:
            return "the scheduler service"
        if not await self.hub.healthy():
            return "JupyterHub's proxy"
        try:
            await self.service().cluster()
        except SingularityError:
            return "the proxy's route to the scheduler service"
        return ""

    def _refuse_taken_port(self) -> None:
        if "EADDRINUSE" in self.folder.hub_log.read_text(errors="replace"):
            raise Conflict(
                f"Port {self.settings.port} on 127.0.0.1 was taken by another program while the "
                "platform started; everything is stopped again: start it once more, or choose a "
                "port with --port.",
                port=self.settings.port,
            )


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
