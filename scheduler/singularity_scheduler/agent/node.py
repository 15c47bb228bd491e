"""What the parts of the agent share: settings, folders, and the sessions that live on this node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singularity_proxy.capsule.files.writers import WriterWatch
from singularity_proxy.capsule.launcher import CapsuleLauncher
from singularity_proxy.checkpoint.device import park_policy
from singularity_proxy.checkpoint.steps import OnStep, nothing
from singularity_proxy.errors import NotFound, SingularityError
from singularity_proxy.wire.limits import USER, Held
from singularity_proxy.wire.rpc import Peer

from singularity_scheduler.installed import own_version

from .devices.probe import TorchVersion
from .devices.proxies import ProxyPool
from .ledger import Ledger
from .rights.identity import Identities
from .rights.leases import LeaseTable
from .rights.node_lease import LeaseKeeper
from .sessions.capsules import ProcessImages
from .store.stores import Stores

if TYPE_CHECKING:
    from .sessions.live import LiveSession

log = logging.getLogger("singularity.agent")


@dataclass(frozen=True)
class Settings:
    """The agent's configuration after all defaults are settled (`app.NodeAgent` has the help)."""

    node: str
    runtime_dir: str
    shm_dir: str
    state_dir: str
    proxy_threads: int
    journal_bytes: int
    journal_records: int
    hung_proxy_s: float
    long_operation_s: float
    orphan_grace_s: float
    lease_ttl_s: float
    barrier_s: float
    joint_barrier_s: float
    check_squashing_every: int
    log_bytes: int
    keep_logs: int
    park_by: str = park_policy.AUTO
    held_output_bytes: int = 32 << 20
    tunnel_ip: str = "127.0.0.1"
    """Where relays listen for the kernels' side, and bridges for those of other nodes."""
    client_ip: str = ""
    """Where they listen for Jupyter's clients on other machines; "": where those ask for."""
    python: str = sys.executable
    spot: bool = False
    """Its machine may be taken back with a notice."""
    cluster: str = ""
    """That it belongs to; "": the service's embedded one."""

    def session_dir(self, session: str) -> str:
        return os.path.join(self.runtime_dir, "s", session)

    def session_shm(self, session: str) -> str:
        return os.path.join(self.shm_dir, session)

    def relay_dir(self, session: str) -> str:
        """State of the session's relay, which stays when the session leaves this node."""
        return os.path.join(self.runtime_dir, "r", session)

    def clients_dir(self, uid: int) -> str:
        """Where clients reach the relays of a user: theirs alone (0700)."""
        return os.path.join(self.runtime_dir, "c", str(uid))

    def bridge_dir(self, session: str) -> str:
        """Of the bridge of a session that is a part of a gang: the session's user's, as a relay's,
        and not in the session's own folder."""
        return os.path.join(self.runtime_dir, "b", session)

    def checkpoint_dir(self, session: str) -> str:
        return os.path.join(self.state_dir, "checkpoints", session)

    def lease_word(self, session: str) -> str:
        """The file that says until when the session's capsule may run: the agent's own."""
        return os.path.join(self.runtime_dir, "l", f"{session}.lease")

    def session_tmp(self, session: str) -> str:
        """What is /tmp inside a capsule with namespaces."""
        return os.path.join(self.session_dir(session), "tmp")

    @property
    def images_dir(self) -> str:
        """0700: process images and copies on their way to or from the store."""
        return os.path.join(self.state_dir, "images")

    @property
    def proofs_dir(self) -> str:
        """Folders that stand in for those of a session while a checkpoint of it is proved."""
        return os.path.join(self.runtime_dir, "v")

    @property
    def private_dir(self) -> str:
        """0700: sockets of proxies, sockets before they are handed to a user, probe output."""
        return os.path.join(self.runtime_dir, "p")


@dataclass
class Node:
    """Made once by the application; every other part gets it."""

    settings: Settings
    instance: str
    devices: list[dict[str, Any]]
    torch: TorchVersion | None
    ledger: Ledger
    leases: LeaseTable
    identities: Identities
    pool: ProxyPool
    launcher: CapsuleLauncher
    images: ProcessImages
    stores: Stores
    sessions: dict[str, LiveSession] = field(default_factory=dict)
    service: Peer | None = None
    """The connection of the scheduler service; None while it is away."""
    version: str = field(default_factory=own_version)
    """Of this software."""
    health: list[dict[str, Any]] = field(default_factory=list)
    """The last report of its devices; see `health`."""
    stopping: bool = False
    lease: LeaseKeeper = field(init=False)
    """Of the node as a whole."""
    on_step: OnStep = nothing
    """Called at every place where an agent that is killed leaves something half done."""
    _held: dict[int, Held] = field(default_factory=dict)
    """What the sessions of each uid hold of our memory, by their sockets."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writers = WriterWatch()
        """Who else writes to files that sessions have open."""
        self.lease = LeaseKeeper(self)

    @property
    def device_type(self) -> str:
        return str(self.devices[0]["type"])

    def device(self, device_id: str) -> dict[str, Any]:
        """The device `device_id` of `hello`; raises `NotFound`."""
        for device in self.devices:
            if device["id"] == device_id:
                return device
        names = ", ".join(str(d["id"]) for d in self.devices)
        raise NotFound(f"this node has no device '{device_id}' (it has {names})", device=device_id)

    def session(self, session: str) -> LiveSession:
        """The session, ended ones included until the service has asked; raises `NotFound`."""
        live = self.sessions.get(session)
        if live is None:
            raise NotFound(
                f"this node has no session '{session}'", session=session, missing="session"
            )
        return live

    def held_by(self, uid: int) -> Held:
        """What all sessions of this uid together hold by their sockets."""
        return self._held.setdefault(uid, Held(USER))

    def forget_absent(self, session: str) -> None:
        """A session that has left this node is over: keep nothing that waited for its return."""
        self.writers.forget(session)
        with contextlib.suppress(SingularityError):
            self.ledger.forget_session(session)

    def emit(self, session: str, type: str, **data: Any) -> None:
        """Tell the service; dropped while it is away, it then reads the truth from `hello`."""
        if self.service is not None:
            self.service.notify("event", session=session, type=type, data=data)

    def save(self, live: LiveSession) -> None:
        """Write the session to the ledger."""
        self.ledger.put("session", live.record.session, live.record.to_json())

    def try_save(self, live: LiveSession) -> None:
        """Write the session after something that happened anyway. If the disk is full the ledger
        stays behind, which a restarted agent finds out: state files and processes are the truth."""
        try:
            self.save(live)
        except SingularityError as error:
            log.error("%s", error.message)

    def save_leases(self) -> None:
        """Write all leases to the ledger."""
        self.ledger.put("node", "leases", self.leases.to_json())

    def try_save_leases(self) -> None:
        """The same after the fact; leases that could not be written run out."""
        try:
            self.save_leases()
        except SingularityError as error:
            log.error("%s", error.message)

    def spawn(self, job: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run `job` in the background; an error it raises is logged under `what`."""
        task = asyncio.ensure_future(job)
        self._tasks.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s: %s", what, error, exc_info=error)

        task.add_done_callback(done)
        return task

    async def cancel_jobs(self) -> None:
        """Stop all background jobs; called last."""
        tasks = [t for t in self._tasks if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
