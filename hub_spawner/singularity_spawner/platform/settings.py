"""What one run of the platform was started with, kept in its state folder.

The next run reads it to clean up after one that was killed; the Hub's configuration reads it to
know ports and paths. Secrets are in files of their own.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

MARK = "JUPYTER_SINGULARITY_RUN"
"""Environment variable that every process of a run carries; its value is `Settings.instance`."""


_PAGE_CONFIG = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
"""JupyterLab would ask each new user whether it may fetch news from the internet."""


@dataclass(frozen=True)
class StateFolder:
    """The names inside a state folder. The folder itself is passable (0711) and not listable: the
    homes below it belong to other uids; everything else in it is 0600 or 0700."""

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / "platform.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def hub_config(self) -> Path:
        return self.path / "jupyterhub_config.py"

    @property
    def hub_db(self) -> Path:
        return self.path / "hub.sqlite"

    @property
    def hub_log(self) -> Path:
        return self.path / "hub.log"

    @property
    def operator_token(self) -> Path:
        """The token of the platform's own account; the scheduler knows it without the Hub."""
        return self.path / "platform_token"

    @property
    def homes(self) -> Path:
        return self.path / "homes"

    @property
    def scheduler(self) -> Path:
        return self.path / "scheduler"

    @property
    def server_config(self) -> Path:
        """A folder of Jupyter configuration that all single-user servers read."""
        return self.path / "server-config"

    def create(self) -> None:
        """Make the folder and what the Hub would create with wider modes; idempotent."""
        self.path.mkdir(parents=True, exist_ok=True)
        os.chmod(self.path, 0o711)
        self.homes.mkdir(exist_ok=True)
        os.chmod(self.homes, 0o711)
        self.scheduler.mkdir(exist_ok=True)
        os.chmod(self.scheduler, 0o700)
        lab = self.server_config / "labconfig"
        for folder in (self.server_config, lab):
            folder.mkdir(exist_ok=True)
            os.chmod(folder, 0o755)
        page = lab / "page_config.json"
        page.write_text(json.dumps(_PAGE_CONFIG))
        os.chmod(page, 0o644)
        for private in (self.hub_db, self.hub_log, self.lock):
            private.touch(mode=0o600)
            os.chmod(private, 0o600)

    def secret(self, name: str, length: int = 32) -> str:
        """The secret kept in the file `name` (0600), made at its first use: `length` letters and
        digits that cannot be mistaken for each other."""
        path = self.path / name
        if path.exists():
            os.chmod(path, 0o600)
            return path.read_text().strip()
        alphabet = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
        value = "".join(secrets.choice(alphabet) for _ in range(length))
        write_private(path, value + "\n")
        return value


@dataclass(frozen=True)
class Settings:
    """One run. Ports are on 127.0.0.1."""

    state_dir: str
    port: int
    hub_port: int
    proxy_api_port: int
    service_port: int
    devices: int
    proxy_command: list[str]
    path: str
    """PATH of the Hub and of what it starts."""
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    service_args: list[str] = field(default_factory=list)
    spawn_defaults: dict[str, int | str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    """Names of several nodes; empty: one."""
    version: str = ""
    """Of the package that started it: another one does not take it over."""
    netns: dict[str, str] = field(default_factory=dict)
    """Node -> network namespace, made for this run; empty: all are in the machine's own."""

    @property
    def folder(self) -> StateFolder:
        return StateFolder(Path(self.state_dir))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def service_url(self) -> str:
        """Where the scheduler service listens."""
        return f"http://127.0.0.1:{self.service_port}"

    @property
    def hub_url(self) -> str:
        """Where the Hub itself listens, behind its proxy."""
        return f"http://127.0.0.1:{self.hub_port}"

    @property
    def proxy_api_url(self) -> str:
        """Where the Hub's proxy takes its routes."""
        return f"http://127.0.0.1:{self.proxy_api_port}"

    @property
    def runtime_dir(self) -> str:
        """Folder of the agent's sockets: short, because socket paths are limited to 107 bytes."""
        return f"/tmp/singularity-{self.instance}"

    @property
    def shm_dir(self) -> str:
        """Folder of the rings and snapshots, in memory."""
        return f"/dev/shm/singularity-{self.instance}"

    @property
    def network(self) -> str:
        """What the run's network namespaces and bridge are named after."""
        return self.instance[:8]

    @property
    def memory(self) -> list[str]:
        """Folders outside of the state folder that nobody needs after the run."""
        folders = [self.runtime_dir, self.shm_dir]
        return folders + [f"{folder}-{node}" for folder in folders for node in self.nodes]

    @property
    def fleet_args(self) -> list[str]:
        """The service's command-line arguments about its nodes. Folders are known in advance, so
        that the next run can clean up after one that was killed."""
        return [
            f"--LocalFleet.runtime_dir={self.runtime_dir}",
            f"--LocalFleet.shm_dir={self.shm_dir}",
            *(f"--LocalFleet.nodes={node}" for node in self.nodes),
            *(f"--LocalFleet.netns={node}={name}" for node, name in self.netns.items()),
        ]

    def save(self) -> None:
        write_private(self.folder.settings, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: StateFolder) -> Settings | None:
        """Those of the last run in `folder`, or None when there are none that can be read."""
        try:
            return cls(**json.loads(folder.settings.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)
