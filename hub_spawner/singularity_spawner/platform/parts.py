"""The programs that the platform itself keeps running: JupyterHub, its HTTP proxy, the scheduler
service. Each is a `ProcessPart`, kept by `singularity_proxy.capsule.supervisor.keep_running`.

A part whose process ends is started again; so is one that lives and does not answer for
`ProcessPart.silence_s`. One that an earlier ``up`` left running is taken over as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from singularity_proxy.capsule.process import ProcessIdentity, ProcessWatch, uid_of
from singularity_proxy.capsule.supervisor import wait_for_silence
from singularity_proxy.errors import Unavailable
from tornado.httpclient import AsyncHTTPClient, HTTPClientError

from singularity_spawner.hubconfig import service_command, service_variables

from . import processes
from .settings import MARK, Settings

SERVICE_SILENCE_S = 15.0
"""How long the scheduler service may leave the platform without an answer: with the start of the
next one it is back before leases run out (`Controller.lease_ttl_s`)."""

SERVICE_NICENESS = -10
"""How far the scheduler service goes before what sessions compute, where `up` may say so."""

SILENCE_S = 30.0
"""The same of JupyterHub and its proxy."""

START_SILENCE_S = 90.0
"""The same of any part that has not answered yet since it was started."""

_FOREIGN = (
    "JUPYTERHUB_",
    "JPY_",
    *(
        f"SINGULARITY_{name}"
        for name in ("API_", "SESSION", "SOCKET", "DOORBELL", "DEVICE", "TIER")
    ),
)
"""Variables of another Hub or session, from whose terminal the platform may have been started."""

_SERVICE_KEEPS = (
    *("PATH", "PYTHONPATH", "CONDA_ROOT", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "LANG", "LC_ALL"),
)
"""What the service, and so the node agents, take from the platform's environment: what JupyterHub
gives the services that it starts (`Spawner.env_keep`)."""


class ProcessPart:
    """One program (`supervisor.Part`). `name`: for people; `word`: the argument by which a process
    of the run is known as this part; `goes_on`: what its end does not concern, for people;
    `probe`: URL that it answers while it works, with any status."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        word: str,
        goes_on: str,
        probe: str,
        silence_s: float,
        started: Callable[[], Awaitable[None]] | None = None,
        niceness: int | None = None,
    ) -> None:
        """`started` is awaited, beside the part, after each start of it but the first. `niceness`:
        where the part stands among those who compute (`nice`), if that may be said here."""
        self.name = name
        self.goes_on = goes_on
        self.silence_s = silence_s
        self.settled = False
        """Set once the platform was ready: before that, a part that ends with an error of its own
        is not started again."""
        self._settings = settings
        self._command = list(command)
        self._env = dict(env)
        self._word = word.encode()
        self._probe = probe
        self._on_started = started
        self._niceness = niceness
        self._afterwards: asyncio.Future[None] | None = None
        self._watch: ProcessWatch | None = None
        self.answered = False
        """Whether it has answered since it was started."""

    @property
    def pid(self) -> int | None:
        """Of the living process."""
        return self._watch.pid if self._watch is not None and self._watch.alive else None

    async def start(self) -> None:
        """Take the part over that already runs, or start it. Raises `Unavailable`."""
        first, self.answered = self._watch is None, False
        identity = await asyncio.to_thread(self._find) or self._spawn()
        self._watch = ProcessWatch(identity)
        if not first and self._on_started is not None:
            self._afterwards = asyncio.ensure_future(self._on_started())

    def _find(self) -> ProcessIdentity | None:
        run = processes.of_run(self._settings.instance)
        found = {p.pid: p for p in run if self._word in processes.arguments(p.pid)}
        for process in sorted(found.values(), key=lambda p: p.started):
            try:
                # Not a child that is about to execute something else, nor somebody else's.
                if process.parent not in found and uid_of(process.pid) == os.getuid():
                    return ProcessIdentity.of(process.pid)
            except ProcessLookupError:
                continue
        return None

    def _spawn(self) -> ProcessIdentity:
        try:
            with self._settings.folder.hub_log.open("ab") as log:
                child = subprocess.Popen(
                    self._command,
                    cwd=self._settings.folder.path,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C in the terminal is for `up` alone, which stops things in order.
                    start_new_session=True,
                )
        except OSError as error:
            raise Unavailable(f"{self.name} could not be started: {error}") from None
        if self._niceness is not None:
            _place(child.pid, self._niceness)
        identity = ProcessIdentity.of(child.pid)
        child.returncode = 0  # the watch reaps it; this object must not try to
        return identity

    async def ended(self) -> str:
        """Wait until the process has ended, or does not answer any more and was ended. Raises
        `Unavailable` when it ends with an error of its own before it is `settled`."""
        watch = self._watch
        if watch is None:
            return "was not started"
        gone = asyncio.ensure_future(watch.wait())
        silent = asyncio.ensure_future(wait_for_silence(self.answers, lambda: self._allowed_s))
        try:
            await asyncio.wait({gone, silent}, return_when=asyncio.FIRST_COMPLETED)
            if not watch.alive:
                how = describe_end(watch.exit_code)
                if not self.settled and (watch.exit_code or 0) > 0:
                    raise Unavailable(f"{self.name} {how} while it started")
                return how
            watch.signal(signal.SIGKILL)
            await watch.wait(10.0)
            return f"did not answer for {self._allowed_s:g} s and was ended"
        finally:
            gone.cancel()
            silent.cancel()

    @property
    def _allowed_s(self) -> float:
        return self.silence_s if self.answered else START_SILENCE_S

    async def answers(self, seconds: float) -> bool:
        """Whether the part answers within that time, whatever it says."""
        try:
            await AsyncHTTPClient().fetch(
                self._probe,
                raise_error=False,
                follow_redirects=False,
                connect_timeout=seconds,
                request_timeout=seconds,
            )
        except (OSError, HTTPClientError):
            return False
        self.answered = True
        return True

    async def end(self, seconds: float) -> bool:
        """Ask the process to end and wait for that; False when it has not within that time."""
        if self._afterwards is not None:
            self._afterwards.cancel()
        if self._watch is None or not self._watch.alive:
            return True
        self._watch.signal(signal.SIGTERM)
        return await self._watch.wait(seconds)

    async def close(self) -> None:
        """Stop watching. A process that has just been ended by somebody else is reaped."""
        if self._afterwards is not None:
            self._afterwards.cancel()
        if self._watch is not None:
            await self._watch.wait(0.5)
            self._watch.close()


