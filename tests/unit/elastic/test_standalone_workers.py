"""A worker of a standalone session ends while its devices are being changed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from singularity_proxy.standalone import Standalone
from singularity_proxy.standalone.workers import Ring


class Proxy:
    """Serves one ring, and is replaced while it is asked to close it."""

    def __init__(self, session: Standalone) -> None:
        self.peer, self.attached, self._session = self, {"ring"}, session

    async def call(self, name: str, **_: Any) -> dict[str, Any]:
        self._session._proxies["cpu:1"] = self  # type: ignore[assignment]
        await asyncio.sleep(0)
        return {}


@pytest.mark.asyncio
async def test_what_the_worker_leaves_is_removed(tmp_path: Path) -> None:
    session = Standalone(devices=2)
    session._loop.close()
    session.shm = tmp_path
    session._proxies = {"cpu:0": Proxy(session)}  # type: ignore[dict-item]
    (tmp_path / "ring.ring").touch()
    child = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220
    try:
        await session._until_ended(Ring("ring", 0, None), child.pid)  # type: ignore[arg-type]
        stats = await session._stats()
    finally:
        child.wait()
    assert os.listdir(tmp_path) == []
    assert len(stats) == 2
