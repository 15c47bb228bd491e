"""The home of a user, and several notebooks in it, which leave and come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from singularity_scheduler.client import ServiceClient
from support.kernel_notebooks import Notebook, manager
from support.kernel_platform import server_as


@contextlib.contextmanager
def home_of(
    identity: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch, environment: dict[str, str]
) -> Iterator[Path]:
    """Make `folder` the home of a user, with what the spawner sets in the environment of the user's
    server; kernels that this process starts belong to that server meanwhile."""
    if identity["mapped"]:
        os.chown(folder, identity["uid"], identity["gid"])
    home = dict.fromkeys(("HOME", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"), folder)
    for name, value in {**environment, **home}.items():
        patch.setenv(name, str(value))
    patch.chdir(folder)
    with server_as(identity):
        yield folder


class Notebooks:
    """Open notebooks of one user, and every line that was run in them."""

    def __init__(self, home: Path, opened: list[Notebook]) -> None:
        self.shared = home / "profile_default/history.sqlite"
        self.opened = opened
        self.service = ServiceClient.from_environment()
        self.lines: Counter[str] = Counter()
        self.away: set[int] = set()

    async def run(self, number: int, code: str) -> str:
        self.lines[code] += 1
        return await self.opened[number].run(code)

    async def work(self, number: int) -> None:
        """A line that nobody else ran, and what was there before is still there."""
        done = self.lines.total()
        said = await self.run(number, f"mine = globals().get('mine', 0) + 1; print({done}, mine)")
        assert said.startswith(f"{done} "), said

    async def suspend(self, number: int) -> None:
        await self.service.suspend(self.opened[number].session)
        self.away.add(number)

    async def resume(self, number: int) -> None:
        back = await self.service.resume(self.opened[number].session)
        assert (back["loss"] or {}).get("lost", []) == [], back["loss"]
        self.away.discard(number)

    async def close(self) -> None:
        for notebook in self.opened:
            notebook.client.stop_channels()
            await notebook.manager.shutdown_kernel(now=True)
            notebook.manager.context.destroy(linger=0)
        for _ in range(600):  # their ends
            if not await self.service.sessions("active"):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the sessions did not end")

    def check(self) -> None:
        """After all have ended: the shared history is whole, and has every line once."""
        db = sqlite3.connect(self.shared)
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        found = Counter(raw for (raw,) in db.execute("select source_raw from history"))
        db.close()
        assert found == self.lines
        assert list(self.shared.parent.glob("*corrupt*")) == []
        assert list(self.shared.parent.glob("*.after-*")) == []


@contextlib.asynccontextmanager
async def notebooks(home: Path, tmp_path: Path, count: int) -> AsyncIterator[Notebooks]:
    opened = []
    for number in range(count):
        folder = tmp_path / f"n{number}"
        folder.mkdir(parents=True)
        kernel = manager(folder)
        await kernel.start_kernel()
        notebook = Notebook(kernel)
        notebook.client.start_channels()
        opened.append(notebook)
    found = Notebooks(home, opened)
    try:
        for notebook in opened:
            await notebook.client.wait_for_ready(timeout=60)
        yield found
    finally:
        await found.close()
