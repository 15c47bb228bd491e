"""Notebooks of one user in one home, on a platform of the tests of this folder that ask for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy import build
from support.kernel_homes import home_of
from support.kernel_platform import Platform, platform


@pytest.fixture(scope="module")
def running() -> Iterator[Platform]:
    build.build()
    folder = Path(tempfile.mkdtemp(prefix="k", dir=os.environ["TMPDIR"]))
    folder.chmod(0o711)
    with platform(folder) as found:
        yield found


@pytest.fixture
def home(running: Platform, monkeypatch: pytest.MonkeyPatch, short_dir: Path) -> Iterator[Path]:
    """The home of ada, in the environment of her server."""
    ada, environment = running.identity("ada"), running.environment("ada")
    with home_of(ada, short_dir, monkeypatch, environment) as found:
        yield found
