"""The scheduler service as a process of its own, with real node agents, for tests that kill it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from singularity_proxy.errors import SingularityError
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.fleet import LocalFleet
from singularity_spawner.hubconfig import service_variables
from support.agent import proxies_of
from support.scheduler_service import PREFIX, TokenHub
from tornado.testing import bind_unused_port
from traitlets.config import Config


class ServiceProcess:
    """`python -m singularity_scheduler.service` with traits of its `LocalFleet`; the agents outlive
    it."""

    def __init__(self, **fleet: Any) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="sp-")  # sockets have short names
        folder = self._folder = Path(self._files.name)
        folder.chmod(0o711)
        self._hub = TokenHub()
        sock, self._port = bind_unused_port()
        sock.close()
        state = folder / "state"
        self._fleet = {
            "state_dir": str(state / "agent"),
            "runtime_dir": str(folder / "rt"),
            "shm_dir": f"/dev/shm/{folder.name}-{os.getpid()}",
            **fleet,
        }
        self._config = folder / "config.py"
        lines = [f"c.SchedulerApp.state_dir = {str(state)!r}"]
        lines += [f"c.LocalFleet.{name} = {value!r}" for name, value in self._fleet.items()]
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> ServiceProcess:
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 30)
        async with self.fleet() as fleet:
            await fleet.stop_agent()
        await self._hub.close()
        self._files.cleanup()

    @contextlib.asynccontextmanager
    async def fleet(self) -> Any:
        """The same agents, reached from here; only while the service does not run."""
        fleet = LocalFleet(config=Config(LocalFleet=self._fleet))
        await fleet.start()
        try:
            yield fleet
        finally:
            await fleet.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{PREFIX}"

    def client(self, who: str = "alice") -> ServiceClient:
        return ServiceClient(self.url, f"{who}-token", timeout=60.0)

    async def start(self) -> None:
        """Returns when it answers and knows a node's devices."""
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("JUPYTERHUB_")},
            **service_variables(
                f"http://127.0.0.1:{self._port}",
                "service-token",
                f"http://127.0.0.1:{self._hub.port}/hub/api",
            ),
        }
        command = [sys.executable, "-m", "singularity_scheduler.service"]
        with (self._folder / "service.log").open("ab") as log:
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                [*command, f"--config={self._config}"],
                env=env,
                stdout=log,
                stderr=log,
            )
        for _ in range(600):
            with contextlib.suppress(SingularityError):
                if (await self.client().cluster())["devices"]:
                    return
            assert self._process.poll() is None, self.log()
            await asyncio.sleep(0.1)
        raise AssertionError(self.log())

    @property
    def place(self) -> str:
        """The folder that the command lines of its agents and their device proxies name."""
        return str(self._folder)

    def kill(self) -> None:
        """SIGKILL: no order, nothing is said to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self._process = None

    @property
    def agent(self) -> dict[str, Any]:
        """What its agent, if it has one only, says of itself in its state folder."""
        body: dict[str, Any] = json.loads((self._folder / "state/agent/agent.json").read_text())
        return body

    def proxies_of(self, session: str) -> list[int]:
        """Pids of the device proxies that serve rings of the session."""
        agent = self.agent
        return proxies_of(agent["runtime_dir"], agent["shm_dir"], session)

    @property
    def folder(self) -> Path:
        """Of the service and its agents."""
        return self._folder

    def log(self) -> str:
        lines = (self._folder / "service.log").read_text().splitlines()
        return "\n".join([line for line in lines if "singularity.access" not in line][-40:])
