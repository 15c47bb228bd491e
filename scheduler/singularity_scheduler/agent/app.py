"""`python -m singularity_scheduler.agent`: the node agent, one per node.

It starts sessions and device proxies and obeys the scheduler service. It can be killed at any
moment: processes go on, and the next agent with the same state folder takes them over. SIGTERM and
SIGINT, in contrast, end every session and leave nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Coroutine
from typing import Any

from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.checkpoint.device import park_policy
from singularity_proxy.errors import SingularityError
from singularity_proxy.membership.identity import Identity
from singularity_proxy.wire import rpc
from singularity_proxy.wire.systemd import Systemd
from traitlets import Bool, Enum, Float, Integer, Unicode, default
from traitlets.config import Application

from singularity_scheduler import logs
from singularity_scheduler.core.placement.geography import require_name
from singularity_scheduler.text.errors import in_words

from .abilities import AbilityWatch
from .devices.control import DeviceKeeper
from .devices.device_restores import undo_unfinished
from .devices.health import DeviceHealth
from .devices.probe import CPU_DEVICES, probe_devices, torch_version
from .devices.proxies import ProxyPool
from .devices.pulse import Pulse
from .folders import end_strays, lock
from .ledger import Ledger
from .memory import load_early, set_up_allocator
from .move_settings import MoveSettings, is_loopback, open_stores
from .node import Node, Settings
from .place import take_place
from .processes import adopt_orphans
from .rights.identity import Identities, parse_uid_range
from .rights.leases import LeaseTable
from .rounds import Rounds
from .server import CommandServer
from .sessions.capsules import choose_launcher
from .sessions.lifecycle import Lifecycle
from .sessions.record import Life, SessionRecord
from .store.proofs import Prover
from .store.suspends import clear_stages

log = logging.getLogger("singularity.agent")

STOP_LIMIT_S = 3.5
"""An orderly stop gives up waiting after this long (and has killed everything by then)."""

ANNOUNCEMENT = "agent.json"
"""In the state folder: where the running agent listens."""


class NodeAgent(MoveSettings, Application):  # type: ignore[misc]
    """Command line and configuration of the node agent."""

    name = "singularity-agent"
    description = "Starts sessions and device proxies on this node for the scheduler service."

    state_dir = Unicode(
        config=True,
        help="""Folder on disk for the ledger and for checkpoints; made 0700 if missing. One agent
        per folder. Required.""",
    )
    runtime_dir = Unicode(
        config=True,
        help="""Folder for sockets; its path must be shorter than 60 characters. Empty: a new one
        in /tmp, found again after a restart.""",
    )
    shm_dir = Unicode(
        config=True,
        help="""Folder in shared memory for rings and parked device state. Empty: a new one in
        /dev/shm, found again after a restart.""",
    )
    node = Unicode("local", config=True, help="Name of this node, unique in its fleet.")
    device_type = Enum(
        ("auto", "cpu", "cuda"),
        default_value="auto",
        config=True,
        help="""Physical devices of this node: "cpu" (device proxies compute on the CPU), "cuda",
        or "auto": cuda where torch finds a GPU, else cpu.""",
    )
    device_count = Integer(
        0,
        config=True,
        help="""Number of physical devices. 0: two for cpu, all that torch finds for cuda.""",
    )
    device_capacity_bytes = Integer(
        4 << 30,
        config=True,
        help="Memory of one cpu device in bytes, enforced by its allocator; unused for cuda.",
    )
    proxy_threads = Integer(
        0,
        config=True,
        help="""Threads a device proxy computes with. 0: this machine's cores divided by the number
        of cpu devices, at least 1.""",
    )
    warm_proxies = Integer(
        1,
        config=True,
        help="""Device proxies kept started and unused, so that a session gets its device at once.
        The others are copied from a process that has loaded torch, within a tenth of a second;
        0: none are kept, and the first one waits for that.""",
    )
    journal_bytes = Integer(
        64 << 20,
        config=True,
        help="""Size in bytes of the journal of one ring, beyond which a new snapshot is made. It
        lets a killed device proxy be rebuilt. For a larger state the journal grows to its size, or
        to three times it where that is at most four times `journal_bytes`; so much memory may a
        spare snapshot take too. 0: no journal, a killed proxy loses its state.""",
    )
    journal_records = Integer(
        1_000_000,
        min=0,
        config=True,
        help="""Number of records in that journal beyond which a new snapshot is made; it bounds
        the time that a rebuild takes. 0: only the bytes and the time count.""",
    )
    hung_proxy_s = Float(
        10.0,
        min=0.0,
        config=True,
        help="""Seconds after which a device proxy whose heart does not beat is ended and replaced;
        nothing is lost. Its silence is told after less than a second, and one that was stopped by
        a signal is replaced then. 0: never.""",
    )
    barrier_s = Float(
        20.0,
        min=0.1,
        config=True,
        help="""Seconds that the ranks of a session (torch.distributed) may take to stop where all
        of them have taken part in the same collectives, before it is parked, resized, moved or
        stored. If they do not come together, all of them go on and nothing is changed.""",
    )
    joint_barrier_s = Float(
        30.0,
        min=0.1,
        config=True,
        help="""Seconds after which the ranks of a part of a gang go on by themselves, when they
        stand for a barrier over all parts and the scheduler does not say anything of it any
        more.""",
    )
    check_squashing_every = Integer(
        100,
        min=0,
        config=True,
        help="""Ranks that share a device compute equal steps once. Every so many of these steps all
        ranks compute everything and the bytes are compared, so that a wrong rule is found: 1 checks
        always (and nothing is saved), 0 compares once, before anything is shared. It counts for
        device proxies that are started afterwards.""",
    )
    spot = Bool(
        False,
        config=True,
        help="""Whether this machine may be taken back with a notice (a spot machine); shown to
        administrators.""",
    )
    cluster = Unicode(
        config=True,
        help="""Name of the cluster that this node belongs to; see Controller.regions. Empty: the
        embedded one of the service.""",
    )
    long_operation_s = Float(
        60.0,
        min=0.0,
        config=True,
        help="""Seconds after which the session's reason says that its device works on one
        operation, and on which; again after 10, 60 and 360 times as long. 0: never.""",
    )
    health_every_s = Float(
        5.0,
        min=0.2,
        config=True,
        help="""Seconds between two readings of the devices: memory, utilisation, temperature,
        power and errors (of GPUs through NVML, when nvidia-ml-py is installed).""",
    )
    park_by = Enum(
        park_policy.WAYS,
        default_value=park_policy.AUTO,
        config=True,
        help="""How a session leaves a GPU: "copy" writes its device memory to a file in shared
        memory and ends the device proxy; "driver" lets the CUDA driver (570 and newer) move the
        memory into the proxy's own process, which stays, wherever that can lose nothing; "auto"
        measures both and takes the faster one. cpu devices are parked by a copy.""",
    )
    tunnel_ip = Unicode(
        "127.0.0.1",
        config=True,
        help="""Address of this node at which its relays listen for kernels that run on other nodes,
        and the bridges of gangs for each other. The connections are encrypted; only the session's
        own capsule, or another part of the same gang, is let in.""",
    )
    uid_range = Unicode(
        "1900000000-1900009999",
        config=True,
        help="""Uids that an agent running as root gives to Hub users, "FIRST-LAST", one each.""",
    )
    orphan_grace_s = Float(
        15.0,
        config=True,
        help="""Seconds after which a session is taken for abandoned whose Jupyter server (or `run`
        command) is gone: a notebook is suspended where that is possible, anything else ends.""",
    )
    lease_ttl_s = Float(
        60.0,
        config=True,
        help="""Seconds a fresh grant of devices lasts until the scheduler renews it. An agent whose
        lease ran out parks the session; nothing is lost.""",
    )
    log_bytes = Integer(
        4 << 20,
        min=4096,
        config=True,
        help="""Size in bytes above which the older half of a session's log file is cut off.""",
    )
    keep_logs = Integer(
        1000,
        min=0,
        config=True,
        help="""How many logs of ended sessions are kept for `jupyter singularity logs`, of each
        user the newest ones, each with at most `log_bytes` bytes. 0: none.""",
    )
    log_style = Enum(
        ("json", "text"),
        "json",
        config=True,
        help="""How the agent's own log looks: "json" is one object per line with the ids of node
        and session; "text" is for people.""",
    )
    idle_exit_s = Float(
        600.0,
        config=True,
        help="""Seconds after which an agent without a scheduler and without sessions ends. 0:
        never.""",
    )

    aliases = {
        "state-dir": "NodeAgent.state_dir",
        "runtime-dir": "NodeAgent.runtime_dir",
        "shm-dir": "NodeAgent.shm_dir",
        "node": "NodeAgent.node",
        "device-type": "NodeAgent.device_type",
        "devices": "NodeAgent.device_count",
        "log-level": "Application.log_level",
        "config": "NodeAgent.config_file",
    }
    config_file = Unicode("", config=True, help="A Python or JSON file with more settings.")

    @default("log_level")  # type: ignore[untyped-decorator]
    def _default_log_level(self) -> int:
        return logging.INFO

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read the command line and the configuration file it names."""
        super().initialize(argv)
        if self.config_file:
            folder, name = os.path.split(os.path.abspath(self.config_file))
            self.load_config_file(name, folder)
            self.parse_command_line(argv)

    def join(self, identity: Identity) -> None:
        """Be the node that has joined a fleet, which only its certificate says; use the fleet's
        store unless another one is set, and wait for ever for a service that is away. Raises
        `SingularityError` where users could be mistaken for each other."""
        self.node = identity.membership.node
        self.checkpoint_store = self.checkpoint_store or identity.membership.store
        self.idle_exit_s = 0.0
        if os.geteuid() == 0 and not self.uids_file:
            raise SingularityError(
                "this agent runs as root and would give users uids that mean other users on other "
                "machines, so nothing was started: name a file that the agents of all machines "
                "share (NodeAgent.uids_file), or run it as the one user that it is to serve"
            )
        if is_loopback(self.tunnel_ip) and not is_loopback(identity.membership.address):
            log.warning(
                "notebooks cannot move to this node: other machines do not reach its relays at %s; "
                "batch runs can be here. Set NodeAgent.tunnel_ip to an address of this machine",
                self.tunnel_ip,
            )

    def start(self) -> None:
        """Run until stopped; exit code 0 after an orderly stop, 1 with one sentence otherwise."""
        handler = logging.StreamHandler()
        handler.setFormatter(logs.formatter(self.log_style))
        logging.basicConfig(level=self.log_level, handlers=[handler], force=True)
        set_up_allocator()
        load_early()
        try:
            with in_words():
                asyncio.run(AgentProcess(self).run())
        except SingularityError as error:
            print(f"{self.name}: {error.message}", file=sys.stderr)
            sys.exit(1)


class AgentProcess:
    """One life of the agent: takes its folders over, serves, stops."""

    def __init__(self, app: NodeAgent) -> None:
        self._app = app
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._systemd = Systemd()
        self._asked_early = False
        """Told to stop before there was anything that could be stopped."""
        self.node: Node

    async def run(self) -> None:
        """Serve until `stop`."""
        loop = asyncio.get_running_loop()
        app = self._app
        if not app.state_dir:
            raise SingularityError("the agent needs --state-dir, a folder for its ledger")
        if app.device_count < 0 or app.device_capacity_bytes < 1 or app.journal_bytes < 0:
            raise SingularityError(
                "device_count and journal_bytes must not be negative, and a device needs a capacity"
            )
        state_dir, held = lock(app.state_dir)
        if Identity.kept(state_dir):
            app.join(Identity.load(state_dir))
        try:
            adopt_orphans()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_soon)
            await self._serve(state_dir)
        finally:
            os.close(held)

    async def _serve(self, state_dir: str) -> None:
        uids = parse_uid_range(self._app.uid_range)
        ledger = Ledger(os.path.join(state_dir, "agent.sqlite"))
        try:
            settings = self._settings(state_dir, ledger)
            try:
                server = await self._take_over(settings, ledger, uids)
            except BaseException:
                if not list(ledger.all("session")):  # what was just made is nobody's
                    self._remove_place(settings, ledger)
                raise
            await self._run(server)
            self._remove_place(settings, ledger)
        finally:
            ledger.close()

    async def _take_over(
        self, settings: Settings, ledger: Ledger, uids: range
    ) -> asyncio.AbstractServer:
        """Bring everything of the agent before this one into order, then listen."""
        app, private, node_name = self._app, settings.private_dir, settings.node
        logs.bind_now(node=node_name)
        # Proxies that belong to nobody, or were started and not yet written down.
        owned = {
            proxy["socket"]
            for _, body in ledger.all("session")
            for proxy in body["proxies"].values()
        }
        await end_strays(private, owned)
        launcher, images = await choose_launcher(app.capsule, app.capsule_shared)
        self.node = node = Node(
            settings=settings,
            instance=uuid.uuid4().hex[:12],
            devices=await probe_devices(
                app.device_type, app.device_count, app.device_capacity_bytes, private, node_name
            ),
            torch=torch_version(),
            ledger=ledger,
            leases=LeaseTable.from_json(ledger.get("node", "leases") or {}),
            identities=Identities(ledger, uids, private, table=app.uids(ledger)),
            pool=ProxyPool(private, app.warm_proxies),
            launcher=launcher,
            images=images,
            stores=open_stores(app, settings.state_dir, ledger),
        )
        self._devices = devices = DeviceKeeper(node)
        self._lifecycle = lifecycle = Lifecycle(node, devices)
        node.pool.start()
        devices.start()
        clear_stages(settings)
        undo_unfinished(settings)
        await node.stores.probe()
        records = [SessionRecord.from_json(body) for _, body in ledger.all("session")]
        await asyncio.gather(*(lifecycle.adopt(record) for record in records))
        await lifecycle.relays.take_over()
        self._prover = Prover(node)
        self._commands = commands = CommandServer(node, lifecycle, devices, self._prover, self.stop)
        path = os.path.join(settings.runtime_dir, "agent.sock")
        self._announce(settings.state_dir, path)  # first: who is connected may rely on it
        server = await rpc.serve(
            path, commands.handlers(), allowed_uids={os.geteuid()}, on_close=commands.closed
        )
        log.info("node agent %s serves at %s", settings.node, path)
        return server

    async def _run(self, server: asyncio.AbstractServer) -> None:
        node = self.node
        if self._asked_early:
            await self.stop()
        health = DeviceHealth(node, self._app.health_every_s)
        idle_s = self._app.idle_exit_s
        rounds = Rounds(node, self._devices, self._lifecycle, idle_s, self._stop_soon)
        jobs = (
            *(rounds.run(), Pulse(node).run(), health.run()),
            *(self._systemd.report(), AbilityWatch(node).run()),
            *self._dialling(),
        )
        watchers = [asyncio.ensure_future(job) for job in jobs]
        await self._stopped.wait()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.sleep(0.05)  # the answer to `shutdown` leaves before the socket closes
        server.close()
        if node.service:
            await node.service.close()
        await self._devices.close()
        await node.cancel_jobs()
        node.stores.close()
        await end_strays(node.settings.private_dir, set())

    def _dialling(self) -> list[Coroutine[Any, Any, None]]:
        """What keeps the connection to the service of a fleet that this machine has joined."""
        node, commands = self.node, self._commands
        if not Identity.kept(node.settings.state_dir):
            return []
        from singularity_proxy.membership.dialling import Dialler  # needs a library

        dialler = Dialler(
            node.settings.state_dir,
            commands.handlers(),
            commands.closed,
            instance=node.instance,
            version=node.version,
        )
        return [dialler.run()]

    def _remove_place(self, settings: Settings, ledger: Ledger) -> None:
        with contextlib.suppress(SingularityError):
            ledger.drop("node", "place")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(settings.state_dir, ANNOUNCEMENT))
        for folder in (settings.runtime_dir, settings.shm_dir):
            shutil.rmtree(folder, ignore_errors=True)

    # -- set-up -----------------------------------------------------------------------------------

    def _settings(self, state_dir: str, ledger: Ledger) -> Settings:
        app = self._app
        runtime_dir, shm_dir = take_place(state_dir, ledger, app.runtime_dir, app.shm_dir)
        share = (os.cpu_count() or 1) // (app.device_count or CPU_DEVICES)
        threads = app.proxy_threads or max(1, share)
        return Settings(
            node=app.node or socket.gethostname(),
            runtime_dir=runtime_dir,
            shm_dir=shm_dir,
            state_dir=state_dir,
            proxy_threads=threads,
            journal_bytes=app.journal_bytes,
            journal_records=app.journal_records,
            hung_proxy_s=app.hung_proxy_s,
            long_operation_s=app.long_operation_s,
            orphan_grace_s=app.orphan_grace_s,
            lease_ttl_s=app.lease_ttl_s,
            barrier_s=app.barrier_s,
            joint_barrier_s=app.joint_barrier_s,
            check_squashing_every=app.check_squashing_every,
            log_bytes=app.log_bytes,
            keep_logs=app.keep_logs,
            park_by=app.park_by,
            tunnel_ip=app.tunnel_ip,
            client_ip=app.client_ip,
            held_output_bytes=app.held_output_bytes,
            spot=app.spot,
            cluster=require_name(app.cluster) if app.cluster else "",
        )

    def _announce(self, state_dir: str, path: str) -> None:
        settings = self.node.settings
        body = {
            "socket": path,
            "process": ProcessIdentity.of(os.getpid()).to_json(),
            "instance": self.node.instance,
            "runtime_dir": settings.runtime_dir,
            "shm_dir": settings.shm_dir,
        }
        target = os.path.join(state_dir, ANNOUNCEMENT)
        with open(target + ".tmp", "w", encoding="utf-8") as file:
            json.dump(body, file)
        os.replace(target + ".tmp", target)

    # -- running ----------------------------------------------------------------------------------

    def _stop_soon(self) -> None:
        if hasattr(self, "_lifecycle"):
            self.node.spawn(self.stop(), "stop of the agent")
        else:
            self._asked_early = True

    async def stop(self) -> None:
        """End all sessions, proxies and relays and make the agent end; returns when they are
        gone, within 4 s. Idempotent."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        node = self.node
        node.stopping = True
        proved = asyncio.ensure_future(self._prover.close())
        ends = [
            asyncio.ensure_future(self._lifecycle.end(live, "the node agent was stopped", 0.5))
            for live in list(node.sessions.values())
            if live.record.life is not Life.ENDED
        ]
        _, late = await asyncio.wait(
            [
                *(*ends, proved),
                asyncio.ensure_future(node.pool.close()),
                asyncio.ensure_future(self._lifecycle.relays.end_all()),
            ],
            timeout=STOP_LIMIT_S,
        )
        if late:
            log.error("%d parts of this node did not stop in time", len(late))
        for name, _ in list(node.ledger.all("session")):
            node.ledger.forget_session(name)
        node.ledger.drop("node", "leases")
        node.ledger.drop("node", "lease")
        node.ledger.drop("node", "only_user")
        self._stopped.set()


def main() -> Any:
    """Entry point of `python -m singularity_scheduler.agent`."""
    return NodeAgent.launch_instance()
