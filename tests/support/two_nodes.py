"""The real service with two nodes on this machine that share nothing but home and the store; where
it is possible each in a network namespace with an address of its own. Nodes can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.connect import write_connection_file
from singularity_proxy.errors import SingularityError, Unavailable
from singularity_scheduler.client import ServiceClient
from singularity_scheduler.fleet import LocalFleet, namespaces
from support.agent_kernels import client_of
from support.scheduler_service import Platform, platform

NODES = ("node-1", "node-2")


class Nodes(LocalFleet):
    """Two agents with real device proxies; dead ones are not started again."""

    about: ClassVar[dict[str, Any]] = {}
    """More settings."""

    def __init__(self, **traits: Any) -> None:
        more = {"device_type": "cpu", "cpu_devices": 1, **self.about}
        super().__init__(**{**more, **traits})
        self.dead: set[str] = set()

    def command(self, node: str = "") -> list[str]:
        if node in self.dead:
            raise Unavailable(f"node {node} is dead")
        return super().command(node)


class TwoNodes:
    """What a test gets."""

    def __init__(self, service: Platform, networks: dict[str, str]) -> None:
        self.service = service
        self.networks = networks
        """Node -> network namespace; empty where those cannot be made."""
        self.home = Path(tempfile.mkdtemp(prefix="home-", dir="/var/tmp"))

    @property
    def fleet(self) -> Any:
        return self.service.controller.fleet.bare

    @property
    def client(self) -> ServiceClient:
        return self.service.client()

    async def open_home(self) -> None:
        """Home is alice's."""
        identity = await self.client.identity("alice")
        if os.geteuid() == 0:
            os.chown(self.home, identity["uid"], identity["gid"])

    async def start(self, argv: list[str], node: str, **more: Any) -> dict[str, Any]:
        """A session of alice on this node."""
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOME": str(self.home)}
        connection = more.pop("connection", None)
        launch = {"mode": "capsule", "argv": argv, "env": env, "cwd": str(self.home)}
        if connection is not None:
            launch["connection"] = connection
        made = await self.client.create_session(kind="interactive", launch=launch, **more)
        if made["node"] != node:  # an empty machine: it only has to be the right one
            await self.client.migrate(made["id"], node=node)
        return made

    async def kernel(self, **more: Any) -> tuple[str, AsyncKernelClient]:
        """The kernel of a notebook on the first node, and a client."""
        path = str(self.home / "client.json")
        _, info = write_connection_file(path, ip="127.0.0.1", key=b"secret", kernel_name="python3")
        os.unlink(path)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        argv += ["--HistoryManager.enabled=False", "--ext", "singularity_kernel"]
        made = await self.start(argv, NODES[0], connection=dict(info), **more)
        assert made["node"] == NODES[0]
        return made["id"], await client_of(dict(made["launch"]["connection"]))

    async def session(self, session: str) -> dict[str, Any]:
        return dict(await self.client.get_session(session))

    async def until(
        self, session: str, true: Callable[[dict[str, Any]], bool], seconds: float = 60.0
    ) -> dict[str, Any]:
        """Wait until `true` of the session; it as it is then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not true(found := await self.session(session)):
            assert loop.time() < deadline, found
            await asyncio.sleep(0.05)
        return found

    async def printed(self, session: str) -> str:
        """The log of a session, wherever it is; "" while it is nowhere."""
        at = (await self.session(session))["node"]
        if at is None:
            return ""
        with contextlib.suppress(SingularityError):  # it has just left
            found = await self.fleet.call(
                at, "session.log", session=session, offset=0, limit=1 << 20
            )
            return str(found["text"])
        return ""

    async def until_printed(self, session: str, text: str) -> str:
        """Wait until the log has `text`; all of the log."""
        for _ in range(1200):
            if text in (said := await self.printed(session)):
                return said
            await asyncio.sleep(0.05)
        raise AssertionError(f"{await self.printed(session)}\n{await self.session(session)}")

    def left(self, session: str, node: str) -> list[Path]:
        """The folders that a node has of a session, without that of its relay."""
        folders = (f"{self.fleet.runtime_dir}-{node}/s", f"{self.fleet.shm_dir}-{node}")
        return [path for folder in folders if (path := Path(folder, session)).exists()]

    def kill(self, node: str) -> None:
        """The machine is gone: SIGKILL for its agent, and for all that the agent had started
        (capsules, proxies, relays). Nothing starts it again."""
        self.fleet.dead.add(node)
        [agent] = [a for a in self.fleet._agents if a.link.node == node]
        first = agent._agent.identity.pid
        if name := self.networks.get(node):
            namespaces.destroy(name)
            return
        for pid in [first, *everything_below(first)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def two_nodes(
    tmp_path: Path,
    names: Sequence[str] = NODES,
    agent_args: Sequence[str] = (),
    clusters: Mapping[str, str] | None = None,
    **controller: Any,
) -> AsyncIterator[TwoNodes]:
    """A running service with both nodes (or with those of `names`); everything is gone afterwards.
    `clusters`: node -> its cluster; `controller`: settings of the controller."""
    tag = f"n{os.getpid() % 1000000}"
    networks = {} if namespaces.why_not() else namespaces.create(tag, names)
    folders = {"runtime_dir": f"/tmp/sg{tag}", "shm_dir": f"/dev/shm/sg{tag}"}
    few = ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1", *agent_args]
    about = {"nodes": list(names), "netns": networks, **folders, "agent_args": few}
    about["clusters"] = dict(clusters or {})
    fleet = type("Fleet", (Nodes,), {"about": about})
    quick = {"lease_ttl_s": 2.0, "lease_margin_s": 0.5, **controller}
    try:
        async with platform(tmp_path, nodes=names, fleet=fleet, controller=quick) as service:
            nodes = TwoNodes(service, networks)
            try:
                await nodes.open_home()
                yield nodes
            finally:
                await nodes.fleet.stop_agent()
                shutil.rmtree(nodes.home, ignore_errors=True)
    finally:
        for base in folders.values():  # a node that was killed has left its own
            for node in NODES:
                shutil.rmtree(f"{base}-{node}", ignore_errors=True)
        namespaces.remove(tag)


def everything_below(pid: int) -> list[int]:
    """The pids of all that a process has started and that still runs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *everything_below(child)]
    return found
