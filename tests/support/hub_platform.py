"""Platforms for tests, and a person's way through the Hub's pages without a browser."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import requests
from singularity_scheduler.fleet import namespaces
from singularity_spawner.platform import Platform
from singularity_spawner.platform.ports import free_ports
from singularity_spawner.platform.processes import of_run


def state_folder():
    """A new folder for a platform's state: short, and open for servers under other uids."""
    folder = Path(tempfile.mkdtemp(prefix="state-"))
    folder.chmod(0o711)
    return folder


@contextlib.asynccontextmanager
async def running_platform(**kwargs):
    """`async with` a started `Platform` in a folder of its own; checks that nothing is left."""
    folder = state_folder()
    try:
        # Not the default port: another test run on this machine may be about to take it.
        async with Platform(folder, **{"port": free_ports(1)[0], **kwargs}) as platform:
            try:
                yield platform
            except BaseException:
                print(platform.folder.hub_log.read_text(errors="replace")[-20000:])
                raise
            settings = platform.settings
        assert left_of(settings) == []
    finally:
        shutil.rmtree(folder)


def left_of(settings):
    """What a run that is over left behind: processes, folders in memory and in /tmp."""
    processes = [Path(f"/proc/{p.pid}/cmdline").read_text() for p in of_run(settings.instance)]
    folders = [path for path in settings.memory if Path(path).exists()]
    links = [f"/sys/class/net/{name}" for name in os.listdir("/sys/class/net")]
    networks = [*links, *map(str, Path(namespaces.NAMESPACES).glob("*"))]
    return processes + folders + [n for n in networks if f"sg{settings.network}" in n]


class Person:
    """Somebody with a browser who logs in as `name`."""

    def __init__(self, url, name, password):
        self.url = url.rstrip("/")
        self.name = name
        self.web = requests.Session()
        self.password = password

    def close(self):
        self.web.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def login(self):
        """Log in; True when the password was right."""
        self.web.get(f"{self.url}/hub/login", timeout=20).raise_for_status()
        answer = self.web.post(
            f"{self.url}/hub/login",
            data={"username": self.name, "password": self.password, "_xsrf": self._xsrf()},
            allow_redirects=False,
            timeout=20,
        )
        return answer.status_code == 302

    def spawn_page(self):
        """The HTML of the spawn page."""
        answer = self.web.get(f"{self.url}/hub/spawn/{self.name}", timeout=20)
        answer.raise_for_status()
        return answer.text

    def submit(self, **fields):
        """Send the spawn form; the answer, redirects not followed."""
        return self.web.post(
            f"{self.url}/hub/spawn/{self.name}",
            params={"_xsrf": self._xsrf()},
            data=fields,
            allow_redirects=False,
            timeout=60,
        )

    def _xsrf(self):
        return self.web.cookies.get("_xsrf", path="/hub/")


def error_on(page):
    """The error sentence on a spawn page, "" when there is none."""
    found = re.search(r'class="spawn-error-msg[^"]*">(.*?)</p>', page, re.S)
    return re.sub(r"<[^>]+>|\s+", " ", found[1]).strip() if found else ""


def environment_of(pid):
    """The environment of another process."""
    data = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in data.split("\0") if "=" in item)


def uid_of(pid):
    """The uid another process runs as."""
    return os.stat(f"/proc/{pid}").st_uid
