"""What every fleet has: the callbacks of the service, and one link per node agent.

`AgentLink` keeps a connection to one agent: it says `hello` on it (which makes this process the
agent's service), passes events and commands on, and tells when the connection comes and goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from singularity_proxy.errors import Unavailable
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

    @property
    def connected(self) -> bool:
        return self._peer is not None and not self._peer.closed.is_set()

    async def connect(self, socket: str) -> Hello:
        """Connect to the agent at `socket` and become its service. Raises `Unavailable`."""
        peer = await rpc.connect(
            socket, {"event": self._event, "session.command": self._command}, self._closed
        )
        try:
            hello = cast("Hello", await peer.call("hello", HELLO_LIMIT_S, **self._callbacks.leader))
        except BaseException:
            await peer.close()
            raise
        if peer.closed.is_set():
            raise Unavailable(f"the node agent at {socket} closed the connection")
        self._peer, self.node = peer, hello["node"]
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

    async def close(self) -> None:
        """Close the connection; the agent goes on."""
        if self._peer is not None:
            await self._peer.close()

    def _closed(self, peer: rpc.Peer) -> None:
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
