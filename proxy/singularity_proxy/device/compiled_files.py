"""Where compiled graphs keep their files: one folder per user, which nobody else can write.

The code in it is loaded into device proxies, so a folder that another user could have prepared is
never used.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import stat
import tempfile
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def folder() -> Path:
    """The user's folder, made when missing; a fresh one when it is not only this user's."""
    path = Path(tempfile.gettempdir()) / f"singularity-compiled-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if is_private(path):
        return path
    return Path(tempfile.mkdtemp(prefix="singularity-compiled-"))


def is_private(path: Path) -> bool:
    """Whether `path` is a real folder of this user that only they can enter."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return (
        stat.S_ISDIR(info.st_mode)
        and info.st_uid == os.geteuid()
        and not stat.S_IMODE(info.st_mode) & 0o077
    )


_chosen: Path | None = None


def compiler() -> str | None:
    """The C++ compiler of this machine: the last word of CXX ("ccache g++") when that is one, or a
    usual one. None: a cpu device runs graphs operator by operator."""
    named = shlex.split(os.environ.get("CXX", ""))[-1:]
    return next(filter(None, map(shutil.which, (*named, "g++", "clang++", "c++"))), None)


def prepare() -> None:
    """Inductor's files go to `folder()` from here on. Called before each compilation: what compiles
    later (Triton, at the first run) reads the same environment."""
    global _chosen
    if _chosen is None or not is_private(_chosen):
        _chosen = folder()
        os.environ[VARIABLE] = str(_chosen)
        os.environ["TRITON_CACHE_DIR"] = str(_chosen / "triton")
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # no helper processes
