"""`SchedulerApp`: the scheduler as a service that JupyterHub manages.

    c.JupyterHub.services = [{
        "name": "singularity", "url": "http://127.0.0.1:8765",
        "command": [sys.executable, "-m", "singularity_scheduler.service"],
    }]

`singularity_spawner.configure` writes this and the scopes that go with it. JupyterHub passes the
address, the prefix and the service's token in the environment (JUPYTERHUB_SERVICE_URL, ...).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyter_events import EventLogger
from singularity_proxy.errors import Conflict, SingularityError, Unavailable
from singularity_proxy.wire.systemd import Systemd
from sqlalchemy.engine import URL
from traitlets import Bool, Dict, Enum, Float, Int, TraitError, Type, Unicode, default
from traitlets.config import Application

from singularity_scheduler import logs
from singularity_scheduler.fleet.local import LocalFleet
from singularity_scheduler.fleet.machines import MachineFleet
from singularity_scheduler.installed import default_state_dir

from .api.auth import Gate, make_hub_auth, read_operator_token
from .api.callers import BoundedServer, Bounds, Callers
from .api.endpoint import MAX_DISCARD_BYTES
from .api.services import Services
from .api.standby import Door, later_pages, standby_application
from .controller import Controller
from .events.audit import Audit, event_logger
from .leadership.leader import Leader, identity
from .ledger.ledger import Ledger
from .operations.handlers import make_application

SERVICE_NAME = "singularity"
"""Name of the service in the Hub's configuration, unless it says another one."""

RESIGN_S = 2.0
"""How long a stopping service tries to say that it leads no more."""

REOPEN_S = 1.0
"""How often a service that has lost its ledger tries to open it."""

TRIM_S = 86_400.0
"""How often ended sessions that are too old are forgotten, besides at the start."""

LOCK_WAIT_S = 10.0
"""How long a starting service waits for the one before it to let go of the ledger."""


SWITCH_S = 0.0005
"""How long a thread of ours may keep Python from another one that wants to go on. A transaction
waits for its turn after each of its statements; with Python's own 5 ms a busy service commits at
half the rate."""


