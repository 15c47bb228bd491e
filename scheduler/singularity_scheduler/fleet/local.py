"""`LocalFleet`: the nodes of this machine, one unless more are named. The embedded default."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import BadRequest, NotFound, SingularityError, Unavailable
from singularity_proxy.membership.join_string import NODE_NAME
from traitlets import Bool, Dict, Enum, Float, Integer, List, TraitError, Unicode, default, validate
from traitlets.config import LoggingConfigurable

from . import namespaces
from .base import Callbacks
from .local_agent import LocalAgent

if TYPE_CHECKING:
    from singularity_scheduler.service.ports import (
        CommandCallback,
        ConnectionCallback,
        EventCallback,
        Hello,
    )

UIDS = "uids.json"
"""In the fleet's folder: which uid each Hub user has on all of its nodes."""

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_bytes(text: str) -> int:
    """ "4GiB", "512 MiB" or plain bytes as a number; raises `BadRequest`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise BadRequest(f"'{text}' is not a size; write for example 4GiB or 512MiB")
    return int(float(match[1]) * unit)


class LocalFleet(LoggingConfigurable):  # type: ignore[misc]
    """The agents of this machine: found or started, watched, restarted (`service.ports.Fleet`)."""

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
    nodes = List(
        Unicode(),
        config=True,
        help="""Names of several nodes on this machine, each with an agent, folders and devices of
        its own: ["node-1", "node-2"]. Their folders are named after those above and the node.
        Sessions move between them through the checkpoint store. Empty: one node, called `node`.""",
    )
    clusters = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        config=True,
        help="""Node -> cluster that it belongs to, so that this machine has nodes of several
        clusters: {"node-1": "west-1", "node-2": "east-1"}. Agents that run already keep theirs
        until they are started again. Nodes that are not here belong to the embedded cluster.""",
    )
    netns = Dict(
        value_trait=Unicode(),
        key_trait=Unicode(),
        config=True,
        help="""Node -> network namespace (of `ip netns`) in which its agent and sessions run, with
        addresses of their own: relays listen at the first one, so the machine and the other
        namespaces must reach it. It must be there, and the service must be root.""",
    )
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
    start_agents = Bool(
        True,
        config=True,
        help="""Whether the service starts the agents and keeps them running. False: another program
        does (systemd, for instance), with the same `state_dir`, and the service connects to
        them.""",
    )
    hung_agent_s = Float(
        20.0,
        min=0.0,
        config=True,
        help="""Seconds after which an agent that lives and does not answer is ended; what starts
        agents starts another one, and its sessions go on. 0: never.""",
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

    @validate("nodes")  # type: ignore[untyped-decorator]
    def _check_nodes(self, proposal: Any) -> list[str]:
        names: list[str] = proposal["value"]
        for name in names:
            if not NODE_NAME.fullmatch(name):
                raise TraitError(
                    f"{name!r} cannot be the name of a node: letters, digits, dots and dashes can"
                )
        if len(set(names)) != len(names):
            raise TraitError("two nodes have the same name")
        return names

    @validate("clusters")  # type: ignore[untyped-decorator]
    def _check_clusters(self, proposal: Any) -> dict[str, str]:
        found: dict[str, str] = proposal["value"]
        for node, cluster in found.items():
            if not NODE_NAME.fullmatch(cluster):
                raise TraitError(f"{cluster!r} of {node} cannot be the name of a cluster")
        return found

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._callbacks = Callbacks()
        self._agents: list[LocalAgent] = []

    # -- Fleet ------------------------------------------------------------------------------------

    def on_event(self, callback: EventCallback) -> None:
        self._callbacks.event = callback

    def on_command(self, callback: CommandCallback) -> None:
        self._callbacks.command = callback

    def on_connection(self, callback: ConnectionCallback) -> None:
        self._callbacks.connection = callback

    def lead(self, ledger: str, epoch: int) -> None:
        self._callbacks.lead(ledger, epoch)

    async def start(self) -> None:
        """Find or start the agents, connect, and keep it so. Raises `Unavailable` with an agent's
        last words when none starts; of several, those that do not are tried again and again."""
        if not self._agents:
            self._agents = [self._make(node) for node in self.nodes] or [self._make("")]
        found = await asyncio.gather(*(a.open() for a in self._agents), return_exceptions=True)
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, SingularityError):
                raise answer
        failed = [error for error in found if isinstance(error, SingularityError)]
        if len(failed) == len(found):
            raise failed[0]
        for agent, answer in zip(self._agents, found, strict=True):
            if isinstance(answer, SingularityError):
                self.log.error("%s", answer.message)
                agent.supervise()
            elif not isinstance(answer, BaseException):
                self._warn_about_devices(answer)

    def _make(self, node: str) -> LocalAgent:
        def command() -> list[str]:
            return self.command(node) if node else self.command()

        return LocalAgent(
            _below(self.state_dir, node),
            command if self.start_agents else None,
            self._callbacks,
            self.log,
            self.hung_agent_s,
        )

    async def stop(self) -> None:
        """Close the connections; the agents and their sessions go on. Idempotent."""
        await asyncio.gather(*(agent.stop() for agent in self._agents))

    async def stop_agent(self) -> None:
        """End all sessions and the agents, then close; the orderly stop of a whole platform."""
        await asyncio.gather(*(agent.shut_down() for agent in self._agents))

    async def hello(self) -> list[Hello]:
        """`hello` of every agent that is connected."""

        async def ask(agent: LocalAgent) -> Hello | None:
            try:
                answer: Hello = await agent.call("hello", 10.0, {})
            except Unavailable:
                return None
            return answer

        told = await asyncio.gather(*map(ask, self._agents))
        return [hello for hello in told if hello is not None]

    async def call(
        self, node: str, method: str, timeout: float | None = 60.0, **params: Any
    ) -> Any:
        """Call the agent of `node`; after "shutdown" it is not started again."""
        return await self._agent(node).call(method, timeout, params)

    def has(self, node: str) -> bool:
        """Whether `node` is one of this machine's."""
        return node in (self.nodes or [self.node])

    def _agent(self, node: str) -> LocalAgent:
        for agent in self._agents:
            if agent.link.node == node:
                return agent
        unknown = [agent for agent in self._agents if not agent.link.node]
        if unknown and (node in self.nodes or not self.nodes):
            return unknown[0] if not self.nodes else self._agents[self.nodes.index(node)]
        if not self._agents:
            raise Unavailable(
                "no node agent was started; its sessions go on, try again in a moment"
            )
        raise NotFound(f"there is no node '{node}' in this fleet", node=node)

    # -- the agents' command lines ----------------------------------------------------------------

    def command(self, node: str = "") -> list[str]:
        """The command line of the agent of `node` ("": the one that there is)."""
        command = [
            *self._inside(node or self.node),
            *(sys.executable, "-m", "singularity_scheduler.agent"),
            f"--NodeAgent.state_dir={os.path.abspath(_below(self.state_dir, node))}",
            f"--NodeAgent.node={node or self.node}",
            f"--NodeAgent.device_type={self.device_type}",
            f"--NodeAgent.device_count={self.cpu_devices}",
            f"--NodeAgent.device_capacity_bytes={parse_bytes(self.cpu_capacity)}",
            *self._addresses(node or self.node),
        ]
        if cluster := self.clusters.get(node or self.node):
            command.append(f"--NodeAgent.cluster={cluster}")
        if self.runtime_dir:
            command.append(f"--NodeAgent.runtime_dir={_beside(self.runtime_dir, node)}")
        if self.shm_dir:
            command.append(f"--NodeAgent.shm_dir={_beside(self.shm_dir, node)}")
        if not self._says("uids_file"):
            uids = os.path.join(os.path.abspath(self.state_dir), UIDS)
            command.append(f"--NodeAgent.uids_file={uids}")
        if not self._says("checkpoint_store"):
            store = os.path.join(os.path.abspath(self.state_dir), "store")
            command.append(f"--NodeAgent.checkpoint_store={store}")
        if len(self.nodes) > 1 and not self._says("proxy_threads"):
            # Each would take the machine's cores for its own.
            share = len(os.sched_getaffinity(0)) // ((self.cpu_devices or 2) * len(self.nodes))
            command.append(f"--NodeAgent.proxy_threads={max(1, share)}")
        return [*command, *self.agent_args]

    def _says(self, setting: str) -> bool:
        return any(word.startswith(f"--NodeAgent.{setting}=") for word in self.agent_args)

    def _inside(self, node: str) -> list[str]:
        """What runs a command in the network namespace of the node."""
        name = self._namespace(node)
        return ["ip", "netns", "exec", name] if name else []

    def _namespace(self, node: str) -> str:
        name = str(self.netns.get(node, ""))
        if name and not namespaces.exists(name):
            raise Unavailable(
                f"there is no network namespace '{name}' for node {node}, so it was not started: "
                f"ip netns add {name}, or leave it out of LocalFleet.netns",
                node=node,
            )
        return name

    def _addresses(self, node: str) -> list[str]:
        """Where its relays listen, for Jupyter and for kernels on other nodes."""
        name = self._namespace(node)
        if not name:
            return []
        address = namespaces.address_of(name)
        if not address:
            raise Unavailable(
                f"the network namespace '{name}' has no address, so node {node} was not started: "
                "give one of its devices an address that the machine reaches",
                node=node,
            )
        return [f"--NodeAgent.tunnel_ip={address}", f"--NodeAgent.client_ip={address}"]

    def _warn_about_devices(self, hello: Hello) -> None:
        found = len(hello["devices"])
        if self.cpu_devices and found != self.cpu_devices:
            self.log.warning(
                "the running node agent of %s has %d devices, not the %d configured; they change "
                "when the platform is stopped and started",
                hello["node"],
                found,
                self.cpu_devices,
            )


def _below(folder: str, node: str) -> str:
    """The folder of one of several nodes; of the only one it is `folder` itself."""
    return os.path.join(folder, node) if node else folder


def _beside(folder: str, node: str) -> str:
    """The same for folders that agents make and remove; no folder around them is left over."""
    return f"{folder.rstrip('/')}-{node}" if node else folder
