"""A page in a real browser, told what to do by a test; by a script in `tests/e2e/browser`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from singularity_spawner.platform import Platform

SCRIPTS = Path(__file__).resolve().parents[1] / "e2e" / "browser"


class Page:
    """A browser page; `do` takes one step of its script."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self.folder = folder
        """Where it leaves pictures."""

    async def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 100)
        assert line, "the browser ended"
        found: dict[str, Any] = json.loads(line)
        assert "failed" not in found, json.dumps(found, indent=1)
        return found

    async def do(self, *words: str) -> dict[str, Any]:
        await self._send(json.dumps(words))
        return await self.read()

    async def end(self) -> list[str]:
        """Its errors."""
        await self._send("end")
        errors: list[str] = (await self.read())["errors"]
        return errors

    async def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()


@asynccontextmanager
async def page_of(script: str, folder: Path, **task: str) -> AsyncIterator[Page]:
    """`task`: what the script begins with; pictures are left in `folder`."""
    chromium = next(
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    )
    task |= {"chromium": chromium, "folder": str(folder)}
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SCRIPTS / script),
        env={**os.environ, "BROWSER_TEST": json.dumps(task)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=4 << 20,
        start_new_session=True,
    )
    page = Page(process, folder)
    try:
        assert (await page.read()) == {"ready": True}
        yield page
        await asyncio.wait_for(process.wait(), 30)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # `node` may be a launcher of the real one
            await process.wait()


def lab_page(platform: Platform, lab: str, folder: Path) -> AbstractAsyncContextManager[Page]:
    """A page of alice, logged in at the Hub, at `lab`: a page of her JupyterLab or Notebook 7."""
    return page_of(
        "extension.cjs",
        folder,
        login=f"{platform.url}hub/login",
        user="alice",
        password=platform.password,
        lab=lab,
    )
