"""What every fleet has: the callbacks of the service, and one link per node agent.

`AgentLink` keeps a connection to one agent: it says `hello` on it (which makes this process the
agent's service), passes events and commands on, and tells when the connection comes and goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from singularity_proxy.errors import Conflict, SingularityError, Unavailable
from singularity_proxy.wire import rpc

if TYPE_CHECKING:
    from singularity_scheduler.service.ports import (
        CommandCallback,
        ConnectionCallback,
        EventCallback,
        Hello,
    )

HELLO_LIMIT_S = 10.0


class Callbacks:
    """Where a fleet delivers what agents say; set once by the service before `start`."""

    def __init__(self) -> None:
        self.event: EventCallback | None = None
        self.command: CommandCallback | None = None
        self.connection: ConnectionCallback | None = None
        self.leader: dict[str, Any] = {}
        """What `hello` says of this service; empty before it leads."""

    def lead(self, ledger: str, epoch: int) -> None:
        """See `service.ports.Fleet`."""
        self.leader = {"leader": {"ledger": ledger, "epoch": epoch}}


class AgentLink:
    """The connection to one agent. Made by a fleet for every agent it knows."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._peer: rpc.Peer | None = None
        self.node = ""
        """Name of the node, known after the first `connect`."""
        self.instance = ""
        """Of the agent that was connected last."""

    @property
    def connected(self) -> bool:
        return self._peer is not None and not self._peer.closed.is_set()

    async def connect(self, socket: str) -> Hello:
        """Connect to the agent at `socket` and become its service. Raises `Unavailable`."""
        peer = await rpc.connect(socket, self.handlers(), self.closed)
        try:
            return await self.lead(peer)
        except BaseException:
            await peer.close()
            raise

    def handlers(self) -> dict[str, rpc.Handler]:
        """What an agent may ask of the service."""
        return {"event": self._event, "session.command": self._command}

    async def lead(self, peer: rpc.Peer, node: str = "") -> Hello:
        """Become the service of the agent at the other end of `peer`, in place of an older
        connection. Raises `Unavailable`, and `Conflict` when it is not the agent of `node`, where
        that is given."""
        hello = cast("Hello", await peer.call("hello", HELLO_LIMIT_S, **self._callbacks.leader))
        if node and hello["node"] != node:
            raise Conflict(
                f"the agent calls itself '{hello['node']}', but its certificate says '{node}': "
                f"nothing was asked of it; start it with the name '{node}'",
                node=node,
            )
        if self._peer is not None and self._peer is not peer:
            self._peer.abort()
        if peer.closed.is_set():
            raise Unavailable("the node agent closed the connection")
        self._peer, self.node, self.instance = peer, hello["node"], hello["instance"]
        if self._callbacks.connection:
            self._callbacks.connection(self.node, True)
        return hello

    async def wait_closed(self) -> None:
        """Wait until the connection breaks."""
        if self._peer is not None:
            await self._peer.closed.wait()

    async def call(self, method: str, timeout: float | None, params: dict[str, Any]) -> Any:
        """One call; the agent's typed error, or `Unavailable`."""
        if self._peer is None or not self.connected:
            raise Unavailable(
                f"node '{self.node or 'local'}' is not connected now; its sessions go on, "
                "try again in a moment"
            )
        return await self._peer.call(method, timeout, **params)

    def refuse(self, error: SingularityError) -> None:
        """Tell the agent why, and close the connection."""
        if self._peer is not None:
            self._peer.refuse(error)

    @property
    def who(self) -> rpc.Who | None:
        """Who is connected; None: nobody."""
        return self._peer.who if self._peer is not None and self.connected else None

    async def close(self) -> None:
        """Close the connection; the agent goes on."""
        if self._peer is not None:
            await self._peer.close()

    def closed(self, peer: rpc.Peer) -> None:
        """A connection ended; every one that `lead` is given tells so."""
        if peer is self._peer and self._callbacks.connection:
            self._callbacks.connection(self.node, False)

    async def _event(self, peer: rpc.Peer, params: dict[str, Any]) -> None:
        if self._callbacks.event and peer is self._peer:
            self._callbacks.event(self.node, params["session"], params["type"], params["data"])

    async def _command(self, peer: rpc.Peer, params: dict[str, Any]) -> Any:
        if self._callbacks.command is None or peer is not self._peer:
            raise Unavailable("the scheduler service is starting; try again in a moment")
        return await self._callbacks.command(
            self.node, params["session"], params["verb"], params["args"], params["by"]
        )
