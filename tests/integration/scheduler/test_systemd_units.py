"""The systemd units of the documentation, run as systemd runs them: their command lines, the file
of their environment, what they tell it, and that what is killed is started again by it alone."""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import os
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from tornado.testing import bind_unused_port

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "add-to-your-hub.md"
TOKEN = "t" * 64


class Unit:
    """One unit of the page; `run` keeps it running as `Restart=always` does."""

    def __init__(self, text: str, places: dict[str, str], env: dict[str, str]) -> None:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        for old, new in places.items():
            text = text.replace(old, new)
        parser.read_string(text.replace("\\\n", " "))
        self.settings = dict(parser["Service"])
        self.env = env
        self.process: asyncio.subprocess.Process | None = None
        self.heard: list[str] = []

    @property
    def ready(self) -> int:
        """How often it said that it is ready."""
        return self.heard.count("READY=1")

    async def run(self, folder: Path, name: str) -> None:
        address = str(folder / f"{name}.notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(address)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.add_reader(sock, lambda: self.heard.append(sock.recv(100).decode()))
            env = {
                "PATH": os.environ["PATH"],
                "NOTIFY_SOCKET": address,
                "WATCHDOG_USEC": "200000",  # asks more often than the page does
                **self.env,
            }
            try:
                with (folder / f"{name}.log").open("ab") as log:
                    while True:
                        self.process = await asyncio.create_subprocess_exec(
                            *self.settings["ExecStart"].split(), env=env, stdout=log, stderr=log
                        )
                        await self.process.wait()
                        await asyncio.sleep(0.1)
            finally:
                loop.remove_reader(sock)


@contextlib.asynccontextmanager
async def units() -> AsyncIterator[tuple[Unit, Unit, ServiceClient]]:
    """Service and agent of the page, and the operator's client."""
    page = PAGE.read_text()
    service_text, agent_text = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    sock, port = bind_unused_port()
    sock.close()
    with tempfile.TemporaryDirectory(prefix="su-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)  # noqa: ASYNC240
        (folder / "operator").touch(0o600)
        (folder / "operator").write_text(TOKEN)
        [file] = re.findall(r"<<END\n(.*?)\nEND", page, re.DOTALL)
        names = re.findall(r"^(\w+)=", file, re.MULTILINE)
        assert names == ["JUPYTERHUB_API_TOKEN", "JUPYTERHUB_API_URL", "JUPYTERHUB_SERVICE_URL"]
        values = ("token", "http://127.0.0.1:1/hub/api", f"http://127.0.0.1:{port}")
        places = {
            "/opt/jupyter/bin/python": sys.executable,
            "/srv/singularity": f"{folder}/state",
            "/etc/singularity": str(folder),
        }
        service = Unit(service_text, places, dict(zip(names, values, strict=True)))
        agent = Unit(agent_text, places, {})
        running = [
            asyncio.ensure_future(service.run(folder, "service")),
            asyncio.ensure_future(agent.run(folder, "agent")),
        ]
        url = f"http://127.0.0.1:{port}/services/singularity/"
        try:
            yield service, agent, ServiceClient(url, TOKEN, timeout=5.0)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for unit in (service, agent):
                if unit.process is not None and unit.process.returncode is None:
                    unit.process.terminate()
                    await unit.process.wait()


async def node_of(client: ServiceClient) -> dict[str, object]:
    """The node, once it is connected."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(SingularityError):
                nodes = (await client.cluster())["nodes"]
                if nodes and nodes[0]["connected"]:
                    return dict(nodes[0])
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_the_units_of_the_page_work_together() -> None:
    async with units() as (service, agent, client):
        for unit in (service, agent):
            kept = {key: unit.settings[key] for key in ("Type", "Restart", "RestartSec")}
            assert kept == {"Type": "notify", "Restart": "always", "RestartSec": "100ms"}
        assert agent.settings["KillMode"] == "process"
        await node_of(client)
        async with asyncio.timeout(30):
            while not all("WATCHDOG=1" in unit.heard for unit in (service, agent)):
                await asyncio.sleep(0.05)
        for unit in (agent, service):
            assert unit.process is not None
            before, ready = unit.process.pid, unit.ready
            unit.process.kill()
            async with asyncio.timeout(60):
                while unit.ready == ready:
                    await asyncio.sleep(0.05)
            assert unit.process.pid != before
            await node_of(client)
        # The service found the agent that "systemd" had started, and made none itself.
        assert (service.ready, agent.ready) == (2, 2)
        assert agent.process is not None
        assert agent.process.returncode is None