class SchedulerApp(Application):  # type: ignore[misc]
    """The process. Settings of its parts: `Controller` (leases), `Leader` (several services on one
    ledger), and those of the fleet class."""

    name = "jupyter-singularity-service"
    description = "The scheduler service of Singularity, run by JupyterHub."
    classes = [Controller, Leader, LocalFleet, MachineFleet]
    aliases = Dict({"config": "SchedulerApp.config_file", "log-level": "Application.log_level"})

    state_dir = Unicode(
        config=True,
        help="""Folder for the ledger and, below it, the node agent's files; made when missing,
        mode 0700. Default: jupyter-singularity in $XDG_STATE_HOME or ~/.local/state.""",
    )
    ledger_url = Unicode(
        config=True,
        help="""URL of the ledger. Empty: the SQLite file ledger.sqlite in `state_dir`. PostgreSQL
        (with the extra "postgres"): "postgresql://scheduler@db.example.org/singularity"; the
        password is better in PGPASSWORD, ~/.pgpass or a service file than here.""",
    )
    fleet_class = Type(
        "singularity_scheduler.fleet.machines.MachineFleet",
        klass=object,
        config=True,
        help="""How node agents are reached (see `singularity_scheduler.service.ports.Fleet`). The
        default runs one agent on this machine, and takes those of machines that have joined.""",
    )
    config_file = Unicode("", config=True, help="Python file with settings. Empty: none is read.")
    keep_history_days = Float(
        90.0,
        min=0.0,
        config=True,
        help="Days after which ended sessions and their history are forgotten. 0: never.",
    )

    hub_admins = Bool(
        True,
        config=True,
        help="""Whether admins of the Hub are administrators here too: in the dashboard, and in the
        API with a token that may do what they may (scope admin:users). False: only who has the
        scope custom:singularity:admin is.""",
    )
    operator_token_file = Unicode(
        "",
        config=True,
        help="""File with a token (mode 0600, at least 32 characters) that administrates here
        without JupyterHub, for who runs this service: it works while the Hub is away. Empty: there
        is none.""",
    )
    authenticate_metrics = Bool(
        True,
        config=True,
        help="""Whether ``metrics`` asks for a token with the scope read:metrics or
        custom:singularity:admin. False: anybody who reaches the service reads them; they name no
        users and no sessions.""",
    )
    max_connections = Int(
        2048,
        min=16,
        config=True,
        help="""Connections to the service's port at a time. One more takes the place of the one
        that has waited longest without a request, or is refused with 503.""",
    )
    header_timeout_s = Float(
        20.0,
        min=0.1,
        config=True,
        help="""Seconds in which a connection sends the headers of its next request; then it is
        closed.""",
    )
    body_timeout_s = Float(
        60.0,
        min=0.1,
        config=True,
        help="Seconds in which the body of a request comes; then its connection is closed.",
    )
    answer_timeout_s = Float(
        60.0,
        min=0.1,
        config=True,
        help="""Seconds in which a client takes an answer, or the next piece of a stream; then its
        connection is closed.""",
    )
    max_requests_per_user = Int(
        128,
        min=1,
        config=True,
        help="""Requests that one user may have open at a time, streams included; further ones are
        refused with 429. Services of the Hub are not counted.""",
    )
    max_streams_per_user = Int(
        32,
        min=1,
        config=True,
        help="Streams of events and logs that one user may follow at a time.",
    )
    event_log = Unicode(
        "",
        config=True,
        help="""File for events (jupyter_events): each change of a session or node, and who asked
        for what, one JSON object per line, mode 0600. Empty: none is written.""",
    )
    log_style = Enum(
        ("json", "text"),
        "json",
        config=True,
        help="""How the log looks: "json" is one object per line with the ids of session, request
        and user; "text" is for people.""",
    )

    services: Services
    """What runs, inside `running`."""
    _standing_by = ""
    """Why it does not lead, for people."""

    @default("log_level")  # type: ignore[untyped-decorator]
    def _default_log_level(self) -> int:
        return 20

    @default("log_format")  # type: ignore[untyped-decorator]
    def _default_log_format(self) -> str:
        return logs.TEXT_FORMAT

    @default("state_dir")  # type: ignore[untyped-decorator]
    def _default_state_dir(self) -> str:
        return default_state_dir()

    def initialize(self, argv: list[str] | None = None) -> None:
        super().initialize(argv)
        if self.config_file:
            self.load_config_file(self.config_file)
            self.parse_command_line(argv)  # the command line has the last word
        _log_like(self.log, self.log_style)

    def start(self) -> None:
        """Run until SIGTERM or SIGINT. An error that keeps the service from starting is one
        sentence on the log and exit code 1."""
        sys.setswitchinterval(SWITCH_S)
        os.environ.update(hub_variables(os.environ))
        try:
            asyncio.run(self._serve())
        except SingularityError as error:
            self.log.critical("%s", error.message)
            sys.exit(1)
        except TraitError as error:  # a setting that cannot be
            self.log.critical("%s", error)
            sys.exit(1)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        work = asyncio.ensure_future(self._work())
        reporting = asyncio.ensure_future(Systemd().report())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.log.info("stopping: sessions go on")
        stopping.cancel()
        reporting.cancel()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def _work(self) -> None:
        """Serve until cancelled: as the leader, or standing by."""
        async with self._listening() as door:
            first = True
            while True:
                async with self._leading(door, None, patient=not first) as (_, lost):
                    why = await lost
                    self.log.error(
                        "this scheduler service leads no more and stands by: %s; sessions go on",
                        why,
                    )
                first = False

    @contextlib.asynccontextmanager
    async def running(self, hub_auth: Any = None) -> Any:
        """An ``async with`` block in which the service serves; yields its `Controller` as soon as
        it leads."""
        async with self._listening() as door, self._leading(door, hub_auth) as (controller, _):
            yield controller

    @contextlib.asynccontextmanager
    async def _listening(self) -> Any:
        """The state folder and the port are this service's; yields what answers at the port."""
        host, port, prefix = service_address(os.environ)
        make_state_dir(self.state_dir)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(await lock_state_dir(self.state_dir))
            sock = listen(host, port)  # first: a taken port must change nothing
            stack.callback(sock.close)
            self._standing_by = "the scheduler service is starting: try again in a moment"
            door = Door(standby_application(lambda: self._standing_by))
            server = BoundedServer(door, self._bounds(), MAX_DISCARD_BYTES)
            stack.push_async_callback(_close, server)
            server.add_socket(sock)
            self.log.info("the scheduler listens at http://%s:%d%s", host, port, prefix)
            yield door

    @contextlib.asynccontextmanager
    async def _leading(self, door: Door, hub_auth: Any, patient: bool = False) -> Any:
        """Once this service leads: yields its `Controller`, and a task that ends with a sentence
        when it leads no more. `patient`: wait for a ledger that cannot be opened."""
        async with contextlib.AsyncExitStack() as stack:
            ledger = await self._open_ledger(patient)
            stack.push_async_callback(ledger.close)
            leader = Leader(identity(self.state_dir), parent=self)
            await self._stand_by(leader, ledger)
            stack.push_async_callback(_resign, ledger)
            lost = asyncio.ensure_future(leader.keep(ledger))
            stack.push_async_callback(_end, lost)
            if self.keep_history_days:
                await self._trim(ledger)
                stack.push_async_callback(_end, asyncio.create_task(self._trim_daily(ledger)))
            fleet = self.fleet_class(parent=self)
            controller = Controller(ledger, fleet, leader, parent=self)
            operator = read_operator_token(self.operator_token_file)
            prefix = service_address(os.environ)[2]
            base = f"{prefix.rstrip('/')}/"
            gate = Gate(self.hub_admins, operator)
            stack.push_async_callback(gate.close)
            events = event_logger(self.event_log, parent=self)
            stack.callback(_close_handlers, events)
            audit = Audit(events, controller.state)
            services = Services(
                controller, gate, audit, self.authenticate_metrics, Callers(self._bounds())
            )
            self.services = services
            stack.push_async_callback(controller.stop)
            services.start()
            stack.callback(services.close)
            stack.callback(door.shut)
            await controller.start()
            if hub_auth is None:
                # JupyterHub's client takes as long to load as all else. Who needs it waits; nodes
                # are led and the operator is answered meanwhile.
                door.open(make_application(services, base, later_pages(base, gate.opened)))
                await asyncio.to_thread(_load_pages)
                hub_auth = make_hub_auth(prefix, parent=self)
            gate.open(hub_auth)
            door.open(make_application(services, base, _load_pages()(services, base)))
            self.log.info("the scheduler leads on %s", ledger.place)
            yield controller, lost

    async def _open_ledger(self, patient: bool) -> Ledger:
        while True:
            try:
                return await Ledger.open(self._ledger_url())
            except SingularityError as error:
                if not patient:
                    raise
                if error.message != self._standing_by:
                    self.log.error("%s", error.message)
                self._standing_by = error.message
                await asyncio.sleep(REOPEN_S)

    async def _stand_by(self, leader: Leader, ledger: Ledger) -> None:
        """Returns when this service leads."""
        try:
            if await leader.take(ledger):
                return
        except SingularityError as error:
            self.log.error("%s", error.message)
        waiting = asyncio.ensure_future(leader.wait(ledger))
        try:
            self._standing_by = leader.sentence
            await asyncio.to_thread(_load_pages)  # now there is time
            while not waiting.done():
                self._standing_by = leader.sentence
                await asyncio.wait([waiting], timeout=1.0)
            await waiting
        finally:
            waiting.cancel()

    async def _trim(self, ledger: Ledger) -> None:
        await ledger.trim(time.time() - self.keep_history_days * 86400)

    async def _trim_daily(self, ledger: Ledger) -> None:
        while True:
            await asyncio.sleep(TRIM_S)
            try:
                await self._trim(ledger)
            except SingularityError as error:
                self.log.warning("old sessions were not forgotten today: %s", error.message)

    def _bounds(self) -> Bounds:
        return Bounds(
            connections=self.max_connections,
            header_s=self.header_timeout_s,
            body_s=self.body_timeout_s,
            answer_s=self.answer_timeout_s,
            requests=self.max_requests_per_user,
            streams=self.max_streams_per_user,
        )

    def _ledger_url(self) -> str:
        path = Path(self.state_dir).resolve() / "ledger.sqlite"
        return self.ledger_url or URL.create("sqlite", database=str(path)).render_as_string()


