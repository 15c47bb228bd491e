"""On how many nodes a run is to be: what a request may say of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from singularity_proxy.errors import BadRequest

from singularity_scheduler.core.requested import BatchRun, Part, SessionSpec

from .fields import shown

MAX_NODES = 256
"""Most nodes of one run."""


def parse_nodes(request: Mapping[str, Any], run: BatchRun | None) -> int:
    """The number of nodes in a request's ``nodes``; None: 1. Refuses what does not go with more
    than one."""
    value = request.get("nodes")
    if value is None:
        return 1
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MAX_NODES:
        raise BadRequest(
            f"nodes must be a whole number from 1 to {MAX_NODES}, not {shown(value)}", nodes=value
        )
    if value == 1:
        return 1
    on = f"a run on {value} nodes"
    if (run is not None and not run.command) or request.get("launch") is not None:
        raise BadRequest(f"{on} must be a command (run.command): a notebook runs on one node")
    if request.get("elastic") or request.get("scale_policy") is not None:
        raise BadRequest(
            f"{on} has no scale policy yet: leave elastic and scale_policy out, or nodes"
        )
    if request.get("device_share") not in (None, 1):
        raise BadRequest(f"{on} has whole devices: leave device_share out, or nodes")
    return int(value)


def of_one_node(devices: object, nodes: int) -> object:
    """Devices of each of so many nodes, of what a request asks for in all."""
    if nodes == 1 or isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        return devices  # whoever reads it says what is wrong with it
    if devices % nodes:
        raise BadRequest(
            f"{devices} device{'' if devices == 1 else 's'} cannot be divided among {nodes} nodes: "
            f"ask for {nodes}, {2 * nodes}, {3 * nodes} or another multiple of {nodes}",
            devices=devices,
            nodes=nodes,
        )
    return devices // nodes


def parts_of(
    spec: SessionSpec, gang: str, secret: str, new_id: Callable[[], str]
) -> list[tuple[str, SessionSpec]]:
    """The parts of a new gang with their ids, by their numbers."""
    sessions = tuple(new_id() for _ in range(spec.nodes))
    return [
        (session, replace(spec, part=Part(gang, number, sessions, secret)))
        for number, session in enumerate(sessions)
    ]
