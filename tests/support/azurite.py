"""Azurite, Microsoft's emulator of Azure Blob, on a port of its own of 127.0.0.1."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from singularity_spawner.platform.tools import search_path
from support.emulator import Emulator

ROOT = Path(__file__).resolve().parent.parent.parent
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Its well-known key: everybody's, and of no use anywhere else."""


class Azurite(Emulator):
    """`with Azurite() as server:` runs one that holds in memory what is stored."""

    def __init__(self, *options: str) -> None:
        # In a folder of its own, for it writes a few files where it runs.
        super().__init__("Azurite", Path(tempfile.mkdtemp(prefix="azurite-")))
        self._options = options

    def command(self) -> list[str]:
        node = shutil.which("node", path=search_path())  # not a launcher, which dies and leaves it
        for root in (ROOT, Path(sys.prefix).parent):  # the checkout, or the one of the environment
            script = root / "node_modules/azurite/dist/src/blob/main.js"
            if node and script.exists():
                return [
                    *(node, str(script), "--silent", "--disableTelemetry", "--inMemoryPersistence"),
                    *("--blobHost", "127.0.0.1", "--blobPort", str(self.port), *self._options),
                ]
        raise AssertionError("Azurite is not installed: ./dev setup")

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"{self.address}/{ACCOUNT}"

    @property
    def options(self) -> dict[str, Any]:
        """For `open_store`."""
        return {"account_key": KEY, "create_container": True}