def hub_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """What JupyterHub sets for a service that it starts, completed for one that somebody else
    starts (systemd, ``jupyter singularity up``): those need only address and token."""
    name = environ.get("JUPYTERHUB_SERVICE_NAME") or SERVICE_NAME
    base = environ.get("JUPYTERHUB_BASE_URL") or "/"
    defaults = {
        "JUPYTERHUB_SERVICE_NAME": name,
        "JUPYTERHUB_BASE_URL": base,
        "JUPYTERHUB_SERVICE_PREFIX": f"{base.rstrip('/')}/services/{name}/",
        "JUPYTERHUB_CLIENT_ID": f"service-{name}",
    }
    return {key: environ.get(key) or value for key, value in defaults.items()}


def service_address(environ: Mapping[str, str]) -> tuple[str, int, str]:
    """Host, port and path prefix from what JupyterHub sets; `Unavailable` when it set nothing."""
    url = urlsplit(environ.get("JUPYTERHUB_SERVICE_URL", ""))
    prefix = environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
    if not url.hostname or not url.port or not prefix:
        raise Unavailable(
            "JUPYTERHUB_SERVICE_URL says where to serve and is not set: this program is started by "
            "JupyterHub as a managed service, or with its address and token in the environment "
            "(see singularity_spawner.configure)"
        )
    return url.hostname, url.port, prefix


