"""`MachineFleet`: the nodes of this machine, and those of other machines that have joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from singularity_proxy.wire.tls import Care
from traitlets import Float
from traitlets.config import LoggingConfigurable

from singularity_scheduler.installed import own_version

from .base import Callbacks
from .local import LocalFleet
from .settings import has_fleet

if TYPE_CHECKING:
    from singularity_scheduler.service.ports import (
        CommandCallback,
        ConnectionCallback,
        EventCallback,
        Hello,
    )

    from .joined import JoinedNodes


class MachineFleet(LoggingConfigurable):  # type: ignore[misc]
    """What the service uses unless it is told otherwise (`service.ports.Fleet`). Nodes of other
    machines are listened for once `jupyter singularity fleet init` was done in the state folder;
    `LocalFleet` has the settings of this machine's nodes."""

    silent_s = Float(
        5.0,
        min=0.5,
        config=True,
        help="""Seconds after which the connection to a node of another machine that does not answer
        is cut; the node dials again. Its sessions go on until their leases run out, so it should be
        well below those.""",
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._callbacks = Callbacks()
        self.local = LocalFleet(parent=self.parent)
        self.joined: JoinedNodes | None = None
        """None before `start`, and where nothing was made to be joined."""
        self._local_runs = False

    # -- Fleet ------------------------------------------------------------------------------------

    def on_event(self, callback: EventCallback) -> None:
        self._callbacks.event = callback
        self.local.on_event(callback)

    def on_command(self, callback: CommandCallback) -> None:
        self._callbacks.command = callback
        self.local.on_command(callback)

    def on_connection(self, callback: ConnectionCallback) -> None:
        self._callbacks.connection = callback
        self.local.on_connection(callback)

    def lead(self, ledger: str, epoch: int) -> None:
        self._callbacks.lead(ledger, epoch)
        self.local.lead(ledger, epoch)

    async def start(self) -> None:
        """Listen for nodes of other machines, and start those of this one. Each is done though the
        other fails; called again, what was done stays. Raises `Unavailable`, `Conflict`."""
        try:
            await self._listen()
        finally:
            if not self._local_runs:
                await self.local.start()
                self._local_runs = True

    async def _listen(self) -> None:
        state_dir = getattr(self.parent, "state_dir", "")
        if not has_fleet(state_dir):
            return
        if self.joined is None:
            from .joined import JoinedNodes  # needs a library, and is rarely needed
            from .registry import Registry

            self.joined = JoinedNodes(
                Registry(state_dir),
                self._callbacks,
                self.local.has,
                self.log,
                own_version(),
                Care(ping_limit_s=self.silent_s),
            )
        await self.joined.start()

    async def stop(self) -> None:
        """Close the connections; all agents and their sessions go on. Idempotent."""
        await self._hang_up()
        await self.local.stop()

    async def stop_agent(self) -> None:
        """End all sessions and agents of this machine; those of others are theirs to end."""
        await self._hang_up()
        await self.local.stop_agent()

    async def _hang_up(self) -> None:
        self._local_runs = False
        if self.joined is not None:
            await self.joined.stop()

    async def hello(self) -> list[Hello]:
        """`hello` of every agent that is connected."""
        far = await self.joined.hello() if self.joined is not None else []
        return [*await self.local.hello(), *far]

    async def call(
        self, node: str, method: str, timeout: float | None = 60.0, **params: Any
    ) -> Any:
        """Call the agent of `node`; see `service.ports.Fleet`."""
        if self.joined is not None and self.joined.has(node):
            return await self.joined.call(node, method, timeout, params)
        return await self.local.call(node, method, timeout, **params)
