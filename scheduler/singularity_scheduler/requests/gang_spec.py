"""On how many nodes a run is to be: what a request may say of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from singularity_scheduler.core.reasons.reason import because
from singularity_scheduler.core.values.requested import BatchRun, Part, SessionSpec
from singularity_scheduler.text.errors import bad_request

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
        raise bad_request(
            because("nodes_out_of_range", most=MAX_NODES, given=shown(value)), nodes=value
        )
    if value == 1:
        return 1
    if (run is not None and not run.command) or request.get("launch") is not None:
        raise bad_request(because("nodes_need_a_command", nodes=value))
    if request.get("elastic") or request.get("scale_policy") is not None:
        raise bad_request(because("nodes_without_policy", nodes=value))
    if request.get("device_share") not in (None, 1):
        raise bad_request(because("nodes_without_share", nodes=value))
    return int(value)


def of_one_node(devices: object, nodes: int) -> object:
    """Devices of each of so many nodes, of what a request asks for in all."""
    if nodes == 1 or isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        return devices  # whoever reads it says what is wrong with it
    if devices % nodes:
        raise bad_request(
            because("not_divisible", number=devices, nodes=nodes),
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
