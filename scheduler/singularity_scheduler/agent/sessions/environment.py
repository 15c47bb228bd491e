"""What the processes of a session get in their environment, at its start and when it comes back."""

from __future__ import annotations

import os

from singularity_proxy import HIDDEN_DEVICES

from singularity_scheduler.agent.node import Node, Settings
from singularity_scheduler.agent.ranks.bridges import variables

from .live import LiveSession
from .logs import CAPSULE_LOG
from .record import SessionRecord


def session_variables(live: LiveSession, node: Node) -> dict[str, str]:
    """Return the variables that tell the processes of a session which one they are of, and where
    the agent, its doorbell, the log and the other parts of a gang are."""
    record = live.record
    return {
        "SINGULARITY_SESSION": record.session,
        "SINGULARITY_SOCKET": live.socket.path,
        "SINGULARITY_DOORBELL": live.socket.doorbell_path,
        "SINGULARITY_DEVICES": str(record.virtual_devices),
        "SINGULARITY_DEVICE_TYPE": node.device_type,
        "CUDA_VISIBLE_DEVICES": HIDDEN_DEVICES,
        **_log_variable(record, node.settings),
        **variables(record),
    }


def _log_variable(record: SessionRecord, settings: Settings) -> dict[str, str]:
    """Return where the processes of a run say what they wait for. Those of a notebook say it on
    stderr, beneath the cell; a run's stderr is part of its output, which must not depend on its
    devices."""
    if record.mode == "joined" or record.kind != "batch":
        return {}
    return {"SINGULARITY_LOG": os.path.join(settings.session_dir(record.session), CAPSULE_LOG)}
