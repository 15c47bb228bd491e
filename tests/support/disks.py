"""A small file system that a test can fill up; needs root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextlib.asynccontextmanager
async def small_disk(path: Path, megabytes: int) -> AsyncIterator[Path]:
    """A file system of its own at `path`; yields a file that fills it up when written by `fill`."""
    os.mkdir(path)
    size = f"size={megabytes}m,mode=755"
    await asyncio.to_thread(
        subprocess.run, ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path)], check=True
    )
    try:
        yield path / "filler"
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", "-l", str(path)], check=True)


def fill(filler: Path) -> None:
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
