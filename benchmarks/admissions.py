"""The durable service under load: admissions, from submit to the agent's start, and a restart.

The service is the real one, a process of its own with its ledger on disk (every commit is synced)
and the unchanged `LocalFleet`; its nodes are simulated in this process (`simulated_nodes`): real
sockets, the whole protocol, nothing runs. Clients submit in a closed loop, so the latency is that
of a service that has all the work it can do. Then it is killed and started again on what it has.
A few sessions on a real node agent are reported apart: what a start costs there is the agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from singularity_scheduler.client import ServiceClient

from .api import HUB, PREFIX, free_port, spawn
from .figures import Figure
from .simulated_nodes import SimulatedNode

DESCRIPTION = (
    "the durable service: admissions/s, submit to agent start, restart with 5,000 sessions"
)
BOUNDS = {"submit_to_start_s_p99": 1.0, "restart_s_5000": 10.0}
FLOORS = {"admissions_s": 200.0}
LAUNCH = {"mode": "capsule", "argv": ["python", "-c", "pass"], "connection": {}}
USERS = 50


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "nodes": 4 if quick else 20,
        "devices_per_node": 8,
        "clients": 32,
        "warm_up": 50 if quick else 300,
        "admissions": 500 if quick else 5000,
        "restarts": 1 if quick else 3,
        "real_agent_starts": 3 if quick else 20,
        "ledger": "SQLite, WAL, every commit synced",
    }


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


class Service:
    """The service as a process, with a Hub that only knows tokens. `stop` ends both."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._hub_port, self.port = free_port(), free_port()
        lines = [f"c.{name} = {value!r}" for name, value in settings.items()]
        (folder / "config.py").write_text("\n".join(lines) + "\n")
        self._hub = spawn(HUB, [str(self._hub_port)], dict(os.environ), folder / "hub.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """What it has said so far."""
        return (self._folder / "service.log").read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PREFIX}"

    def launch(self) -> None:
        """Start the process; it answers a moment later."""
        env = {
            **os.environ,
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{self.port}",
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{self._hub_port}/hub/api",
            "JUPYTERHUB_API_TOKEN": "service-token",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps(["access:services!service=singularity"]),
            "JUPYTERHUB_SERVICE_NAME": "singularity",
            "JUPYTERHUB_CLIENT_ID": "service-singularity",
        }
        with (self._folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "singularity_scheduler.service"),
                    f"--config={self._folder / 'config.py'}",
                ],
                env=env,
                stdout=log,
                stderr=log,
            )

    async def ready(self, nodes: int) -> dict[str, Any]:
        """Wait until it has all its nodes; its cluster document."""
        client = ServiceClient(self.url, "admin-token")
        for _ in range(1200):
            with contextlib.suppress(Exception):
                found = await client.cluster()
                if sum(n["connected"] for n in found["nodes"]) == nodes:
                    return found
            if self._process is None or self._process.poll() is not None:
                break
            await asyncio.sleep(0.05)
        raise SystemExit(self.log()[-4000:])

    def kill(self) -> None:
        """No order, nothing is said to anybody."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)

    def stop(self) -> None:
        for running in (self._process, self._hub):
            if running is not None and running.poll() is None:
                running.terminate()
                running.wait(20)


class Submitter:
    """One client that keeps its connection; what it costs here is not the service's."""

    def __init__(self, port: int, user: str) -> None:
        self._port, self._user = port, user

    async def __aenter__(self) -> Submitter:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def body(self, name: str) -> dict[str, Any]:
        """What is asked for."""
        return {"kind": "interactive", "name": name, "launch": LAUNCH}

    async def submit(self, name: str) -> None:
        """Ask for a session and wait for the answer: here, until it is started."""
        body = json.dumps(self.body(name)).encode()
        self._writer.write(
            f"POST {PREFIX}api/v1/sessions HTTP/1.1\r\nHost: bench\r\n"
            f"Authorization: token {self._user}-token\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        answer = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 201"):
            raise SystemExit(f"{head.decode()}{answer.decode()}")


class Load:
    """Submits sessions from several clients and knows when each was started at its agent."""

    def __init__(self, port: int, clients: int) -> None:
        self._port, self._clients = port, clients
        self._asked: dict[str, float] = {}
        self._number = 0
        self.waits: list[float] = []

    def started(self, name: str) -> None:
        """An agent got the start command."""
        self.waits.append(time.perf_counter() - self._asked[name])

    async def run(self, count: int) -> tuple[float, list[float]]:
        """Submit `count` sessions; admissions per second and the waits in seconds."""
        self.waits = []
        last = self._number + count

        async def client(n: int) -> None:
            async with Submitter(self._port, f"user{n % USERS}") as submitter:
                while self._number < last:
                    self._number += 1
                    name = f"notebook-{self._number}.ipynb"
                    self._asked[name] = time.perf_counter()
                    await submitter.submit(name)

        began = time.perf_counter()
        await asyncio.gather(*(client(n) for n in range(self._clients)))
        took = time.perf_counter() - began
        if len(self.waits) != count:
            raise SystemExit(f"{len(self.waits)} of {count} sessions were started")
        return count / took, self.waits


@contextlib.asynccontextmanager
async def simulated(
    folder: Path,
    size: dict[str, Any],
    ledger_url: str = "",
    started: Callable[[str], None] | None = None,
) -> AsyncIterator[tuple[Service, Load, list[SimulatedNode]]]:
    """A running service with simulated nodes; `started`: told of each start, in place of the load's
    own clock."""
    names = [f"node-{n:03}" for n in range(size["nodes"])]
    state = folder / "state"
    service = Service(
        folder,
        {
            "SchedulerApp.state_dir": str(state),
            "SchedulerApp.ledger_url": ledger_url,
            "LocalFleet.nodes": names,
        },
    )
    load = Load(service.port, size["clients"])
    sockets = folder / "s"
    sockets.mkdir()
    nodes = [
        SimulatedNode(
            state / "agent", sockets, name, size["devices_per_node"], started or load.started
        )
        for name in names
    ]
    try:
        for node in nodes:
            await node.start()
        service.launch()
        await service.ready(len(nodes))
        yield service, load, nodes
    finally:
        service.stop()
        for node in nodes:
            await node.stop()


async def restart(service: Service, nodes: list[SimulatedNode]) -> float:
    """Kill the service and start it again; seconds until it has the full state: every node
    connected and taken over, every session known."""
    sessions = sum(len(node.sessions) for node in nodes)
    service.kill()
    began = time.perf_counter()
    service.launch()
    await service.ready(len(nodes))
    took = time.perf_counter() - began
    known = await ServiceClient(service.url, "admin-token").sessions("active")
    live = sum(session["process_state"] == "live" for session in known)
    if live != sessions:
        raise SystemExit(f"{live} of {sessions} sessions are live after the restart")
    return took


async def real_agent(folder: Path, size: dict[str, Any]) -> tuple[float, list[float]]:
    """Starts on a real node agent, four at a time: starts per second, and seconds of each."""
    short = folder / "rt"
    service = Service(
        folder,
        {
            "SchedulerApp.state_dir": str(folder / "state"),
            "LocalFleet.runtime_dir": str(short),
            "LocalFleet.device_type": "cpu",
        },
    )
    waits: list[float] = []
    client = ServiceClient(service.url, "user0-token", timeout=120.0)
    launch = {**LAUNCH, "argv": [sys.executable, "-c", "import time; time.sleep(600)"]}
    launch["connection"] = None
    gate = asyncio.Semaphore(4)
    made: list[str] = []

    async def one(number: int) -> None:
        async with gate:
            asked = time.perf_counter()
            answer = await client.create_session(kind="interactive", launch=launch, name="real")
            waits.append(time.perf_counter() - asked)
            made.append(answer["id"])

    try:
        service.launch()
        await service.ready(1)
        began = time.perf_counter()
        await asyncio.gather(*(one(n) for n in range(size["real_agent_starts"])))
        took = time.perf_counter() - began
        for session in made:
            await client.end_session(session, grace_s=0.0)
    finally:
        service.stop()
        await stop_real_agents(folder / "state" / "agent")
    return len(waits) / took, waits


async def stop_real_agents(folder: Path) -> None:
    """A real agent outlives its service."""
    from singularity_proxy.wire import rpc

    with contextlib.suppress(Exception):
        told = json.loads((folder / "agent.json").read_text())
        peer = await rpc.connect(told["socket"])
        with contextlib.suppress(Exception):
            await peer.call("shutdown", 30.0)
        await peer.close()


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size = sizes(quick)
    keys = [*FLOORS, *BOUNDS, "real_agents_admissions_s", "real_agents_submit_to_start_s_p99"]
    figures = {key: Figure() for key in keys}
    folder = Path(tempfile.mkdtemp(prefix="sga-", dir="/tmp"))
    try:
        async with simulated(folder, size) as (service, load, nodes):
            await load.run(size["warm_up"])
            count = size["admissions"] - size["warm_up"]
            say(f"submitting {count} sessions from {size['clients']} clients ...")
            rate, waits = await load.run(count)
            figures["admissions_s"].values.append(rate)
            figures["submit_to_start_s_p99"].values.append(p99(waits))
            say(f"{rate:.0f}/s, p50 {statistics.median(waits):.3f} s")
            for _ in range(size["restarts"]):
                say("killing the service and starting it again ...")
                figures["restart_s_5000"].values.append(await restart(service, nodes))
        shutil.rmtree(folder)
        folder.mkdir()  # noqa: ASYNC240
        say("starting sessions on a real node agent ...")
        rate, waits = await real_agent(folder, size)
        figures["real_agents_admissions_s"].values.append(rate)
        figures["real_agents_submit_to_start_s_p99"].values.append(p99(waits))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures
