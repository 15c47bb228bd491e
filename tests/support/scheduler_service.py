"""The real service with a real ledger, a Hub that only knows tokens, and an agent for tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from jupyterhub.services.auth import HubOAuth
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.service.api.services import Services
from singularity_scheduler.service.app import SchedulerApp
from singularity_scheduler.service.controller import Controller
from singularity_scheduler.service.ledger.database import Database, parse
from support.scheduler_agent import PaperAgent, PaperFleet, PaperStore
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler
from traitlets.config import Config

USE, ADMIN = "custom:singularity:use", "custom:singularity:admin"
ACCESS = "access:services!service=singularity"
PREFIX = "/services/singularity/"

LAUNCH = {
    "mode": "capsule",
    "argv": ["python", "-c", "pass"],
    "env": {"SECRET": "in-the-environment"},
    "connection": {"key": "connection-secret", "shell_port": 1},
}

AT_ONCE = {"idle_soft_s": 0, "idle_grace_s": 0, "min_run_s": 0}
"""Parameters: idle devices are taken whenever somebody waits, and never otherwise."""

TOKENS: dict[str, dict[str, Any]] = {
    "alice-token": {"name": "alice", "kind": "user", "scopes": [ACCESS, USE]},
    "bob-token": {"name": "bob", "kind": "user", "scopes": [ACCESS, USE]},
    "server-token": {
        "name": "alice",
        "kind": "user",
        "scopes": [ACCESS, USE, "access:servers!server=alice/big", "read:users!user=alice"],
    },
    "admin-token": {"name": "root", "kind": "user", "scopes": [ACCESS, USE, ADMIN]},
    "hub-admin-token": {"name": "ada", "kind": "user", "admin": True, "scopes": [ACCESS, USE]},
    "hub-admin-all-token": {
        "name": "ada",
        "kind": "user",
        "admin": True,
        "scopes": [ACCESS, USE, "admin:users"],
    },
    "hub-admin-some-token": {
        "name": "ada",
        "kind": "user",
        "admin": True,
        "scopes": [ACCESS, USE, "admin:users!user=bob"],
    },
    "hub-service-token": {
        "name": "ada",
        "kind": "service",
        "admin": True,
        "scopes": [ACCESS, USE, "admin:users"],
    },
    "spawner-token": {"name": "spawner", "kind": "service", "scopes": [ACCESS, USE, ADMIN]},
    "metrics-token": {"name": "prometheus", "kind": "service", "scopes": ["read:metrics"]},
    "namesake-token": {"name": "alice", "kind": "service", "scopes": [ACCESS, USE]},
    "no-use-token": {"name": "carol", "kind": "user", "scopes": [ACCESS]},
    "no-access-token": {"name": "carol", "kind": "user", "scopes": [USE]},
}


class TokenHub:
    """Answers GET /hub/api/user like JupyterHub does, and trades the code of a login for a token:
    the code is the token."""

    def __init__(self) -> None:
        self.tokens = dict(TOKENS)
        self.asked = 0
        self.ill = False
        hub = self

        class User(RequestHandler):
            def get(self) -> None:
                hub.asked += 1
                if hub.ill:
                    self.set_status(503)
                    return
                token = self.request.headers["Authorization"].removeprefix("token ")
                if token not in hub.tokens:
                    self.set_status(403)
                    self.finish(json.dumps({"status": 403, "message": "Forbidden"}))
                    return
                self.finish(json.dumps(hub.tokens[token]))

        class Trade(RequestHandler):
            def post(self) -> None:
                assert self.get_body_argument("client_secret") == "service-token"
                assert self.get_body_argument("code_verifier")
                self.finish(json.dumps({"access_token": self.get_body_argument("code")}))

        sock, self.port = bind_unused_port()
        self.server = HTTPServer(
            Application([("/hub/api/user", User), ("/hub/api/oauth2/token", Trade)])
        )
        self.server.add_sockets([sock])

    async def close(self) -> None:
        self.server.stop()
        await self.server.close_all_connections()


class Platform:
    """What a test gets: `client(user)`, the `agent`, the `controller`, and start and stop."""

    def __init__(self, tmp_path: Path, socket: str, **settings: Any) -> None:
        self.tmp_path = tmp_path
        self.store = PaperStore()
        names = settings.get("nodes")
        if names:
            self.agents = {
                name: PaperAgent(f"{socket}.{name}", settings.get("devices", 2), name, self.store)
                for name in names
            }
        else:
            self.agents = {"local": PaperAgent(socket, settings.get("devices", 2))}
        for name, cluster in settings.get("clusters", {}).items():
            self.agents[name].cluster = cluster
        self.agent = next(iter(self.agents.values()))
        self.hub = TokenHub()
        self.controller: Controller
        self.services: Services
        self._settings = settings
        self._stack = contextlib.AsyncExitStack()
        sock, self.port = bind_unused_port()
        sock.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PREFIX}"

    def client(self, who: str = "alice") -> ServiceClient:
        return ServiceClient(self.url, f"{who}-token", timeout=20.0)

    async def start(self) -> None:
        paper = type("Fleet", (PaperFleet,), {"paths": tuple(a.path for a in self.agents.values())})
        fleet = self._settings.get("fleet", paper)
        config = Config(
            SchedulerApp={
                "state_dir": str(self.tmp_path / "state"),
                "log_level": 50,
                "ledger_url": self._settings.get("ledger_url", ""),
                **self._settings.get("app", {}),
            },
            Controller={"parameters": AT_ONCE, **self._settings.get("controller", {})},
        )
        app = SchedulerApp(config=config)
        app.fleet_class = fleet
        ledger = self.tmp_path / "state/ledger.sqlite"
        if not app.ledger_url and not ledger.exists():
            ledger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            ledger.write_bytes(empty_ledger())
        auth = HubOAuth(
            api_url=f"http://127.0.0.1:{self.hub.port}/hub/api",
            api_token="service-token",
            base_url=PREFIX,
            access_scopes={ACCESS},
            oauth_client_id="service-singularity",
            cache_max_age=self._settings.get("cache_max_age", 60),
        )
        os.environ["JUPYTERHUB_SERVICE_URL"] = f"http://127.0.0.1:{self.port}"
        os.environ["JUPYTERHUB_SERVICE_PREFIX"] = PREFIX
        self._stack = contextlib.AsyncExitStack()
        self.controller = await self._stack.enter_async_context(app.running(auth))
        self.services = app.services

    async def stop(self) -> None:
        await self._stack.aclose()

    async def ready(self) -> None:
        await until(
            lambda: all(self.controller.state.node(n).connected for n in self.agents), "connected"
        )

    async def kernel(self, who: str = "alice", **spec: Any) -> str:
        """A live interactive session."""
        created = await self.client(who).create_session(kind="interactive", launch=LAUNCH, **spec)
        return str(created["id"])

    async def holder(self, who: str = "alice", **spec: Any) -> str:
        """A session that holds its devices and is busy."""
        session = await self.kernel(who, **spec)
        self.agent.busy(session, True)
        self.agent.need(session)
        await self.state(session, "running")
        return session

    async def state(self, session: str, word: str) -> None:
        """Wait until the session is in this state."""

        async def look() -> bool:
            view = await self.controller.find(session)
            return view.word == word

        for _ in range(6000):  # the limit only bounds a failure
            if await look():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{session} is not {word}: {await self.controller.find(session)}")


@functools.cache
def empty_ledger() -> bytes:
    """The file of a ledger with all its tables and nothing in them: each start of a service would
    make them for a tenth of a second."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ledger.sqlite")
        database = Database(parse(f"sqlite:///{file}"))
        database.open()
        database.close()
        return file.read_bytes()


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never: {what}")


@contextlib.asynccontextmanager
async def platform(tmp_path: Path, **settings: Any) -> AsyncIterator[Platform]:
    """A running service; everything is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sg-", dir="/tmp") as short:
        made = Platform(tmp_path, os.path.join(short, "agent.sock"), **settings)
        try:
            for agent in made.agents.values():
                await agent.start()
            await made.start()
            await made.ready()
            yield made
        finally:
            await made.stop()
            for agent in made.agents.values():
                await agent.stop()
            await made.hub.close()
            os.environ.pop("JUPYTERHUB_SERVICE_URL", None)
            os.environ.pop("JUPYTERHUB_SERVICE_PREFIX", None)


class RawConnections:
    """Connections to the service's port, aborted at the end. They take in no more than they are
    read of."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> RawConnections:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def open(self, data: bytes, limit: int = 1 << 12) -> asyncio.StreamReader:
        """One more of them, which was sent `data`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=limit)
        self._writers.append(writer)
        writer.write(data)
        await writer.drain()
        return reader


def raw_request(path: str, who: str = "alice", method: str = "GET", more: str = "") -> bytes:
    """The bytes of a request of the API without its body; `more`: header lines."""
    return (
        f"{method} {PREFIX}api/v1/{path} HTTP/1.1\r\nHost: here\r\n"
        f"Authorization: token {who}-token\r\n{more}\r\n"
    ).encode()
