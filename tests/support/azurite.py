"""Azurite, Microsoft's emulator of Azure Blob, on a port of its own of 127.0.0.1."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from singularity_spawner.platform.tools import search_path

ROOT = Path(__file__).resolve().parent.parent.parent
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Its well-known key: everybody's, and of no use anywhere else."""


def command() -> list[str] | None:
    """How to start it; None where it is not installed."""
    node = shutil.which("node", path=search_path())  # not a launcher, which dies and leaves it
    for root in (ROOT, Path(sys.prefix).parent):  # the checkout, or the one of the environment
        script = root / "node_modules/azurite/dist/src/blob/main.js"
        if node and script.exists():
            return [node, str(script)]
    return None


class Azurite:
    """`with Azurite() as server:` runs one; it ends with the block."""

    def __init__(self, *args: str, memory: bool = True) -> None:
        """`memory`: what is stored is held in memory, else in a temporary folder."""
        self._process: subprocess.Popen[bytes] | None = None
        self._where = ["--inMemoryPersistence", *args]
        self.folder = Path(tempfile.mkdtemp(prefix="azurite-"))
        if not memory:
            self._where = ["--location", str(self.folder), *args]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    @property
    def options(self) -> dict[str, Any]:
        """For `open_store`."""
        return {"account_key": KEY, "create_container": True}

    def __enter__(self) -> Azurite:
        argv = command()
        assert argv is not None, "Azurite is not installed: ./dev setup"
        argv += ["--silent", "--disableTelemetry", "--blobHost", "127.0.0.1"]
        argv += ["--blobPort", str(self.port), *self._where]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    text = (self.folder / "log").read_text()
                    self.__exit__()
                    raise RuntimeError(f"Azurite did not start: {text}") from None
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
