"""What the scheduler service costs: lists, events, durable submits, and the start of a command.

The service is a process of its own, with its real ledger on disk, a Hub that only knows tokens,
and a node agent that does nothing but answer; so what is measured is the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from singularity_proxy.wire import rpc
from singularity_scheduler.client import ServiceClient

from .figures import Figure

DESCRIPTION = "the scheduler service: lists, events, durable submits, start of the command line"
BOUNDS = {
    "list_1000_sessions_ms_p95": 50.0,
    "event_to_client_ms_p95": 20.0,
    "submit_ms_p95": 50.0,
    "cli_start_ms": 400.0,
}
PREFIX = "/services/singularity/"
LISTENERS = 8
RUN = {"notebook": "/home/alice/train.ipynb", "parameters": {"lr": 0.1}}
LAUNCH = {"mode": "capsule", "argv": ["python", "-c", "pass"], "connection": {}}


def sizes(quick: bool) -> dict[str, Any]:
    """What one run measures; part of the report."""
    return {
        "sessions": 1000,
        "active": 100,
        "rounds": 3 if quick else 5,
        "lists": 20 if quick else 60,
        "events": 40 if quick else 150,
        "submits": 40 if quick else 150,
        "commands": 5 if quick else 15,
        "listeners": LISTENERS,
    }


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


class Agent:
    """A node that says yes: sessions start and end, nothing runs. `peer` is the service."""

    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.peer: rpc.Peer | None = None
        self._server: asyncio.AbstractServer | None = None

    async def start(self, path: str) -> None:
        answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "hello": lambda _: {
                "node": "local",
                "instance": "bench",
                "devices": [
                    {"id": f"cpu:{n}", "type": "cpu", "capacity_bytes": 1 << 30, "name": ""}
                    for n in range(2)
                ],
                "capabilities": {},
                "sessions": list(self.sessions.values()),
            },
            "session.start": self._start,
            "device.attach": lambda _: {"ms": 1.0},
            "session.end": lambda asked: self._end(asked["session"]),
            "renew": lambda asked: {"held": asked["leases"], "gone": []},
        }

        def handler(method: str) -> rpc.Handler:
            async def serve(peer: rpc.Peer, asked: dict[str, Any]) -> Any:
                if method == "hello":
                    self.peer = peer
                return answers[method](asked)

            return serve

        self._server = await rpc.serve(
            path, {name: handler(name) for name in answers}, allowed_uids={os.getuid()}
        )

    async def stop(self) -> None:
        if self.peer:
            await self.peer.close()
        if self._server:
            self._server.close()

    def activity(self, session: str, busy: bool) -> None:
        self._tell(session, "activity", busy=busy, at="2026-01-01T00:00:00.000+00:00")

    def need(self, session: str) -> None:
        self._tell(session, "device.need")

    def _tell(self, session: str, type_: str, **data: Any) -> None:
        assert self.peer is not None
        self.peer.notify("event", session=session, type=type_, data=data)

    def _start(self, asked: dict[str, Any]) -> Any:
        kept = ("session", "user", "kind", "tier", "name", "virtual_devices")
        self.sessions[asked["session"]] = {
            **{key: asked[key] for key in kept},
            **{"alive": True, "pid": 1, "exit_code": None, "epoch": 0, "devices": []},
            **{"saved": False, "waiting": False, "busy": None},
        }
        return {"pid": 1, "connection": asked["launch"].get("connection"), "env": {}}

    def _end(self, session: str) -> Any:
        self.sessions.pop(session, None)
        return {"exit_code": 0}


SERVICE = """
import asyncio, contextlib, os
from singularity_proxy.errors import Unavailable
from singularity_scheduler.fleet.base import AgentLink, Callbacks
from singularity_scheduler.service.app import SchedulerApp


class Fleet:
    def __init__(self, parent=None):
        self._callbacks = Callbacks()
        self._link = AgentLink(self._callbacks)

    def on_event(self, callback): self._callbacks.event = callback
    def on_command(self, callback): self._callbacks.command = callback
    def on_connection(self, callback): self._callbacks.connection = callback

    def lead(self, ledger, epoch): self._callbacks.lead(ledger, epoch)

    async def start(self):
        await self._link.connect(os.environ["BENCH_AGENT"])

    async def stop(self):
        await self._link.close()

    async def hello(self):
        with contextlib.suppress(Unavailable):
            return [await self._link.call("hello", 10.0, {})]
        return []

    async def call(self, node, method, timeout=60.0, **params):
        return await self._link.call(method, timeout, params)


SchedulerApp.fleet_class.default_value = Fleet
app = SchedulerApp()
app.fleet_class = Fleet
app.initialize([])
app.start()
"""

HUB = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

access, use = "access:services!service=singularity", "custom:singularity:use"
scopes = [access, use]


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.headers.get("Authorization", "").removeprefix("token ").partition("-")[0]
        more = ["custom:singularity:admin"] if name == "admin" else []
        body = json.dumps({"name": name, "kind": "user", "scopes": scopes + more}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args): pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Hub).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(
    code: str, arguments: list[str], env: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as written:
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments], env=env, stderr=written, stdout=written
        )


@contextlib.asynccontextmanager
async def service(folder: Path) -> AsyncIterator[tuple[str, Agent]]:
    """A running service; yields its address and its one node."""
    agent, hub_port, port = Agent(), free_port(), free_port()
    await agent.start(str(folder / "agent.sock"))
    url = f"http://127.0.0.1:{port}{PREFIX}"
    env = {
        **os.environ,
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": "service-token",
        "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps(["access:services!service=singularity"]),
        "JUPYTERHUB_SERVICE_NAME": "singularity",
        "JUPYTERHUB_CLIENT_ID": "service-singularity",
        "XDG_STATE_HOME": str(folder / "state"),
        "BENCH_AGENT": str(folder / "agent.sock"),
    }
    hub = spawn(HUB, [str(hub_port)], dict(os.environ), folder / "hub.log")
    process = spawn(SERVICE, [], env, folder / "service.log")
    try:
        client = ServiceClient(url, "alice-token")
        for _ in range(300):
            with contextlib.suppress(Exception):
                if (await client.cluster())["devices"]:
                    break
            if process.poll() is not None:
                break
            await asyncio.sleep(0.1)
        else:
            process.kill()
        if process.poll() is not None:
            raise SystemExit((folder / "service.log").read_text())
        yield url, agent
    finally:
        for running in (process, hub):
            running.terminate()
            running.wait(20)
        await agent.stop()


async def fill(client: ServiceClient, agent: Agent, size: dict[str, Any]) -> list[str]:
    """Make the sessions: most have ended, two hold a device, some wait for one, some are queued
    runs; answers those that are live and use no device."""
    live: list[str] = []

    async def one(number: int) -> None:
        made = await client.create_session(
            kind="interactive", launch=LAUNCH, name=f"notebook-{number}.ipynb"
        )
        if number % (size["sessions"] // size["active"]):
            await client.end_session(made["id"])
        else:
            live.append(made["id"])

    for start in range(0, size["sessions"], 20):
        await asyncio.gather(*(one(n) for n in range(start, start + 20)))
    needing, free = live[: len(live) // 2], live[len(live) // 2 :]
    for session in needing:
        agent.activity(session, True)
        agent.need(session)
    for number in range(20):
        await client.submit(run=RUN, name=f"queued {number}", devices=2)
    return free


async def time_lists(client: ServiceClient, size: dict[str, Any]) -> list[float]:
    took = []
    for _ in range(size["lists"]):
        start = time.perf_counter()
        page = await client.sessions_page(limit=1000)
        took.append(1e3 * (time.perf_counter() - start))
        if len(page["sessions"]) != 1000:
            raise SystemExit(f"{len(page['sessions'])} sessions were listed, not 1000")
    return took


async def time_events(url: str, agent: Agent, session: str, size: dict[str, Any]) -> list[float]:
    """From the node's notification to the parsed event at the first of several listeners; the
    others read along."""
    clients = [
        ServiceClient(url, f"{'admin' if n % 2 else 'alice'}-token") for n in range(LISTENERS)
    ]
    streams = [client.events() for client in clients]
    for stream in streams:
        await anext(stream)

    async def drain(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            pass

    others = [asyncio.ensure_future(drain(stream)) for stream in streams[1:]]
    took, busy = [], False
    try:
        for _ in range(size["events"]):
            busy = not busy
            start = time.perf_counter()
            agent.activity(session, busy)
            async for event in streams[0]:
                data = event["data"]
                if event["event"] == "session" and (data["id"], data["busy"]) == (session, busy):
                    break
            took.append(1e3 * (time.perf_counter() - start))
            await asyncio.sleep(0.01)
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
    return took


async def time_submits(client: ServiceClient, size: dict[str, Any]) -> list[float]:
    took = []
    for number in range(size["submits"]):
        start = time.perf_counter()
        made = await client.submit(run=RUN, name=f"run {number}", tier="basic")
        took.append(1e3 * (time.perf_counter() - start))
        await client.end_session(made["id"])
    return took


def time_command(url: str) -> float:
    command = [str(Path(sys.executable).with_name("jupyter")), "singularity", "ls"]
    env = {**os.environ, "SINGULARITY_API_URL": url, "JUPYTERHUB_API_TOKEN": "bob-token"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    start = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - start)


async def measure(quick: bool, say: Callable[[str], object]) -> dict[str, Figure]:
    """Called by the driver; `say` prints a line of progress."""
    size = sizes(quick)
    folder = Path(tempfile.mkdtemp(prefix="sgb-", dir="/tmp"))
    figures = {key: Figure() for key in BOUNDS}
    try:
        async with service(folder) as (url, agent):
            alice, bob = ServiceClient(url, "alice-token"), ServiceClient(url, "bob-token")
            say(f"making {size['sessions']} sessions ...")
            live = await fill(alice, agent, size)
            for number in range(5):  # what the measured command shows
                await bob.create_session(kind="interactive", launch=LAUNCH, name=f"nb {number}")
            await time_lists(alice, {"lists": 3})
            for round_ in range(size["rounds"]):
                say(f"round {round_ + 1} of {size['rounds']} ...")
                figures["list_1000_sessions_ms_p95"].values.append(
                    p95(await time_lists(alice, size))
                )
                figures["event_to_client_ms_p95"].values.append(
                    p95(await time_events(url, agent, live[round_], size))
                )
                figures["submit_ms_p95"].values.append(p95(await time_submits(alice, size)))
            say("starting commands ...")
            time_command(url)
            for _ in range(size["commands"]):
                figures["cli_start_ms"].values.append(time_command(url))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures
