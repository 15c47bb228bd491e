"""Where compiled graphs keep their files: one folder per user, which nobody else can write.

The code in it is loaded into device proxies, so a folder that another user could have prepared is
never used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
MAX_BYTES = 1 << 30
"""What the folder may hold; beyond it the files that were not used for longest go."""
KEPT_SECONDS = 600.0
"""A file that was used within this time stays: Triton compiles while a graph runs."""
COMPILATIONS_PER_LOOK = 16
"""Adding up the folder takes as long as it has files."""
_LOCK = ".lock"
_TRITON = "triton"
_LEAVING = "leaving"


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


def trim(path: Path, max_bytes: int = MAX_BYTES) -> int:
    """Removes files of `path`, the least recently used first, until `max_bytes` are left; -> bytes
    removed. A folder of `triton` goes as a whole: triton takes what lies in it for complete. Keeps
    what a living process has loaded; does nothing while anyone compiles."""
    with _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB) as alone:
        if not alone:
            return 0
        items = _items(path)
        total = sum(item.size for item in items)
        if total <= max_bytes:
            return 0
        loaded, young = _loaded_files(str(path)), time.time() - KEPT_SECONDS
        removed = 0
        for item in sorted(items, key=lambda item: item.used):
            if total - removed <= max_bytes or item.used > young:
                break
            if not loaded.isdisjoint(item.files):
                continue
            with contextlib.suppress(OSError):
                item.remove()
                removed += item.size
        return removed


@dataclass
class _Item:
    """What is removed together: one file, or a folder with its files."""

    folder: str = ""
    files: list[str] = field(default_factory=list)
    used: float = 0.0
    size: int = 0

    def remove(self) -> None:
        if not self.folder:
            os.unlink(self.files[0])
            return
        # Under another name first: nobody may find half of it, also when this process ends now.
        leaving = f"{self.folder}.{_LEAVING}-{os.getpid()}"
        os.rename(self.folder, leaving)
        shutil.rmtree(leaving)


def _items(path: Path) -> list[_Item]:
    """Everything in `path` that may be removed."""
    found: dict[str, _Item] = {}
    for root, _, names in os.walk(path):
        place = Path(root).relative_to(path).parts
        whole = str(path.joinpath(*place[:2])) if place[:1] == (_TRITON,) and place[1:] else ""
        for name in names:
            if name == _LOCK and not place:
                continue
            file = os.path.join(root, name)
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(file)
                item = found.setdefault(whole or file, _Item(whole))
                item.files.append(file)
                item.used = max(item.used, info.st_atime, info.st_mtime)
                item.size += info.st_size
    return list(found.values())


def _loaded_files(below: str) -> set[str]:
    """Files under `below` that a process of this user has mapped."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            for line in (process / "maps").read_text(errors="replace").splitlines():
                _, slash, name = line.partition(below + "/")
                if slash:
                    found.add(slash + name)
    return found


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[bool]:
    """Holds the folder's lock; -> False when it was not to be had at once."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, how)
            got = True
        except BlockingIOError:
            got = False
        yield got
    finally:
        os.close(lock)


_compilations = 0


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Around each compilation, of one thread at a time: nobody removes files meanwhile. Afterwards
    the folder is cut down to `MAX_BYTES`, if it is time to look."""
    global _compilations
    prepare()
    assert _chosen is not None
    with _locked(_chosen, fcntl.LOCK_SH):
        yield
    if _compilations % COMPILATIONS_PER_LOOK == 0:
        with contextlib.suppress(OSError):
            trim(_chosen)
    _compilations += 1


def prepare() -> None:
    """Inductor's files go to `folder()` from here on. Called before each compilation: what compiles
    later (Triton, at the first run) reads the same environment."""
    global _chosen
    if _chosen is None or not is_private(_chosen):
        _chosen = folder()
        os.environ[VARIABLE] = str(_chosen)
        os.environ["TRITON_CACHE_DIR"] = str(_chosen / _TRITON)
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # no helper processes
