"""`SingularitySpawner`: the ready Spawner of the embedded platform, one machine, no containers.

Servers are local processes under the uid that the node agent gives the Hub user: an own uid per
user when the Hub runs as root, else the Hub's own (then the agent serves one user only, and says
so). Hub users need no account on the machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jupyterhub.orm import APIToken
from jupyterhub.spawner import LocalProcessSpawner
from singularity_proxy.layers import Layer, own_packages
from sqlalchemy.orm import object_session
from traitlets import Bool, Unicode, default

from .homes import blocked_folder, make_home, sqlite_url
from .hub_errors import spawn_refused
from .mixin import SingularitySpawnerMixin
from .proc import read_process
from .progress import StartStory

_BASHRC = Path(__file__).with_name("terminal.bashrc")


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _terminal() -> list[str]:
    """The command of a terminal. No login shell: that sets PATH anew, without this environment's
    programs."""
    shell = _shell()
    return [shell, "--rcfile", str(_BASHRC)] if shell.endswith("bash") else [shell]


def _joined(first: str, others: str | None) -> str:
    return f"{first}:{others}" if others else first


def _make_layer(layer: Layer) -> None:
    """Called in the server's process, as its user."""
    try:
        layer.make()
    except OSError as error:  # a full disk: the server may help against that
        os.write(
            sys.stderr.fileno(),
            f"Singularity: {layer.folder} could not be made ({error.strerror}), so there are no "
            "packages of the user's own; the server starts without.\n".encode(),
        )


_VIEW = "singularity_kernel.jobs_view"
NOTEBOOK_JOBS = (
    f"--SchedulerApp.scheduler_class={_VIEW}.scheduler.SingularityScheduler",
    f"--SchedulerApp.environment_manager_class={_VIEW}.environments.SingularityEnvironmentManager",
)
"""Makes JupyterLab's "Notebook Jobs" batch sessions, where jupyter-scheduler is installed."""


