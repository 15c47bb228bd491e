"""Real capsules for tests: a session's folders, a launcher, what must not be left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.capsule import namespace
from singularity_proxy.capsule.images import criu
from singularity_proxy.capsule.launcher import CapsuleSpec
from singularity_proxy.capsule.lease_word import LeaseWord
from singularity_proxy.capsule.namespace import NamespaceCapsule, NamespaceLauncher

from . import uids
from .uids import OWN_UID

LAUNCHER, WHY = namespace.probe()
needs_namespaces = pytest.mark.skipif(LAUNCHER is None, reason=WHY)


@cache
def _criu() -> criu.Criu:
    return criu.probe()


needs_criu = pytest.mark.skipif(LAUNCHER is None or not _criu().ok, reason=_criu().reason)


class Place:
    """The folders of one session: `with Place() as place`. A root that may gives it an own uid."""

    def __init__(self, number: int = 0) -> None:
        self.uid = OWN_UID + number if uids.OWN_UIDS else os.geteuid()
        self.session = uuid.uuid4().hex[:12]
        self.capsules: list[NamespaceCapsule] = []
        self.words: list[LeaseWord] = []

    def __enter__(self) -> Place:
        self.root = Path(tempfile.mkdtemp(prefix="cp-"))
        self.root.chmod(0o711)
        self.folder, self.tmp, self.home = (self.root / n for n in ("s", "s/tmp", "home"))
        self.shm = Path("/dev/shm") / f"cp-{self.session}"
        for folder in (self.folder, self.tmp, self.home, self.shm):
            folder.mkdir(mode=0o700)
            os.chown(folder, self.uid, self.uid if uids.OWN_UIDS else -1)
        self.tmp.chmod(0o1777)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)

    def spec(self, *argv: str, **more: Any) -> CapsuleSpec:
        own = uids.OWN_UIDS
        values: dict[str, Any] = {
            "argv": argv,
            "env": {
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "OMP_NUM_THREADS": "1",
            },
            "cwd": str(self.home),
            "log_path": str(self.folder / "capsule.log"),
            "uid": self.uid if own else None,
            "gid": self.uid if own else None,
            "tmp": str(self.tmp),
            "keep": (str(self.folder), str(self.shm)),
        }
        return CapsuleSpec(**{**values, **more})

    async def start(self, *argv: str, **more: Any) -> NamespaceCapsule:
        assert LAUNCHER is not None
        capsule = await LAUNCHER.start(self.spec(*argv, **more))
        self.capsules.append(capsule)
        return capsule

    async def python(self, code: str, **more: Any) -> NamespaceCapsule:
        return await self.start(sys.executable, "-c", code, **more)

    async def prepare(self, **more: Any) -> NamespaceCapsule:
        """An empty capsule to restore in."""
        assert isinstance(LAUNCHER, NamespaceLauncher)
        capsule = await LAUNCHER.prepare(self.spec("unused", **more))
        self.capsules.append(capsule)
        return capsule

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "capsule.log").read_text()
        return ""

    async def until(self, true: Callable[[], bool], timeout: float = 30) -> None:
        deadline = asyncio.get_running_loop().time() + timeout
        while not true():
            assert asyncio.get_running_loop().time() < deadline, self.log()
            await asyncio.sleep(0.005)

    async def logged(self, text: str) -> None:
        await self.until(lambda: text in self.log())

    def lease(self) -> LeaseWord:
        """The word of this place's capsules; pass its path as `lease`."""
        self.words.append(LeaseWord(str(self.root / "lease")))
        return self.words[-1]

    async def close(self) -> None:
        for word in self.words:
            word.close()
        for capsule in self.capsules:
            await capsule.end(0)


class Places:
    """`async with Places() as place`: a place whose capsules are ended at the end."""

    def __init__(self, number: int = 0) -> None:
        self.place = Place(number)

    async def __aenter__(self) -> Place:
        return self.place.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await self.place.close()
        self.place.__exit__()