def make_state_dir(path: str) -> None:
    """Make the folder for the ledger, closed to others."""
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"the scheduler's folder {path} cannot be made ({error.strerror}): choose another "
            "SchedulerApp.state_dir",
            state_dir=path,
        ) from None


def listen(host: str, port: int) -> socket.socket:
    """Listen at this address; `Conflict` when somebody else does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise Conflict(
            f"the scheduler service cannot listen at {host}:{port} ({error.strerror}): stop the "
            "program that uses this port, or choose another port for the service",
            host=host,
            port=port,
        ) from None
    sock.setblocking(False)
    return sock


async def lock_state_dir(path: str, wait_s: float = LOCK_WAIT_S) -> contextlib.ExitStack:
    """Hold the folder for this process: two schedulers with one ledger would both decide. Waits
    for one that is just stopping; `Conflict` when it does not."""
    stack = contextlib.ExitStack()
    try:
        lock = os.open(os.path.join(path, "service.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Unavailable(
            f"the scheduler's folder {path} cannot be written ({error.strerror}): choose another "
            "SchedulerApp.state_dir",
            state_dir=path,
        ) from None
    stack.callback(os.close, lock)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return stack
        except BlockingIOError:
            if time.monotonic() >= deadline:
                stack.close()
                raise Conflict(
                    f"another scheduler service works in {path}: stop it, or give this one "
                    "another SchedulerApp.state_dir",
                    state_dir=path,
                ) from None
        await asyncio.sleep(0.1)


def _load_pages() -> Callable[[Services, str], list[tuple[Any, ...]]]:
    """Load the dashboard, and with it JupyterHub's client; returns what gives its addresses."""
    from .dashboard.addresses import routes

    return routes


async def _end(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _resign(ledger: Ledger) -> None:
    """Let the next one take over at once; who cannot say so is waited for."""
    with contextlib.suppress(SingularityError, TimeoutError):
        async with asyncio.timeout(RESIGN_S):
            await ledger.resign()


async def _close(server: BoundedServer) -> None:
    server.stop()
    await server.close_all_connections()


def _close_handlers(events: EventLogger) -> None:
    for handler in events.handlers:
        events.remove_handler(handler)
        handler.close()


def _log_like(log: logging.Logger, style: str) -> None:
    """What our modules and tornado log goes where the application's own log goes."""
    for handler in log.handlers:
        handler.setFormatter(logs.formatter(style))
    for name in ("singularity", "tornado"):
        logger = logging.getLogger(name)
        logger.handlers = log.handlers
        logger.setLevel(log.level if name == "singularity" else logging.WARNING)
        logger.propagate = False
