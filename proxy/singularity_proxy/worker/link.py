"""The worker's calls to the node agent over the per-session socket."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from singularity_proxy.errors import Unavailable
from singularity_proxy.wire.rpc import SyncPeer

from . import steps


@dataclass(frozen=True)
class RingInfo:
    """What the agent answered to `ring.open`: where the ring of a virtual device lies."""

    ring_id: str
    path: str
    memory_capacity_bytes: int


_opened: dict[int, RingInfo] = {}

AGENT_WAIT_S = 60.0
"""The agent may be restarting just now; so long a device call waits for it to come back."""


def open_ring(index: int) -> tuple[str, str]:
    """Obtain this process's ring to cuda:`index`: (ring id, path).

    Called by the native worker at the first device call. No device is taken by it: that happens
    when the worker rings the doorbell. Raises `Unavailable` outside of a session, and when the
    agent does not come back within `AGENT_WAIT_S`.
    """
    import torch

    from .native import native

    socket = os.environ.get("SINGULARITY_SOCKET")
    if not socket:
        raise Unavailable("this process is not in a session: SINGULARITY_SOCKET is not set")
    asked: dict[str, Any] = {
        "virtual_device": native.virtual_device(index),
        "torch_version": str(torch.__version__),
        "git_version": str(torch.version.git_version),
        "python": sys.executable,
        "pid": os.getpid(),
    }
    deadline = time.monotonic() + AGENT_WAIT_S
    while True:
        try:
            with SyncPeer(socket) as agent:
                answer: dict[str, Any] = agent.call("ring.open", **asked)
            break
        except Unavailable:
            # A repeat is safe: the agent retires an older ring of this process and device.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    _opened[index] = RingInfo(
        answer["ring_id"], answer["path"], int(answer.get("memory_capacity") or 0)
    )
    steps.show_in(answer["path"])
    return answer["ring_id"], answer["path"]


def info(index: int) -> RingInfo | None:
    """What `open_ring` was told of cuda:`index`, or None before the first device call."""
    return _opened.get(index)
