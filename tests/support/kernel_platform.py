"""The real scheduler service, node agent and device proxies, with the Hub's answer to "whose token
is this?" given by the test: everything a kernel meets, without a Hub."""

from __future__ import annotations

import asyncio
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from singularity_kernel.provision.provisioner import SingularityProvisioner
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.service.app import SchedulerApp
from support.agent import SUPPORT, ScriptFleet, sleeper, stop
from support.kernel_relay import free_ports, wait_until
from traitlets.config import Config

PREFIX = "/services/singularity/"
USER_SCOPES = ["access:services!service=singularity", "custom:singularity:use"]


class Hub:
    """Knows the users' tokens ("token-of-ada"); the part of HubOAuth that the service uses."""

    access_scopes = {"access:services!service=singularity"}

    async def user_for_token(
        self, token: str, sync: bool = True, session_id: str | None = None
    ) -> dict[str, Any] | None:
        name = token.removeprefix("token-of-")
        if name == token:
            return None
        return {"name": name, "kind": "user", "scopes": USER_SCOPES}

    def check_scopes(self, wanted: set[str], model: dict[str, Any]) -> set[str]:
        return wanted & set(model["scopes"])


class Platform:
    """The service on a thread of its own; the agent is a process, as `script` runs it, if given."""

    def __init__(
        self, folder: Path, devices: int, agent_args: Sequence[str] = (), script: str = ""
    ) -> None:
        self._config = Config()
        self._config.LocalFleet.agent_args = list(agent_args)
        self._script = script
        self._controller: Any = None
        self._config.SchedulerApp.state_dir = str(folder / "state")
        self._config.LocalFleet.runtime_dir = str(folder / "rt")
        self._config.LocalFleet.cpu_devices = devices
        self._config.LocalFleet.device_type = "cpu"
        (self._port,) = free_ports(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._end_agent = False

    @property
    def state_dir(self) -> str:
        return str(self._config.SchedulerApp.state_dir)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{PREFIX}"

    def environment(self, user: str = "ada") -> dict[str, str]:
        """What the spawner sets in the environment of `user`'s server."""
        return {"SINGULARITY_API_URL": self.url, "JUPYTERHUB_API_TOKEN": f"token-of-{user}"}

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        assert ready.wait(90), "the service did not start"
        if self._failure:
            self._thread.join()
            raise self._failure
        wait_until(self.healthy, 60, "no node agent came")

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}api/v1/healthz", timeout=10):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def stop(self, end_agent: bool = False) -> None:
        """Stop the service; `end_agent`: and everything else."""
        self._end_agent = end_agent
        if self._thread and self._loop and self._stop:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None

    def identity(self, user: str) -> dict[str, Any]:
        """The uid of a user's processes."""
        assert self._loop is not None
        work = ServiceClient(self.url, f"token-of-{user}").identity(user)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def decide(self, event: Any) -> None:
        """Have the service's policy take this event in."""
        assert self._loop is not None
        work = self._controller.submit(event)
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._failure = error
        ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        address = {
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{self._port}",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        }
        app = SchedulerApp(config=self._config)
        if self._script:
            app.fleet_class = _running(self._script)
        with mock.patch.dict(os.environ, address):
            running = app.running(hub_auth=Hub())
            controller = self._controller = await running.__aenter__()
        try:
            ready.set()
            await self._stop.wait()
            if self._end_agent:
                await controller.fleet.bare.stop_agent()
        finally:
            await running.__aexit__(None, None, None)


def _running(script: str) -> type[ScriptFleet]:
    """Agents as this file of the folder runs them."""

    class Scripted(ScriptFleet):
        def __init__(self, **traits: Any) -> None:
            super().__init__(SUPPORT / script, **traits)

    return Scripted


@contextmanager
def server_of(user: str, platform: Platform) -> Iterator[None]:
    """Kernels that this process starts belong meanwhile to a process of `user`'s, as a Jupyter
    server is one: a session belongs to nobody else's."""
    with server_as(platform.identity(user)):
        yield


@contextmanager
def server_as(identity: dict[str, Any]) -> Iterator[None]:
    """Like `server_of`, of a user whose processes have this identity."""
    server = sleeper(**({"user": identity["uid"]} if identity["mapped"] else {}))
    try:
        with mock.patch.object(SingularityProvisioner, "owner_pid", return_value=server.pid):
            yield
    finally:
        stop(server)


@contextmanager
def platform(folder: Path, devices: int = 2, **options: Any) -> Iterator[Platform]:
    """A running platform; all of it is ended afterwards."""
    found = Platform(folder, devices, **options)
    try:
        found.start()
        yield found
    finally:
        found.stop(end_agent=True)
