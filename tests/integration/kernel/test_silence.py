"""A scheduler that is killed, restarted, hangs or answers nonsense ends no notebook: not one that
stays where it was, nor one that was suspended, came back, or was moved to another node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from singularity_kernel.provision.provisioner import SingularityProvisioner
from singularity_proxy import build
from singularity_scheduler.client import ServiceClient
from support.capsules import needs_criu
from support.kernel_homes import home_of
from support.kernel_notebooks import Notebook, manager
from support.service_process import ServiceProcess
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

pytestmark = [needs_criu, pytest.mark.timeout(300)]

FATES = ("control", "suspended", "resumed", "moved")

POLLS = 5
"""So often Jupyter's restarter looks at each kernel in each silence."""


class Nonsense(RequestHandler):
    """What stands at the service's address while the service does not."""

    async def prepare(self) -> None:
        status, body = self.application.settings["answer"]
        if status is None:
            await asyncio.sleep(3600)
        self.set_status(status)
        await self.finish(body)


SILENCES = {
    "hangs": (None, ""),
    "502": (502, "<html>bad gateway</html>"),
    "503": (503, '{"error": "Unavailable", "detail": "it starts"}'),
    "500": (500, '{"error": "SingularityError", "detail": "the request failed"}'),
    "401": (401, '{"error": "Unauthenticated", "detail": "nobody knows the token"}'),
    "403": (403, '{"error": "Forbidden", "detail": "you may not"}'),
    "404": (404, '{"error": "NotFound", "detail": "there is nothing here"}'),
    "404 of the Hub": (404, '{"status": 404, "message": "no such route"}'),
    "a login page": (200, '{"login": "please"}'),
}


@pytest_asyncio.fixture
async def service() -> AsyncIterator[ServiceProcess]:
    build.build()
    few = ["--NodeAgent.warm_proxies=0"]
    nodes = ["node-1", "node-2"]
    async with ServiceProcess(
        nodes=nodes, device_type="cpu", cpu_devices=1, agent_args=few
    ) as running:
        yield running


class Watched:
    """A notebook as a Jupyter server has it, with the restarter polled by hand."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        plain = manager(folder)
        self.manager: Any = AsyncIOLoopKernelManager(
            kernel_name="singularity", kernel_spec_manager=plain.kernel_spec_manager
        )
        self.restarts = 0

    @property
    def provisioner(self) -> SingularityProvisioner:
        assert isinstance(self.manager.provisioner, SingularityProvisioner)
        return self.manager.provisioner

    async def start(self, name: str) -> None:
        await self.manager.start_kernel()
        self.manager._restarter._pcallback.stop()
        self.manager.restart_kernel = self._restarted
        self.notebook = Notebook(self.manager)
        self.notebook.client.start_channels()
        await self.notebook.client.wait_for_ready(timeout=60)
        await self.notebook.run(f"x = {name!r}")
        self.session = self.notebook.session

    async def _restarted(self, **_: object) -> None:
        """What the restarter does with a kernel that it takes for dead."""
        self.restarts += 1

    async def watch(self) -> None:
        """What Jupyter does every few seconds."""
        for _ in range(POLLS):
            self.provisioner._asked_at = float("-inf")
            await self.manager._restarter.poll()
        assert (self.restarts, self.notebook.session) == (0, self.session)

    async def close(self, client: ServiceClient | None) -> None:
        if self.manager.has_kernel:
            self.provisioner._service = client
        with contextlib.suppress(AttributeError):
            self.notebook.client.stop_channels()
        await self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy(linger=0)


@pytest_asyncio.fixture
async def home(
    service: ServiceProcess, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Path]:
    """The home of alice, in the environment of her server."""
    client = service.client()
    environment = {"SINGULARITY_API_URL": client.url, "JUPYTERHUB_API_TOKEN": "alice-token"}
    with home_of(await client.identity("alice"), short_dir, monkeypatch, environment) as found:
        yield found


@pytest.mark.asyncio
async def test_no_silence_of_the_scheduler_ends_a_notebook(
    service: ServiceProcess, home: Path
) -> None:
    client = service.client()
    notebooks = {fate: Watched(home / fate) for fate in FATES}
    sock, port = bind_unused_port()
    nonsense = Application([(r".*", Nonsense)])
    server = HTTPServer(nonsense)
    server.add_socket(sock)
    real: dict[str, ServiceClient] = {}
    try:
        for fate, watched in notebooks.items():
            await watched.start(fate)
            await watched.watch()  # it knows its process
        for fate in ("suspended", "resumed"):
            await client.suspend(notebooks[fate].session)
        await client.resume(notebooks["resumed"].session)
        there = (await client.get_session(notebooks["moved"].session))["node"]
        other = next(node for node in ("node-1", "node-2") if node != there)
        await client.migrate(notebooks["moved"].session, node=other)
        await _until_live(client, notebooks["resumed"].session, notebooks["moved"].session)
        before = {f: await _stored(client, w) for f, w in notebooks.items()}
        assert {f: len(ids) for f, ids in before.items()} == {
            "control": 0,
            "suspended": 1,
            "resumed": 1,
            "moved": 1,
        }

        url = f"http://127.0.0.1:{port}/services/singularity/"
        real |= {f: w.provisioner._client() for f, w in notebooks.items()}
        for answer in SILENCES.values():
            nonsense.settings["answer"] = answer
            for watched in notebooks.values():
                watched.provisioner._service = ServiceClient(url, "t", timeout=0.05)
                await watched.watch()
        for fate, watched in notebooks.items():
            watched.provisioner._service = real[fate]
            await watched.watch()

        service.kill()
        for watched in notebooks.values():
            await watched.watch()
        await service.start()
        for watched in notebooks.values():
            await watched.watch()
        assert {f: await _stored(client, w) for f, w in notebooks.items()} == before
        for fate, watched in notebooks.items():
            assert await watched.notebook.run("print(x)") == fate
            await watched.watch()
    finally:
        server.stop()
        await server.close_all_connections()
        for fate, watched in notebooks.items():
            await watched.close(real.get(fate))


async def _until_live(client: ServiceClient, *sessions: str) -> None:
    for session in sessions:
        while (await client.get_session(session))["process_state"] != "live":
            await asyncio.sleep(0.1)


async def _stored(client: ServiceClient, watched: Watched) -> list[str]:
    return [one["id"] for one in await client.checkpoints(watched.session)]
