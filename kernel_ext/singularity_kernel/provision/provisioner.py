"""`SingularityProvisioner`: every kernel that Jupyter starts becomes a session.

Jupyter finds it by the entry point ``singularity`` of ``jupyter_client.kernel_provisioners``: our
kernelspec names it, and the spawner makes it the default of the single-user server with
JUPYTER_DEFAULT_PROVISIONER_NAME, so that other kernelspecs, nbclient, papermill and
``jupyter execute`` go through it as well. It asks the scheduler service for a session; the node
agent starts the kernel and the relay, and Jupyter's clients talk to the relay where the agent says:
at unix sockets of the user's where the agent sees that this server is on its machine, else at
encrypted TCP ports. A kernel that is restarted keeps its place.

Three situations (`Mode`), decided anew at every start:

* SESSION: the scheduler is configured (SINGULARITY_API_URL). All below applies.
* NESTED: started inside a session (SINGULARITY_SESSION). A plain local kernel that inherits the
  session's environment, and with it the session's devices.
* LOCAL: no platform. A plain local kernel without an accelerator; the log says so once.

A session's kernel counts as alive until the scheduler says that the session has ended: parked,
suspended, moved, or while the scheduler itself is away or answers with an error. Anything else
would make Jupyter restart it and throw its variables away. An error, a time-out or a pid that is
gone are no such word; they only count once somebody here has asked for the end.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import zmq
from jupyter_client.localinterfaces import localhost
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from singularity_proxy.capsule.process import ProcessIdentity
from singularity_proxy.errors import BadRequest, Conflict, NotFound, SingularityError
from tornado.web import HTTPError
from traitlets import Bool, Enum, Float, Integer, Unicode, default

from . import late_end
from .environment import (
    NESTED,
    session_environment,
    with_extension,
    with_own_packages,
    with_word_of_it,
)
from .late_end import is_unknown
from .late_interrupt import LateInterrupt
from .nested import has_terminal, start_child
from .reconnect import KEYS, Follower, forget_keys

if TYPE_CHECKING:
    from singularity_scheduler.client import ServiceClient

CHANNEL_PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")
ENDED = frozenset({"completed", "failed", "cancelled"})

POLL_S = 1.0
"""How long an answer about a running kernel is reused."""

POLL_ENDING_S = 0.1
"""The same once a shutdown was asked for: Jupyter then waits for the end."""

EXIT_UNKNOWN = 1

NAME_CHARACTERS = 200
"""Longer names are refused by the scheduler, and a file may have one."""


class Mode(enum.Enum):
    SESSION = "session"
    NESTED = "nested"
    LOCAL = "local"


class KernelNotStarted(HTTPError):
    """Why a kernel could not start, in one sentence. As an HTTPError it reaches JupyterLab's
    dialog as its message instead of as a traceback; `status_code` is the scheduler's."""

    def __init__(self, error: SingularityError) -> None:
        super().__init__(error.http_status, error.message)
        self.sentence = error.message

    def __str__(self) -> str:
        return self.sentence


class _OneLine(logging.Filter):
    """Keeps refusals in the log to their sentence; jupyter_client logs a traceback with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], KernelNotStarted):
            record.exc_info = record.exc_text = None
        return True


_one_line = _OneLine()


class SingularityProvisioner(LocalProvisioner):  # type: ignore[misc]
    """Starts and watches one kernel as a session; made by jupyter_client, one per kernel manager.

    Methods say when jupyter_client calls them; all are coroutines on the server's event loop (or
    on a private one for the blocking `KernelManager`).
    """

    tier = Unicode(
        config=True,
        help="""SLA tier of the sessions: "premium", "standard" or "basic". Also settable in a
        kernelspec (metadata.kernel_provisioner.config.tier). Empty: the scheduler's default.
        Default: SINGULARITY_TIER, which the spawn form sets.""",
    )
    kind = Enum(
        ("interactive", "batch"),
        "interactive",
        config=True,
        help="""Kind of the sessions: "batch" for a kernel that nobody sits in front of. Set by the
        papermill engine.""",
    )
    devices = Integer(
        config=True,
        help="""Virtual devices of a session: how many accelerators user code sees. Also settable
        in a kernelspec (metadata.kernel_provisioner.config.devices). 0: the scheduler's default.
        Default: SINGULARITY_DEVICES, which the spawn form sets.""",
    )
    device_share = Float(
        config=True,
        help="""Part of the time of one device that a session asks for, from 0.001 to 1: below 1 it
        takes turns with others that share. Also settable in a kernelspec
        (metadata.kernel_provisioner.config.device_share). 0: whole devices. Default:
        SINGULARITY_DEVICE_SHARE, which c.Spawner.environment can set.""",
    )
    elastic = Bool(
        config=True,
        help="""Whether sessions with several virtual devices may go on with fewer physical ones:
        they start on fewer when no more are free, give some up before others are paused, and get
        them back. Also settable in a kernelspec (metadata.kernel_provisioner.config.elastic).
        Default: SINGULARITY_ELASTIC ("1" for yes), which c.Spawner.environment can set.""",
    )
    locations = Unicode(
        config=True,
        help="""Clusters and regions that sessions may be in, separated by commas. Also settable in
        a kernelspec (metadata.kernel_provisioner.config.locations). Empty: anywhere. Default:
        SINGULARITY_LOCATIONS, which c.Spawner.environment can set.""",
    )
    service_wait_s = Float(
        15.0,
        config=True,
        help="""Seconds that a kernel start keeps trying while the scheduler does not answer, for
        example while it restarts. 0: fail at once.""",
    )

    @default("tier")  # type: ignore[untyped-decorator]
    def _default_tier(self) -> str:
        return os.environ.get("SINGULARITY_TIER", "")

    @default("locations")  # type: ignore[untyped-decorator]
    def _default_locations(self) -> str:
        return os.environ.get("SINGULARITY_LOCATIONS", "")

    @default("elastic")  # type: ignore[untyped-decorator]
    def _default_elastic(self) -> bool:
        return os.environ.get("SINGULARITY_ELASTIC", "").lower() in ("1", "true", "yes")

    @default("device_share")  # type: ignore[untyped-decorator]
    def _default_share(self) -> float:
        value = os.environ.get("SINGULARITY_DEVICE_SHARE") or "0"
        try:
            return float(value)
        except ValueError:
            raise KernelNotStarted(
                BadRequest(
                    f"SINGULARITY_DEVICE_SHARE is {value!r}, but it must be a number from 0.001 to "
                    "1; no kernel was started"
                )
            ) from None

    @default("devices")  # type: ignore[untyped-decorator]
    def _default_devices(self) -> int:
        value = os.environ.get("SINGULARITY_DEVICES") or "0"
        try:
            return int(value)
        except ValueError:
            raise KernelNotStarted(
                BadRequest(
                    f"SINGULARITY_DEVICES is {value!r}, but it must be a number of devices; "
                    "no kernel was started: set it right and start the server again"
                )
            ) from None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mode = Mode.LOCAL
        self.session_id: str | None = None
        """The session behind the kernel now; None before the start and after `cleanup`."""
        self._process: ProcessIdentity | None = None
        """The kernel's own process when it runs on this machine as this user: the way to it while
        the scheduler is away."""
        self.end: dict[str, Any] | None = None
        """What the scheduler said of the session when it had ended."""
        self._running = False
        self._exit_code: int | None = None
        self._ending = False
        self._asked_at = 0.0
        self._epoch: int | None = None
        """The session's epoch in the last answer: with another one its process may be another."""
        self._away = False
        self._service: ServiceClient | None = None
        self._follower, self._late = Follower(), LateInterrupt(self.log)
        self.connection_info: dict[str, Any] = {}
        self.log.addFilter(_one_line)

    # -- start ------------------------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Write the clients' connection file and build the command; at every (re)start."""
        self.mode = mode()
        if self.mode is Mode.SESSION and self.parent is not None:
            # The relay binds these ports in another process. With caching off a start that finds
            # one taken can choose new ones, and nothing must be returned in the end.
            self.parent.cache_ports = False
            self._keep_ports_of_user(self.parent)
        kwargs = await super().pre_launch(**kwargs)
        env: dict[str, str] = kwargs["env"]
        kwargs["cmd"] = with_extension(with_own_packages(kwargs["cmd"], env), env)
        if self.mode is not Mode.LOCAL:
            kwargs["cmd"] = with_word_of_it(kwargs["cmd"])
        if self.mode is Mode.SESSION:
            kwargs["env"] = session_environment(env)
        elif self.mode is Mode.NESTED:
            env[NESTED] = "1"
        else:
            env["CUDA_VISIBLE_DEVICES"] = ""
            self.log.warning(
                "Singularity: no platform is configured (SINGULARITY_API_URL is not set), so this "
                "kernel runs here without an accelerator; start it from a server of the platform "
                "to get one."
            )
        return kwargs

    def _keep_ports_of_user(self, km: Any) -> None:
        """Who chooses ports gets them, with keys; else the agent chooses the place."""
        first = km.transport == "tcp" and km._random_port_names is None
        if first and km.curve_publickey is None and any(km.ports):
            km.curve_publickey, km.curve_secretkey = zmq.curve_keypair()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start the session and return what the clients connect to; right after `pre_launch`."""
        if self.mode is not Mode.SESSION:
            if self.mode is Mode.NESTED and not has_terminal():
                child: Any = start_child(cmd, kwargs)
                self.process, self.pid, self.pgid = child, child.pid, child.pid
                self.cwd = str(kwargs.get("cwd") or os.getcwd())
                return dict(self.connection_info)
            info: dict[str, Any] = await super().launch_kernel(cmd, **kwargs)
            return info
        self.cwd = str(kwargs.get("cwd") or os.getcwd())
        try:
            created = await self._create(cmd, kwargs["env"])
        except SingularityError as error:
            raise KernelNotStarted(error) from None
        launch = created.get("launch") or {}
        self.session_id = str(created["id"])
        self.pid = launch.get("pid")
        self._epoch = created.get("epoch")
        self._process, self._follower = None, Follower(self._epoch)
        self._running, self._exit_code, self.end, self._ending = True, None, None, False
        self._asked_at = time.monotonic()
        self.connection_info = _connection(self.connection_info, launch.get("connection"))
        forget_keys(self.parent, self.connection_info)
        self.log.info("Singularity: session %s started for kernel %s", self.session_id, cmd[0])
        return dict(self.connection_info)

    async def _create(self, cmd: list[str], env: dict[str, str]) -> dict[str, Any]:
        """Ask for the session; on a port that someone else took in the meantime, with new ports."""
        for _ in range(3):
            try:
                return await self._create_once(cmd, env)
            except Conflict as error:
                if "port" not in error.fields or not self._new_ports():
                    raise
                self.log.warning("Singularity: %s", error.message)
        return await self._create_once(cmd, env)

    def owner_pid(self) -> int:
        """The process that the session belongs to: the Jupyter server, so this one."""
        return os.getpid()

    async def _create_once(self, cmd: list[str], env: dict[str, str]) -> dict[str, Any]:
        launch = {
            "mode": "capsule",
            "argv": self._portable(cmd),
            "env": env,
            "cwd": self.cwd,
            "connection": _as_json(self.connection_info),
            "owner_pid": self.owner_pid(),
        }
        client = self._client()
        from singularity_scheduler.client.repeat import ask_until_answered

        return await ask_until_answered(
            lambda key: client.create_session(
                kind=self.kind,
                name=self._name(env),
                tier=self.tier or None,
                devices=self.devices or None,
                device_share=self.device_share or None,
                elastic=self.elastic or None,
                locations=[word for w in self.locations.split(",") if (word := w.strip())],
                launch=launch,
                kernel_id=self.kernel_id or None,
                key=key,
            ),
            self.service_wait_s,
        )

    def _portable(self, cmd: list[str]) -> list[str]:
        """`cmd` with ``{connection_file}`` where the clients' file was: the agent puts the file
        there that the kernel gets."""
        if self.parent is None:
            return list(cmd)
        path = os.path.realpath(self.parent.connection_file)
        return [argument.replace(path, "{connection_file}") for argument in cmd]

    def _new_ports(self) -> bool:
        """Choose other client-facing ports; False when they were given by the user."""
        km = self.parent
        if km is None or not (km._random_port_names or km.transport == "ipc"):
            return False
        if km.transport == "ipc":  # as at its first start
            km.cleanup_connection_file()
            km.transport, km.ip = "tcp", localhost()
            for name in CHANNEL_PORTS:
                setattr(km, name, 0)
        km.cleanup_random_ports()
        km.write_connection_file()
        self.connection_info = km.get_connection_info()
        return True

    def _name(self, env: dict[str, str]) -> str:
        """What people call the session: the notebook's file name, else the kernel's."""
        path = env.get("JPY_SESSION_NAME", "")
        name = os.path.basename(path) or str(getattr(self.kernel_spec, "display_name", ""))
        return "".join(c for c in name if c.isprintable())[:NAME_CHARACTERS]

    def _client(self) -> ServiceClient:
        if self._service is None:
            from singularity_scheduler.client import ServiceClient

            self._service = ServiceClient.from_environment()
        return self._service

    # -- while it runs ----------------------------------------------------------------------

    @property
    def has_process(self) -> bool:
        """True from the launch until `wait` has seen the end."""
        return self._running if self.mode is Mode.SESSION else super().has_process

    async def poll(self) -> int | None:
        """None until the scheduler says that the session has ended, then its exit code. Called
        every few seconds by the restarter and ten times a second during a shutdown."""
        if self.mode is not Mode.SESSION:
            code: int | None = await super().poll()
            return code
        if self._exit_code is not None:
            return self._exit_code
        if self.session_id is None:
            return 0
        now = time.monotonic()
        if now - self._asked_at < (POLL_ENDING_S if self._ending else POLL_S):
            return None
        self._asked_at = now
        try:
            session = await self._client().get_session(self.session_id)
        except SingularityError as error:
            self._tell_away(error)
            if self._ending and self._seems_gone(error):
                self._exit_code = EXIT_UNKNOWN
            return self._exit_code
        if session.get("id") != self.session_id:  # of something in between, whatever its status
            return None
        self._away = False
        self._note_process(session)
        await self._follower.look(self._client(), session, self)
        state = session.get("process_state")
        if state in ENDED:
            self.end = session
            code = session.get("exit_code")
            failed = state != "completed"
            self._exit_code = code if code is not None else (EXIT_UNKNOWN if failed else 0)
        return self._exit_code

    def _seems_gone(self, error: SingularityError) -> bool:
        """Whether nothing is left to wait for, of a session whose end was asked for here: the
        scheduler does not know it, or its process on this machine is gone."""
        if is_unknown(error, self.session_id):
            return True
        return self._process is not None and not self._process_lives()

    def _note_process(self, session: dict[str, Any]) -> None:
        """Forget the process of a session that has left, or may have come back since."""
        epoch = session.get("epoch")
        live = session.get("process_state") == "live"
        if not live or epoch != self._epoch:
            self._process = None
        if not live:
            self.pid = None  # it comes back as another process
        self._epoch = epoch
        if live:
            self._known_process()

    def _tell_away(self, error: SingularityError) -> None:
        """Once per time that the scheduler is away."""
        if not self._away:
            self._away = True
            self.log.warning(
                "Singularity: the kernel goes on, its state is unknown for now: %s", error.message
            )

    async def wait(self) -> int | None:
        """Return the exit code once the kernel has ended; the caller limits the time."""
        if self.mode is not Mode.SESSION:
            code: int | None = await super().wait()
            return code
        while (ended := await self.poll()) is None:
            await asyncio.sleep(POLL_ENDING_S)
        self._running = False
        return ended

    async def send_signal(self, signum: int) -> None:
        """Pass a signal on (SIGINT: the stop button). A kernel that has ended ignores it."""
        if self.mode is not Mode.SESSION:
            await super().send_signal(signum)
            return
        if signum == 0:
            await self.poll()
        elif signum == signal.SIGKILL:
            await self.kill()
        elif self.session_id is not None and self._exit_code is None:
            try:
                await self._client().signal(self.session_id, signum)
            except NotFound:
                pass  # it has ended in the meantime
            except Conflict:  # so it has, or it is away
                self._late.begin(self, signum)
            except SingularityError as error:
                if not self._signal_directly(signum):
                    self.log.warning(
                        "Singularity: signal %s was not delivered: %s", signum, error.message
                    )

    def _known_process(self) -> ProcessIdentity | None:
        """The kernel's process, looked up as soon as its environment can be read; None when it is
        not on this machine, or not known to be."""
        if self._process is None:
            self._process = local_process(self.pid, self.session_id)
        return self._process

    def _process_lives(self) -> bool:
        try:
            return self._process == ProcessIdentity.of(self.pid or 0)
        except ProcessLookupError:
            return False

    def _signal_directly(self, signum: int) -> bool:
        """Signal the kernel's process group without the scheduler; the agent notices its end."""
        process = self._known_process()
        if process is None or not self._process_lives():
            return False
        try:
            os.killpg(process.pid, signum)
        except OSError:
            return False
        return True

    # -- the end ----------------------------------------------------------------------------

    async def shutdown_requested(self, restart: bool = False) -> None:
        """The kernel was just asked, over its control channel, to end by itself."""
        self._ending = True
        await super().shutdown_requested(restart)

    async def terminate(self, restart: bool = False) -> None:
        """SIGTERM: the kernel did not end in time after `shutdown_requested`."""
        if self.mode is not Mode.SESSION:
            await super().terminate(restart)
            return
        self._ending = True
        await self.send_signal(signal.SIGTERM)

    async def kill(self, restart: bool = False) -> None:
        """End the session now. A restart is a new session under the same client-facing ports."""
        if self.mode is not Mode.SESSION:
            await super().kill(restart)
            return
        self._ending = True
        await self._end("the kernel was stopped", grace_s=0.0)

    async def cleanup(self, restart: bool = False) -> None:
        """Give the session and its ports back; after every shutdown, twice by nbclient."""
        if self.mode is Mode.SESSION:
            await self._end("restart of the kernel" if restart else "shutdown of the kernel")
            self.session_id, self._running = None, False
        await super().cleanup(restart)

    async def _end(self, reason: str, grace_s: float = 5.0) -> None:
        if self.session_id is None:
            return
        ended: dict[str, Any] = {}
        try:
            ended = await self._client().end_session(self.session_id, reason, grace_s)
        except SingularityError as error:
            if not is_unknown(error, self.session_id):
                if not self._signal_directly(signal.SIGKILL):
                    self.log.warning(
                        "Singularity: session %s could not be ended, that is tried again: %s",
                        self.session_id,
                        error.message,
                    )
                    late_end.begin(self._client(), self.session_id, reason, self.log)
                return
        if self._exit_code is None:
            code = ended.get("exit_code")
            self._exit_code = code if code is not None else -signal.SIGKILL

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        """A session ends by way of scheduler and agent: more than a local process gets."""
        base: float = super().get_shutdown_wait_time(recommended)
        return base + 5.0 if self.mode is Mode.SESSION else base

    # -- hand-over to another server --------------------------------------------------------

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What another process needs to go on with this kernel (JSON)."""
        info: dict[str, Any] = await super().get_provisioner_info()
        info["connection_info"] = _as_json(info["connection_info"])
        info["singularity"] = {"mode": self.mode.value, "session": self.session_id}
        return info

    def let_go(self) -> None:
        """The server stops and its kernel does not: nothing here ends the session any more."""
        self._late.drop()
        self.session_id, self._running = None, False

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take over the kernel that `get_provisioner_info` described."""
        connection = dict(provisioner_info["connection_info"])
        connection["key"] = str(connection["key"]).encode()
        await super().load_provisioner_info({**provisioner_info, "connection_info": connection})
        ours = provisioner_info["singularity"]
        self.mode, self.session_id = Mode(ours["mode"]), ours["session"]
        self._running, self._exit_code, self.end = self.session_id is not None, None, None


def mode() -> Mode:
    """The situation of a kernel that this process would start now."""
    if os.environ.get("SINGULARITY_SESSION"):
        return Mode.NESTED
    return Mode.SESSION if os.environ.get("SINGULARITY_API_URL") else Mode.LOCAL


def local_process(pid: int | None, session: str | None) -> ProcessIdentity | None:
    """The process `pid` if it is one of `session`'s on this machine and this user may look at it;
    on another node the number would mean somebody else's process."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            ours = f"SINGULARITY_SESSION={session}".encode() in file.read().split(b"\0")
        return ProcessIdentity.of(pid or 0) if ours else None
    except (OSError, ProcessLookupError):
        return None


def _as_json(connection: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in connection.items()
    }


def _connection(asked: dict[str, Any], given: dict[str, Any] | None) -> dict[str, Any]:
    """What the clients connect to: what was asked for, at the address the relay really has."""
    merged = dict(asked)
    for name in ("ip", "transport", *CHANNEL_PORTS, *KEYS):
        if given and name in given:
            merged[name] = given[name]
    return merged


__all__ = ["KernelNotStarted", "Mode", "SingularityProvisioner", "mode"]
