"""What this installation is: its version, and where it keeps its state."""

from __future__ import annotations

import os
from importlib import metadata


def own_version() -> str:
    """Return the version of the installed distribution; "" when it runs from a bare checkout."""
    try:
        return metadata.version("jupyter-singularity")
    except metadata.PackageNotFoundError:
        return ""


def default_state_dir() -> str:
    """Return where the scheduler service keeps its state unless it is told otherwise:
    jupyter-singularity in $XDG_STATE_HOME or ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "jupyter-singularity")