def _place(pid: int, niceness: int) -> None:
    """Say where the process `pid`, which has a login session of its own, stands among all others.

    Where the kernel gives each login session an equal share (autogroups, sched(7)), a process's
    niceness only counts within its own, so the session's is set as well.
    """
    with contextlib.suppress(OSError):  # not root, or it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with contextlib.suppress(OSError):  # or there are no such shares here
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def describe_end(code: int | None) -> str:
    """How a process ended, for people; `code`: as `ProcessWatch.exit_code`."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed ({name})"


def hub_part(settings: Settings) -> ProcessPart:
    """JupyterHub."""
    module = "singularity_spawner.platform.hub"
    return ProcessPart(
        "JupyterHub",
        settings,
        [sys.executable, "-m", module, "-f", str(settings.folder.hub_config)],
        _environment(settings),
        word=module,
        goes_on="servers, notebooks and runs go on",
        probe=f"{settings.hub_url}/hub/health",
        silence_s=SILENCE_S,
    )


def proxy_part(settings: Settings, started: Callable[[], Awaitable[None]]) -> ProcessPart:
    """The Hub's HTTP proxy; `started`: has it get its routes again."""
    token = settings.folder.secret("proxy_token", 48)
    return ProcessPart(
        "JupyterHub's proxy",
        settings,
        [
            *settings.proxy_command,
            *("--ip", "127.0.0.1", "--port", str(settings.port)),
            *("--api-ip", "127.0.0.1", "--api-port", str(settings.proxy_api_port)),
            *("--error-target", f"{settings.hub_url}/hub/error"),
        ],
        {**_environment(settings), "CONFIGPROXY_AUTH_TOKEN": token},
        word=settings.proxy_command[0],
        goes_on="servers, notebooks and runs go on, pages connect again",
        probe=f"{settings.url}_chp_healthz",
        silence_s=SILENCE_S,
        started=started,
    )


def service_part(settings: Settings) -> ProcessPart:
    """The scheduler service."""
    folder = settings.folder
    variables = service_variables(
        settings.service_url, folder.secret("service_token", 48), f"{settings.hub_url}/hub/api"
    )
    kept = {name: os.environ[name] for name in _SERVICE_KEEPS if name in os.environ}
    command = service_command(
        str(folder.scheduler),
        settings.devices,
        [
            f"--SchedulerApp.operator_token_file={folder.operator_token}",
            *settings.fleet_args,
            *settings.service_args,
        ],
    )
    return ProcessPart(
        "the scheduler service",
        settings,
        command,
        {**kept, **variables, MARK: settings.instance, "PATH": settings.path},
        word="singularity_scheduler.service",
        goes_on="sessions go on with the devices they have",
        probe=f"{settings.service_url}/services/singularity/api/v1/healthz",
        silence_s=SERVICE_SILENCE_S,
        # Leases run out while it is away, however much the notebooks of a small machine compute.
        niceness=SERVICE_NICENESS,
    )


def _environment(settings: Settings) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return {**env, MARK: settings.instance, "PATH": settings.path}
