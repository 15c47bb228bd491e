"""What is planned for a session although nobody has begun with it: so that people can prevent it,
or are not surprised. Pure; made for each document of a session, so it looks at one node at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons.reason import Reason, Words, because
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.steps import turns
from singularity_scheduler.core.values.administration import NodeMark
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.states import DeviceState, ProcessState

from .estimate import parked_at


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
    why: Reason
    """Without a time."""


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
    why = because("idle_is_freed", limit_s=state.parameters.idle_soft_s)
    return Planned(Plan.PARK, at, "idle.reclaim", why)


def _of_drain(view: SessionView, mark: NodeMark, trouble: Words) -> Planned | None:
    """It leaves its node, or, where that cannot be and the drain is by force, is ended."""
    why = obstacles.not_open(mark)
    if not trouble:
        return Planned(Plan.SUSPEND, mark.deadline, mark.rule, why)
    if mark.force:
        kept = because("cannot_be_stored", why=why, trouble=trouble)
        return Planned(Plan.END, mark.deadline, mark.rule, kept)
    return None


def given_at(state: ClusterState, view: SessionView) -> float | None:
    """From when on the next session of its tier that needs devices takes those of this idle one;
    None: it is not idle, or has none."""
    if not view.idle or view.device_state is not DeviceState.HELD:
        return None
    return turns.released_at(state, view)
