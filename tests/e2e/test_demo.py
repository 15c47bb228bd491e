"""The unattended tour, exactly as `./dev demo` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_the_demo_passes_every_check() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("jupyter-singularity")), "demo"],
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every check holds." in done.stdout
    assert "FAILED" not in done.stdout
