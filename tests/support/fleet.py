"""A fleet without a scheduler: the service's port for nodes of other machines, and nodes of paper
that join and dial it. A `Door` stands between them, so that a line can be cut or go dead."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from singularity_proxy.membership.dialling import Dialler
from singularity_proxy.membership.identity import Identity
from singularity_proxy.membership.join_string import JoinString
from singularity_proxy.membership.joining import join
from singularity_proxy.wire.rpc import Peer
from singularity_proxy.wire.tls import Care
from singularity_scheduler.fleet.base import Callbacks
from singularity_scheduler.fleet.joined import JoinedNodes
from singularity_scheduler.fleet.registry import Registry
from singularity_scheduler.fleet.settings import FleetSettings

VERSION = "1.0"
QUICK = Care(ping_s=0.1, ping_limit_s=2.0)
LOCAL = "local"
"""The node of the service's own machine."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def until(
    true: Callable[[], Any], what: Callable[[], object] = lambda: "it never was"
) -> Any:
    """Wait until `true`; what it gave."""
    for _ in range(3000):  # the limit only bounds a failure
        if found := true():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(what())


class Door:
    """Carries bytes from a port of its own to another one."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = 0
        self.passing = asyncio.Event()
        self.passing.set()
        """Not set: nothing gets through, and nobody is told."""
        self.came = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Door:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections at both ends."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        self._writers.add(writer)
        try:
            there, on = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(on)
        for source, sink in ((reader, on), (there, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self.passing.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()


class PaperNode:
    """An agent that says hello and echoes."""

    def __init__(self, folder: Path, node: str, instance: str = "one", **about: Any) -> None:
        self.folder, self.node, self.instance = folder, node, instance
        self.protocol: int | None = None
        """Another protocol than its own that it says it speaks."""
        self.peer: Peer | None = None
        self.closed = 0
        self.said = about
        handlers = {"hello": self._hello, "echo": self._echo}
        self.dialler = Dialler(
            str(folder), handlers, self._closed, instance=instance, version=VERSION, care=QUICK
        )
        self._task: asyncio.Task[None] | None = None

    async def _hello(self, peer: Peer, params: dict[str, Any]) -> Any:
        self.peer = peer
        return {
            "node": self.node,
            "instance": self.instance,
            "devices": [],
            "capabilities": {},
            "sessions": [],
            **self.said,
        }

    async def _echo(self, _: Peer, params: dict[str, Any]) -> Any:
        return params

    def _closed(self, peer: Peer) -> None:
        self.closed += 1

    def dial(self) -> PaperNode:
        if self.protocol is not None:
            self.dialler._arrival["protocol"] = self.protocol
        self._task = asyncio.ensure_future(self.dialler.run())
        return self

    async def hang_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


class FleetBox:
    """What a test gets."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.registry = Registry(str(folder))
        self.settings = FleetSettings("127.0.0.1", free_port(), "127.0.0.1", **settings)
        self.registry.create(self.settings)
        self.events: list[tuple[str, str, str, dict[str, Any]]] = []
        self.connections: list[tuple[str, bool]] = []
        self.nodes: list[PaperNode] = []
        self.door: Door
        self.joined = self.make()

    def make(self) -> JoinedNodes:
        """Another service's."""
        callbacks = Callbacks()
        callbacks.event = lambda *said: self.events.append(said)
        callbacks.connection = lambda node, up: self.connections.append((node, up))
        log = logging.getLogger("singularity.service")
        is_local = {LOCAL}.__contains__
        return JoinedNodes(self.registry, callbacks, is_local, log, VERSION, QUICK, look_s=0.05)

    def string(self, node: str) -> JoinString:
        """A join string that leads through the door."""
        return replace(self.registry.make_join_string(node), port=self.door.port)

    async def join(self, node: str, string: JoinString | None = None) -> Identity:
        """A machine joins; what it is, kept in a folder of its own."""
        identity = await join(string or self.string(node), VERSION)
        identity.save(str(self.folder / node))
        return identity

    def node(self, name: str, **about: Any) -> PaperNode:
        """An agent in the folder of a machine that has joined, which dials."""
        made = PaperNode(self.folder / name, **{"node": name, **about})
        self.nodes.append(made)
        return made

    async def up(self, node: str) -> None:
        """Wait until the node is connected."""
        await until(lambda: self.connections[-1:] == [(node, True)], lambda: self.connections)

    async def down(self, node: str) -> None:
        await until(lambda: (node, False) in self.connections, lambda: self.connections)


@contextlib.asynccontextmanager
async def fleet_box(**settings: Any) -> AsyncIterator[FleetBox]:
    """A service that listens; everything is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        box = FleetBox(Path(folder), **settings)
        async with Door(box.settings.port) as box.door:
            await box.joined.start()
            try:
                yield box
            finally:
                for node in box.nodes:
                    await node.hang_up()
                await box.joined.stop()


# -- real agents ----------------------------------------------------------------------------------

MAIN = "import sys; from singularity_scheduler.cli import main; sys.exit(main())"
CLI = [sys.executable, "-c", MAIN]


def inside(network: str) -> list[str]:
    """What runs a command in a network namespace; "": nothing is needed."""
    return ["ip", "netns", "exec", network] if network else []


async def run_cli(*words: str, given: str = "", network: str = "") -> tuple[int, str, str]:
    """Run `jupyter singularity WORDS` in a process of its own: exit code and what it said."""
    command = [*inside(network), *CLI, *words]
    done = await asyncio.to_thread(
        subprocess.run, command, input=given, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


class FarAgent:
    """The agent of a machine that has joined, started by `jupyter singularity node run`."""

    def __init__(self, state: Path, *options: str, network: str = "") -> None:
        few = ["--NodeAgent.device_type=cpu", "--NodeAgent.device_count=1"]
        few += ["--NodeAgent.warm_proxies=1", "--NodeAgent.proxy_threads=1"]
        self._command = [*inside(network), *CLI]
        self._command += ["node", "run", "--state", str(state), "--", *few, *options]
        self._log = state / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: its sessions go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)
        self.process = None

    async def stop(self) -> None:
        """In good order: its sessions end."""
        if self.process is not None:
            self.process.terminate()
            await asyncio.to_thread(self.process.wait, 60)
            self.process = None

    def folders(self) -> list[str]:
        """Its folders in /tmp and in shared memory, which nobody removes when its machine dies."""
        told = json.loads((self._log.parent / "agent.json").read_text())
        return [told["runtime_dir"], told["shm_dir"]]

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""
