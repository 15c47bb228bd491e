"""`LocalFleet`: one node, this machine. The embedded default.

The agent is a process of its own that outlives the service: a restarted service finds it by the
file that the agent leaves in its state folder, and its sessions never notice. An agent that dies
is started again and takes its sessions over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from singularity_proxy.capsule.launcher import (
    CapsuleSpec,
    last_words,
    spawn,
    stripped_environment,
    trim_log,
)
from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch
from singularity_proxy.errors import BadRequest, NotFound, SingularityError, Unavailable
from traitlets import Enum, Integer, List, Unicode, default
from traitlets.config import LoggingConfigurable

from .base import AgentLink, Callbacks, retry_pause

if TYPE_CHECKING:
    from singularity_scheduler.service.ports import (
        CommandCallback,
        ConnectionCallback,
        EventCallback,
        Hello,
    )

ANNOUNCEMENT = "agent.json"
"""The agent's file in its state folder: where it listens, and which process it is."""

START_LIMIT_S = 60.0
"""How long an agent may take from its start to its first answer (it may probe GPUs)."""

ANSWER_LIMIT_S = 5.0
"""How long an agent that lives may leave a connection unanswered."""

LOG_BYTES = 1 << 20

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_bytes(text: str) -> int:
    """ "4GiB", "512 MiB" or plain bytes as a number; raises `BadRequest`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise BadRequest(f"'{text}' is not a size; write for example 4GiB or 512MiB")
    return int(float(match[1]) * unit)


class LocalFleet(LoggingConfigurable):  # type: ignore[misc]
    """The agent of this machine: found or started, watched, restarted (a `service.ports.Fleet`)."""

    state_dir = Unicode(
        config=True,
        help="""Folder of the node agent: its ledger, log and checkpoints. Default: "agent" in the
        service's state folder.""",
    )
    runtime_dir = Unicode(
        config=True,
        help="Folder of the agent's sockets, a short path. Empty: a new one in /tmp.",
    )
    shm_dir = Unicode(
        config=True,
        help="Folder of rings and parked device state. Empty: a new one in /dev/shm.",
    )
    node = Unicode("local", config=True, help="Name of the node in the cluster.")
    device_type = Enum(
        ("auto", "cpu", "cuda"),
        default_value="auto",
        config=True,
        help="""Physical devices of this machine: "cpu", "cuda", or "auto": cuda where torch finds
        a GPU, else cpu.""",
    )
    cpu_devices = Integer(
        0, config=True, help="Number of devices. 0: two for cpu, all that torch finds for cuda."
    )
    cpu_capacity = Unicode(
        "4GiB",
        config=True,
        help="Memory of one cpu device, for example 512MiB or 8GiB; unused for cuda.",
    )
    agent_args = List(
        Unicode(),
        config=True,
        help="""More command-line arguments of the agent, for example
        ["--NodeAgent.warm_proxies=2"]. Empty: none.""",
    )

    @default("state_dir")  # type: ignore[untyped-decorator]
    def _default_state_dir(self) -> str:
        base = getattr(self.parent, "state_dir", "") or os.getcwd()
        return os.path.join(base, "agent")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._callbacks = Callbacks()
        self._link = AgentLink(self._callbacks)
        self._agent: ProcessWatch | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ended = False

    # -- Fleet ------------------------------------------------------------------------------------

    def on_event(self, callback: EventCallback) -> None:
        self._callbacks.event = callback

    def on_command(self, callback: CommandCallback) -> None:
        self._callbacks.command = callback

    def on_connection(self, callback: ConnectionCallback) -> None:
        self._callbacks.connection = callback

    async def start(self) -> None:
        """Find or start the agent, connect, and keep it so. Raises `Unavailable` with the agent's
        last words when it does not start."""
        self._ended = False
        hello = await self._connect()
        self._warn_about_devices(hello)
        self._supervisor = asyncio.ensure_future(self._supervise())

    async def stop(self) -> None:
        """Close the connection; the agent and its sessions go on. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        await self._link.close()
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    async def stop_agent(self) -> None:
        """End all sessions and the agent, then close; the orderly stop of a whole platform."""
        with contextlib.suppress(Unavailable):
            await self.call(self._link.node, "shutdown", 6.0)
        if self._agent is not None:
            await self._agent.wait(2.0)
        await self.stop()

    async def hello(self) -> list[Hello]:
        """The agent's `hello`; empty while it is not connected."""
        try:
            return [await self._link.call("hello", 10.0, {})]
        except Unavailable:
            return []

    async def call(
        self, node: str, method: str, timeout: float | None = 60.0, **params: Any
    ) -> Any:
        """Call the agent of `node`; after "shutdown" it is not started again."""
        if self._link.node and node != self._link.node:
            raise NotFound(f"there is no node '{node}' in this fleet", node=node)
        if method == "shutdown":
            self._ended = True
        return await self._link.call(method, timeout, params)

    # -- the agent process ------------------------------------------------------------------------

    async def _supervise(self) -> None:
        failures = 0
        while True:
            await self._link.wait_closed()
            if self._ended:
                return
            if not failures:
                self.log.warning("the node agent is gone; its sessions go on, it is started again")
            await retry_pause(failures)
            try:
                await self._connect()
                failures = 0
                self.log.info("the node agent of '%s' answers again", self._link.node)
            except SingularityError as error:
                failures += 1
                self.log.error("%s", error.message)

    async def _connect(self) -> Hello:
        """Connect to the agent that runs, or start one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_LIMIT_S
        while (announced := self._read_announcement()) is not None:
            try:
                hello = await self._link.connect(announced["socket"])
                self._watch(announced)
                return hello
            except Unavailable:
                if not self._is_alive(announced):
                    break
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(0.05)
        return await self._start_agent()

    async def _start_agent(self) -> Hello:
        _make_folder(self.state_dir)
        log_path = os.path.join(self.state_dir, "agent.log")
        trim_log(log_path, LOG_BYTES)
        watch = ProcessWatch(
            spawn(
                CapsuleSpec(
                    argv=self.command(),
                    env=stripped_environment(os.environ),
                    cwd="/",
                    log_path=log_path,
                )
            )
        )
        self._agent = watch
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_LIMIT_S
        while loop.time() < deadline:
            announced = self._read_announcement()
            if announced is not None:
                # Ours, or one that somebody else started meanwhile: then ours has ended.
                with contextlib.suppress(Unavailable):
                    return await self._link.connect(announced["socket"])
            if not watch.alive:
                break
            await asyncio.sleep(0.02)
        words = last_words(log_path) or "it said nothing"
        raise Unavailable(f"the node agent did not start ({words}); the log is {log_path}")

    def command(self) -> list[str]:
        """The agent's command line."""
        command = [
            *(sys.executable, "-m", "singularity_scheduler.agent"),
            f"--NodeAgent.state_dir={os.path.abspath(self.state_dir)}",
            f"--NodeAgent.node={self.node}",
            f"--NodeAgent.device_type={self.device_type}",
            f"--NodeAgent.device_count={self.cpu_devices}",
            f"--NodeAgent.device_capacity_bytes={parse_bytes(self.cpu_capacity)}",
        ]
        if self.runtime_dir:
            command.append(f"--NodeAgent.runtime_dir={self.runtime_dir}")
        if self.shm_dir:
            command.append(f"--NodeAgent.shm_dir={self.shm_dir}")
        return [*command, *self.agent_args]

    def _read_announcement(self) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.state_dir, ANNOUNCEMENT), encoding="utf-8") as file:
                body: dict[str, Any] = json.load(file)
        except (FileNotFoundError, ValueError):
            return None
        return body if isinstance(body.get("socket"), str) else None

    def _is_alive(self, announced: dict[str, Any]) -> bool:
        identity = ProcessIdentity.from_json(announced.get("process"))
        try:
            return identity is not None and ProcessIdentity.of(identity.pid) == identity
        except ProcessLookupError:
            return False

    def _watch(self, announced: dict[str, Any]) -> None:
        identity = ProcessIdentity.from_json(announced.get("process"))
        if identity is not None and (self._agent is None or self._agent.identity != identity):
            if self._agent is not None:
                self._agent.close()
            self._agent = ProcessWatch(identity)

    def _warn_about_devices(self, hello: Hello) -> None:
        found = len(hello["devices"])
        if self.cpu_devices and found != self.cpu_devices:
            self.log.warning(
                "the running node agent has %d devices, not the %d configured; they change when "
                "the platform is stopped and started",
                found,
                self.cpu_devices,
            )


def _make_folder(path: str) -> None:
    os.makedirs(path, 0o700, exist_ok=True)
