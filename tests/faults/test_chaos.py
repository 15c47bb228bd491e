"""The chaos campaign, in a full run: a minute of it, then half an hour. See `tests/chaos`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.capsules import needs_criu
from support.uids import needs_own_uids

ROOT = Path(__file__).parents[2]

pytestmark = [needs_criu, needs_own_uids, pytest.mark.root]


def campaign(tmp_path: Path, seed: int, minutes: float) -> None:
    """Run one; it fails with what was violated, and keeps the logs where pytest keeps its files."""
    command = [sys.executable, "-m", "chaos", "--seed", str(seed), "--minutes", str(minutes)]
    path = f"{ROOT / 'tests'}:{ROOT}"
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "chaos"), "--json", str(tmp_path / "report.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-20000:]}\n{done.stdout[-3000:]}"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_minute_of_chaos_breaks_no_promise(tmp_path: Path) -> None:
    campaign(tmp_path, seed=1, minutes=1.2)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_half_an_hour_of_chaos_breaks_no_promise(tmp_path: Path) -> None:
    campaign(tmp_path, seed=2, minutes=30.0)
