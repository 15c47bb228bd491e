"""The test double of the driver's process checkpoint (`driver_double.c`), and what it is told."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("driver_double.c")


def build(folder: Path) -> str:
    """Compile it in `folder`; returns the library's path. Skips the test without a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    path = folder / "libdouble.so"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, SOURCE]
    subprocess.run(command, check=True, timeout=60)
    return str(path)


class Double:
    """The folder that $DRIVER_DOUBLE names: what was called, and what will go wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, *lines: str) -> None:
        (self.folder / "plan").write_text("".join(f"{line}\n" for line in lines))

    def calls(self) -> list[str]:
        path = self.folder / "log"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []
