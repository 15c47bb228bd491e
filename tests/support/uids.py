"""Whether this machine can give Hub users uids of their own; who needs it skips with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OWN_UID = 1_900_009_000


def blocked_folder() -> Path | None:
    """The first folder on the way to this Python environment that other uids cannot enter."""
    for start in (sys.prefix, sys.base_prefix, __file__):
        path = Path(start).resolve()
        for folder in (path, *path.parents):
            if folder.is_dir() and not folder.stat().st_mode & 0o001:
                return folder
    return None


OWN_UIDS = os.geteuid() == 0 and blocked_folder() is None
"""Root, and an environment that other uids can read: sessions run under uids of their users."""

needs_own_uids = pytest.mark.skipif(
    not OWN_UIDS, reason="needs root and a checkout that other uids can read"
)
skip_root_alone = pytest.mark.skipif(
    os.geteuid() == 0 and not OWN_UIDS, reason="root in a checkout that other uids cannot read"
)


def run_without_root(script: Path, home: Path, timeout: float) -> dict[str, Any]:
    """Run a program of ours as a user who is not root, whose home is `home`; return the JSON object
    that it prints. Skips the test where it prints that it cannot be (`why`)."""
    home.chmod(0o777)
    done = subprocess.run(
        [sys.executable, str(script)],
        user=OWN_UID,
        group=OWN_UID,
        extra_groups=[],
        env={**os.environ, "TMPDIR": str(home), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if "user_namespace" not in found:
        pytest.skip(found["why"])
    return found
