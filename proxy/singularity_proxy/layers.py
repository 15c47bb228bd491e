"""Layers: Python environments of a user's own over the one that everybody shares.

A layer is a virtual environment whose packages go before those of the shared one, which it sees as
well: pip in it counts them as installed, and writes into the layer alone. Its processes load the
`.pth` files of the shared environment too, ours among them, so those of a session are under the
device proxy. The spawner makes one in each home; `jupyter singularity environment` makes others.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import site
import stat
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass

LINK = "~shared_environment.pth"
"""In a layer's packages: how it sees those of the shared environment. Python reads such files in
the order of their names, and each adds its folders behind those before: this one comes after that
of any package, as what the layer has as a checkout (`pip install -e`) goes before shared ones."""

OLD_LINK = "_shared_environment.pth"
"""How `LINK` was called in layers that went before such checkouts."""

_SHARED = re.compile(r"addsitedir\('([^']+)'\)")
"""A folder of the shared environment's packages in the text of `LINK`."""

_CHECKOUTS = (
    "sys.meta_path.sort(key=lambda finder: not str(getattr(finder, '__module__', ''))"
    ".startswith(('__editable__', 'editables.')))"
)
"""In `LINK`: finders of checkouts in the layer (of setuptools, and of hatch), which put themselves
behind the finder of all folders, go before it: before the shared packages, that is."""

MAX_BYTES = 64 << 10
"""Of a file that is a layer's own; those that `make` writes have far less."""

_PIP = """\
#!/bin/sh
exec "$(dirname -- "$0")/python" -m pip "$@"
"""


@dataclass(frozen=True)
class Layer:
    """A layer in `folder` over the environment that this process runs in."""

    folder: str

    @property
    def programs(self) -> str:
        """Its folder of programs, for PATH."""
        return os.path.join(self.folder, "bin")

    @property
    def data(self) -> str:
        """Where its packages have files for Jupyter, for JUPYTER_PATH."""
        return os.path.join(self.folder, "share", "jupyter")

    @property
    def is_shared(self) -> bool:
        """Whether `folder` is that of the shared environment itself, which cannot be a layer."""
        packages = os.path.realpath(_packages(self.folder))
        return packages in map(os.path.realpath, _SHARED.findall(_link()))

    def make(self) -> None:
        """Make it, or what of it is missing or older; packages in it stay.

        Raises OSError."""
        short = f"python3.{sys.version_info.minor}"
        files = {
            os.path.join(self.folder, "pyvenv.cfg"): (_configuration(), 0o644),
            os.path.join(_packages(self.folder), LINK): (_link(), 0o644),
        }
        for name in ("pip", "pip3", f"pip3.{sys.version_info.minor}"):
            files[os.path.join(self.programs, name)] = (_PIP, 0o755)
        links = {"bin/python": _base(), "bin/python3": "python", f"bin/{short}": "python"}
        if sys.maxsize > 1 << 32:
            links["lib64"] = "lib"
        for path in (*files, self.programs):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        for path, target in links.items():
            _put_link(os.path.join(self.folder, path), target)
        for path, (text, mode) in files.items():
            put_file(path, text, mode)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(_packages(self.folder), OLD_LINK))


def own_packages(home: str) -> Layer:
    """The layer that a user with this home has without asking; one for each version of Python."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Layer(os.path.join(home, ".local", "share", "jupyter-singularity", name))


def is_over_this(python: str) -> bool:
    """Whether `python` is that of a layer over the environment that this process runs in."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    return _read(os.path.join(_packages(prefix), LINK)) == _link()


def first_python(environ: Mapping[str, str]) -> str | None:
    """The Python of the layer over this environment that PATH names before all other ones; None
    when it names another Python first."""
    found = shutil.which("python", path=environ.get("PATH"))
    return found if found is not None and is_over_this(found) else None


def _packages(prefix: str) -> str:
    """Where a virtual environment with this prefix has its packages."""
    return sysconfig.get_path("purelib", "venv", {"base": prefix, "platbase": prefix})


def _base() -> str:
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def _configuration() -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"home = {os.path.dirname(_base())}\n"
        "include-system-site-packages = false\n"
        f"version = {version}\n"
        f"executable = {os.path.realpath(_base())}\n"
    )


def _link() -> str:
    """The text of `LINK` in a layer over this environment; in a layer, of one beside it."""
    own = _read(os.path.join(_packages(sys.prefix), LINK))
    if own is not None:
        return own
    calls = "; ".join(f"site.addsitedir({folder!r})" for folder in site.getsitepackages())
    return f"import site, sys; {_CHECKOUTS}; {calls}\n"


def _read(path: str) -> str | None:
    """The text of a small file; None where there is none. The Hub waits for this in a user's home,
    so nothing else than a plain file is opened, and of a large one no more is read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return file.read(MAX_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            return None


def put_file(path: str, text: str, mode: int) -> None:
    """Write so that `path` is the old file or the new one at any moment, never half of one."""
    if _read(path) == text:
        return
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(new, mode)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _put_link(path: str, target: str) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(path) == target:
            return
    new = f"{path}.{os.getpid()}"
    os.symlink(target, new)
    try:
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise
