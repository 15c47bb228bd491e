"""What the service needs from the outside world, as protocols: the fleet of node agents.

`MachineFleet` (the default) and `LocalFleet` implement `Fleet`; the controller is the only caller.
The service finds the class by the trait `SchedulerApp.fleet_class` and creates it as
`fleet_class(parent=app)`, so its own settings are traits on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NotRequired, Protocol, TypedDict


class AgentDevice(TypedDict):
    """One physical device of a node, as its agent reports it in `hello`."""

    id: str
    """Unique on its node: "cpu:0", "cuda:1"."""
    type: str
    """"cpu" or "cuda"."""
    capacity_bytes: int
    name: str
    uuid: NotRequired[str]
    """Of the GPU, also after a renumbering; made up, and always the same, for a cpu device."""


class AgentDeviceHealth(TypedDict, total=False):
    """What a device says of itself (`core.model.DeviceHealth` has the meanings); what it does not
    tell is None or missing."""

    id: str
    uuid: str
    present: bool
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilisation_percent: float | None
    temperature_c: float | None
    temperature_limit_c: float | None
    power_w: float | None
    power_limit_w: float | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    row_remap_pending: bool | None
    row_remap_failed: bool | None
    clock_limits: list[str]
    xids: list[list[float]]
    """[code, UNIX time], oldest first."""
    silent_s: float
    trouble: str


class _AgentSessionBase(TypedDict):
    session: str
    user: str
    kind: str
    tier: str
    virtual_devices: int
    alive: bool
    """False: the process tree has ended; `exit_code` says how (None: nobody could tell)."""
    pid: int | None
    exit_code: int | None
    epoch: int
    """The newest lease epoch the agent has obeyed for this session; 0 before the first attach."""
    devices: list[str]
    """Physical devices its proxies hold now, one per virtual device; empty when parked."""
    saved: bool
    """True: device state of this session exists (in a proxy, a snapshot or a journal)."""
    waiting: bool
    """True: a worker of the session waits for a device now."""
    busy: bool | None
    """Last `activity` report of the kernel extension; None when it never reported."""


class AgentSession(_AgentSessionBase, total=False):
    """One session a node agent knows; part of `hello`, the truth after a reconnect."""

    name: str
    """Name for people, when the start command carried one."""
    reason: str
    """Why it ended or was parked by the agent itself."""
    quiet_s: float | None
    """Seconds for which no call has reached its devices, 0.0 while calls come; None: it cannot
    tell, or has not looked for long enough."""
    suspended: bool
    """True: the node has nothing of it but its kernel connection (relay)."""
    incarnation: int
    recorded: dict[str, Any]
    """What it recorded, name -> last value."""
    bridge: str
    """Of a part of a gang: HOST:PORT at which the other parts reach it; `session.peers` tells them.
    """


class Hello(TypedDict):
    """Answer of the agent's `hello`."""

    node: str
    instance: str
    """Changes whenever the agent process was started anew."""
    sent_at: NotRequired[float]
    """When, on the node's own clock (CLOCK_BOOTTIME); a renewal's answer has it too."""
    devices: list[AgentDevice]
    capabilities: dict[str, Any]
    """Among others ``process_image {available, reason}`` and ``store {url, reason}``; an agent that
    says nothing of them keeps device state only."""
    sessions: list[AgentSession]
    version: NotRequired[str]
    """Of the agent's software."""
    spot: NotRequired[bool]
    """Whether its machine may be taken back with a notice."""
    cluster: NotRequired[str]
    """Name of the cluster that it belongs to; "": the embedded one."""
    far: NotRequired[bool]
    """Whether it is on another machine than the service; the fleet says so, not the agent."""
    health: NotRequired[list[AgentDeviceHealth]]
    """Its devices' last report, as in the event node.devices."""


EventCallback = Callable[[str, str, str, dict[str, Any]], None]
"""`callback(node, session, type, data)`: a notification of an agent, in the order it was sent.

Types: device.need, device.withdrawn, device.working, activity, process.live, process.exited,
proxy.recovered, proxy.failed, proxy.gave_up, proxy.silent, proxy.answers, lease.lapsed,
squashing.off {why} (ranks that share a device were not equal where they should have been),
session.wanted (a request reached the relay of a session that is away), session.orphaned (its
Jupyter server is gone), session.suspended and session.restored (the command's answer says it too),
checkpoint.progress {bytes_done, bytes_total, bytes_sent, rate, eta_s}, steps {count} (optimizer
steps or barriers since the session was started), recorded {values} (name -> value, those that are
new), session.bridge {bridge} (of a part of a gang; also after its bridge was replaced, maybe at
the same address, and after the part came back from the store); of the node itself (session "")
node.devices, data {"devices": list of AgentDeviceHealth}, and node.abilities (its capabilities are
not what it said: ask for `hello`). Called on the event loop; must not
block."""

CommandCallback = Callable[[str, str, str, dict[str, Any], str], Awaitable[Any]]
"""`await callback(node, session, verb, args, by)`: an agent's `session.command`; the answer or the
typed error goes back through the agent to the magics. `node` is the node the connection belongs to,
so a node can only speak for its own sessions."""

ConnectionCallback = Callable[[str, bool], None]
"""`callback(node, connected)`: called on the loop after a connection to an agent was made (then
`call(node, ...)` works) and when it broke. The fleet reconnects by itself."""


class Fleet(Protocol):
    """How node agents are reached. The callbacks are set once, before `start`."""

    def on_event(self, callback: EventCallback) -> None: ...

    def on_command(self, callback: CommandCallback) -> None: ...

    def on_connection(self, callback: ConnectionCallback) -> None: ...

    def lead(self, ledger: str, epoch: int) -> None:
        """Called before `start`: what every `hello` to an agent says under "leader", as
        ``{"ledger", "epoch"}``. Agents refuse the service of an older epoch of the same ledger."""
        ...

    async def start(self) -> None:
        """Connect to every node's agent; an embedded fleet starts its agent when none answers
        (an agent that already runs is adopted, its sessions go on). Raises `Unavailable`."""
        ...

    async def stop(self) -> None:
        """Close the connections. Agents and their sessions go on: the service can be restarted at
        any time. Idempotent; ends within 2 s. (`call(node, "shutdown")` is what ends sessions.)"""
        ...

    async def hello(self) -> list[Hello]:
        """Ask every connected agent `hello {}`; a node that does not answer is left out."""
        ...

    async def call(
        self, node: str, method: str, timeout: float | None = 60.0, **params: Any
    ) -> Any:
        """One call to the agent of `node`; raises its typed error, or `Unavailable` when the node
        is not connected or does not answer within `timeout` seconds (None: no limit)."""
        ...
