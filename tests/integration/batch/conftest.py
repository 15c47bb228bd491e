"""A platform for the runs of one module, and its user ada."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_proxy import build
from support.batch_runs import Runs
from support.kernel_platform import Platform, platform


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Platform]:
    build.build()
    folder = Path(os.environ["TMPDIR"]) / request.module.__name__.rpartition("_")[2]
    folder.mkdir(mode=0o711)
    with platform(folder) as found:
        yield found


@pytest.fixture
def runs(running: Platform, short_dir: Path) -> Runs:
    short_dir.chmod(0o777)  # ada's own, whatever uid that is
    return Runs(running, short_dir)