class SingularitySpawner(SingularitySpawnerMixin, LocalProcessSpawner):  # type: ignore[misc]
    """Runs each single-user server as a local process in a home folder of its own.

    Entry point ``singularity``: ``c.JupyterHub.spawner_class = "singularity"``.
    """

    homes_dir = Unicode(
        help="""
        Folder that holds one home folder per Hub user, created when a user first starts a server
        (mode 0700, owned by the user's uid). Its parents must be passable for other uids when
        the Hub runs as root. Default: ``homes`` in the Hub's working folder.
        """,
    ).tag(config=True)

    @default("homes_dir")  # type: ignore[untyped-decorator]
    def _default_homes_dir(self) -> str:
        return os.path.join(os.getcwd(), "homes")

    own_packages = Bool(
        True,
        help="""
        Whether users may install Python packages of their own, with ``%pip install`` in notebooks
        and ``pip install`` in terminals: into a folder of their home for each version of Python
        (``~/.local/share/jupyter-singularity``), from where their kernels, terminals and runs take
        them before those of this environment, which stays as it is. The server itself imports none
        of them; kernels and page extensions that they bring are found by it. Only where ``cmd``
        starts the server with the Hub's own Python.

        False: nothing is installed there, and what is there already is not used.
        """,
    ).tag(config=True)

    @default("cmd")  # type: ignore[untyped-decorator]
    def _default_cmd(self) -> list[str]:
        # The interpreter of the Hub: what `PATH` finds first may be another environment.
        return [sys.executable, "-m", "jupyterhub.singleuser"]

    @default("interrupt_timeout")  # type: ignore[untyped-decorator]
    def _default_interrupt_timeout(self) -> int:
        return 5

    @default("term_timeout")  # type: ignore[untyped-decorator]
    def _default_term_timeout(self) -> int:
        return 5

    uid: int | None = None
    """Uid and gid of the server's process while it runs, asked of the service at each start."""
    gid: int | None = None
    home: Path | None = None
    _server_started: int | None = None

    async def before_start(self, story: StartStory) -> None:
        """Ask for the user's uid and make the home folder; called by the mixin's `start`."""
        story.say(25, "Asking for the user identity on this machine.")
        await self._identify(story)
        try:
            self.home = make_home(
                Path(self.homes_dir), self.user.name, self.uid or 0, self.gid or 0
            )
            blocked = blocked_folder(self.home.parent) if self.uid != os.geteuid() else None
            if blocked is not None:
                raise PermissionError(
                    f"{blocked} cannot be passed by other uids, and the server runs as uid "
                    f"{self.uid}; set homes_dir to another folder or open that one"
                )
        except OSError as error:
            raise spawn_refused(
                f"The home folder could not be prepared, so the server was not started: {error}.",
                reason="singularity_home",
                status=500,
            ) from None
        story.say(35, f"Home folder ready; the server will run as uid {self.uid}.")

    async def _identify(self, story: StartStory) -> None:
        identity = await self.ask_service("identity", story, self.user.name)
        self.uid, self.gid = int(identity["uid"]), int(identity["gid"])
        if os.geteuid() != 0 and self.uid != os.geteuid():
            raise spawn_refused(
                f"The server has to run as uid {self.uid}, but the Hub runs as uid "
                f"{os.geteuid()} and cannot change it; nothing was started: run the Hub as root, "
                "or the node agent as the Hub's user.",
                reason="singularity_identity",
                status=500,
            )

    def _layer(self) -> Layer | None:
        """Where the user's own packages are; None when there may be none."""
        same = bool(self.cmd) and self.cmd[0] == sys.executable
        if not self.own_packages or self.home is None or not same:
            return None
        return own_packages(str(self.home))

    def get_args(self) -> list[str]:
        """Jupyter refuses to run as root without being told; it is told only when it must."""
        args = list(super().get_args())
        if not any("terminado_settings" in arg for arg in args):
            settings = json.dumps({"shell_command": _terminal()})
            args.append(f"--ServerApp.terminado_settings={settings}")
        if self.uid == 0 and "--allow-root" not in args:
            args.append("--allow-root")
        if find_spec("jupyter_scheduler") and not any("SchedulerApp." in arg for arg in args):
            args += NOTEBOOK_JOBS
        if find_spec("jupyter_scheduler") and self.home is not None:
            # Its own default makes a URL of the path as it is, and a home's name can have a %.
            database = self.home / ".local/share/jupyter/scheduler.sqlite"
            url = sqlite_url(database)
            if url != f"sqlite:///{database}" and not any("SchedulerApp.db_url" in a for a in args):
                args.append(f"--SchedulerApp.db_url={url}")
        return args

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Everything the server writes by default goes below its home folder."""
        if self.home is None:
            return env
        home = str(self.home)
        env.update(
            HOME=home,
            USER=self.user.name,
            LOGNAME=self.user.name,
            SHELL=_shell(),
            JUPYTER_CONFIG_DIR=f"{home}/.jupyter",
            JUPYTER_DATA_DIR=f"{home}/.local/share/jupyter",
            JUPYTER_RUNTIME_DIR=f"{home}/.local/share/jupyter/runtime",
            JUPYTERLAB_SETTINGS_DIR=f"{home}/.jupyter/lab/user-settings",
            JUPYTERLAB_WORKSPACES_DIR=f"{home}/.jupyter/lab/workspaces",
            IPYTHONDIR=f"{home}/.ipython",
            XDG_CONFIG_HOME=f"{home}/.config",
            XDG_CACHE_HOME=f"{home}/.cache",
            XDG_DATA_HOME=f"{home}/.local/share",
        )
        layer = self._layer()
        if layer is not None:
            env["PATH"] = _joined(layer.programs, env.get("PATH") or os.defpath)
            env["JUPYTER_PATH"] = _joined(layer.data, env.get("JUPYTER_PATH"))
        return env

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        """What the forked child does before exec: drop to the user's uid, go home.

        The base class looks `name` up in the password file, where our users need not be.
        """
        uid, gid, home = self.uid, self.gid, self.home
        assert uid is not None
        assert gid is not None
        assert home is not None
        change = os.geteuid() == 0 and uid != 0
        layer = self._layer()

        def preexec() -> None:
            if change:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            os.umask(0o077)
            os.chdir(home)
            if layer is not None:
                _make_layer(layer)

        return preexec

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """With the Hub's internal TLS: hand the server's key and certificate to its uid. The Hub
        calls it before `start`."""
        await self._identify(StartStory())
        for path in paths.values():
            if self.uid is not None and self.gid is not None and os.geteuid() == 0:
                os.chown(path, self.uid, self.gid)
        return paths

    async def _signal(self, sig: int) -> bool:
        """Signal the server; False when it is gone. Used by `poll` and `stop` of the base class.

        After a restart of the Hub the server is no child of ours any more: its pid may be another
        process's by now, or a zombie that nobody reaps.
        """
        try:
            now = read_process(self.pid)
        except OSError as error:  # of this process: too many open files, for one
            self.log.warning(
                "Whether the server runs is not known now (%s): it counts as it was", error
            )
            return True
        if now is None or now.zombie or self._server_started not in (None, now.started):
            return False
        alive: bool = await super()._signal(sig)
        return alive

    async def start(self) -> Any:
        """Start the server and note which process it is."""
        self._revoke_older_tokens()
        url = await super().start()
        process = read_process(self.pid)
        self._server_started = process.started if process else None
        return url

    def _revoke_older_tokens(self) -> None:
        """Delete the API tokens of this server's earlier processes.

        With `will_resume` the Hub keeps a server's token when it stops, for Spawners whose server
        comes back with it. Ours gets a new one at each start, and the old ones would pile up.
        """
        session = object_session(self.orm_spawner) if self.server else None
        if session is None:
            return
        current = APIToken.find(session, self.api_token)
        for token in list(self.user.orm_user.api_tokens):
            if token.note == f"Server at {self.server.base_url}" and token is not current:
                session.delete(token)
        session.commit()

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.pid and self.uid is not None:
            state["identity"] = {"uid": self.uid, "gid": self.gid}
            state["started"] = self._server_started
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        identity = state.get("identity")
        if identity:
            self.uid, self.gid = identity["uid"], identity["gid"]
            self._server_started = state.get("started")

    def clear_state(self) -> None:
        super().clear_state()
        self.uid = self.gid = self.home = self._server_started = None
