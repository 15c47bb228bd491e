"""Commands of `jupyter singularity` as real processes, from a test's event loop: the service that
they ask runs on the same loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
JUPYTER = (str(BIN / "jupyter"), "singularity")
OWN = (str(BIN / "jupyter-singularity"),)
LIMIT_S = 60.0


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def problem(self) -> dict[str, Any]:
        """The problem document on standard error."""
        found: dict[str, Any] = json.loads(self.err)
        return found


class Commands:
    """Runs commands for one user of the service at `url`."""

    def __init__(self, url: str, token: str) -> None:
        self.environment = {
            **os.environ,
            "SINGULARITY_API_URL": url,
            "JUPYTERHUB_API_TOKEN": token,
        }

    async def __call__(
        self, *words: str, program: tuple[str, ...] = OWN, env: Mapping[str, str] | None = None
    ) -> Done:
        async with self.running(*words, program=program, env=env) as process:
            async with asyncio.timeout(LIMIT_S):
                out, err = await process.communicate()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    @contextlib.asynccontextmanager
    async def running(
        self,
        *words: str,
        program: tuple[str, ...] = OWN,
        env: Mapping[str, str] | None = None,
        **streams: Any,
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command that goes on; killed at the end of the block if it still runs then."""
        pipes: dict[str, Any] = {
            "stdin": asyncio.subprocess.DEVNULL,
            "stdout": asyncio.subprocess.PIPE,
            "stderr": asyncio.subprocess.PIPE,
        }
        process = await asyncio.create_subprocess_exec(
            *program, *words, env={**self.environment, **(env or {})}, **{**pipes, **streams}
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


class Terminal:
    """A terminal with a command in it: what it shows, and keys typed into it."""

    def __init__(self, columns: int = 120, lines: int = 30) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.shown = ""
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.ours, self._read)

    def _read(self) -> None:
        try:
            self.shown += os.read(self.ours, 65536).decode(errors="replace")
        except OSError:  # nobody is at the other end any more
            self._loop.remove_reader(self.ours)
        self._changed.set()

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    async def until(self, text: str) -> None:
        """Wait until `text` was shown."""
        async with asyncio.timeout(LIMIT_S):
            while text not in self.shown:
                self._changed.clear()
                await self._changed.wait()

    def close(self) -> None:
        self._loop.remove_reader(self.ours)
        os.close(self.ours)
        os.close(self.theirs)
