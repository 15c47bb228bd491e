"""What is planned for a session although nobody has begun with it: so that people can prevent it,
or are not surprised. Pure; made for each document of a session, so it looks at one node at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from singularity_scheduler.client.words import duration

from . import gangs, turns
from .administration import NodeMark
from .cluster import ClusterState
from .estimate import parked_at
from .model import SessionView
from .states import DeviceState, ProcessState


class Plan(str, Enum):
    """What is going to be done."""

    PARK = "park"
    SUSPEND = "suspend"
    END = "end"


@dataclass(frozen=True)
class Planned:
    """One change that comes by itself if nothing else happens."""

    what: Plan
    at: float | None
    """At the latest, UNIX seconds; None: as soon as it can be done."""
    rule: str
    """One of `core.rules.RULES`."""
    why: str
    """For people: a clause without a time."""


def planned(state: ClusterState, view: SessionView) -> Planned | None:
    """The next one; None: nothing that is known."""
    if view.process_state is not ProcessState.LIVE or view.leaving is not None:
        return None
    node = state.nodes.get(view.node)
    if node is not None and node.duty.leaving:
        return _of_drain(view, node.duty, gangs.stays(view) or node.abilities.trouble)
    if view.device_state is not DeviceState.HELD:
        return None
    at = parked_at(state, view)
    if at is None:
        return None
    limit = duration(state.parameters.idle_soft_s)
    why = f"no call reaches its devices, and idle ones are freed after {limit} (idle_soft_s)"
    return Planned(Plan.PARK, at, "idle.reclaim", why)


def _of_drain(view: SessionView, mark: NodeMark, trouble: str) -> Planned | None:
    """It leaves its node, or, where that cannot be and the drain is by force, is ended."""
    why = f"node {mark.node} {mark.why}"
    if not trouble:
        return Planned(Plan.SUSPEND, mark.deadline, mark.rule, why)
    if mark.force:
        return Planned(
            Plan.END, mark.deadline, mark.rule, f"{why}, and it cannot be stored ({trouble})"
        )
    return None


def given_at(state: ClusterState, view: SessionView) -> float | None:
    """From when on the next session of its tier that needs devices takes those of this idle one;
    None: it is not idle, or has none."""
    if not view.idle or view.device_state is not DeviceState.HELD:
        return None
    return turns.released_at(state, view)
