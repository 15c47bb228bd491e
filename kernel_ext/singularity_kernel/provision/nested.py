"""Kernels that are started inside a session, as plain children of whoever starts them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def start_child(cmd: Sequence[str], kwargs: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Start a nested kernel in a process group of its own; `kwargs` are jupyter_client's, with
    ``env`` and ``cwd``. Called by the provisioner.

    jupyter_client would make a session (setsid), which Linux schedules as one group: a worker that
    yields the core it shares with its device proxy would yield to nobody, and every device call
    would cost a time slice.
    """
    return subprocess.Popen(
        [os.path.expanduser(word) for word in cmd],
        env={**kwargs["env"], "JPY_PARENT_PID": str(os.getpid())},
        cwd=kwargs.get("cwd"),
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


def has_terminal() -> bool:
    """Whether this process has a controlling terminal: there a kernel in a process group of its own
    could be stopped for what its children do with it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
