"""An emulator of a service that runs as a process of its own on a port of 127.0.0.1."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

TESTS = Path(__file__).resolve().parent.parent


class Emulator:
    """`with Emulator("support.NAME") as server:` runs `main(port)` of that module, or what a
    subclass gives as `command`; it ends with the block."""

    def __init__(self, name: str, folder: Path = TESTS) -> None:
        """`name`: the module, or what is run is called in messages; `folder`: where it is run."""
        self.name, self.folder = name, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the emulator)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def command(self) -> list[str]:
        """What is run; it listens on `port`."""
        return [sys.executable, "-m", self.name, str(self.port)]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self.folder,
        )
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self._log.seek(0)
                    text = self._log.read().decode(errors="replace")
                    self.__exit__()
                    raise RuntimeError(f"{self.name} did not start: {text}") from None
                time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._log.close()
