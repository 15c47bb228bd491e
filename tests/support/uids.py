"""Whether this machine can give Hub users uids of their own; who needs it skips with the reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


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
