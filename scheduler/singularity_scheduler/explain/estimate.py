"""When a session will have what it waits for, and what that is based on. Pure; only shown.

No run time is asked of anybody. What is certain is said as such: devices that are on their way, and
idle ones that may be taken at a known time. Otherwise the newest waits of the same kind in this
cluster are taken, as a range in which half to nine tenths of them ended; and where there is no
basis, that is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import obstacles
from singularity_scheduler.core.reasons.reason import Reason, Words, because
from singularity_scheduler.core.state import queue
from singularity_scheduler.core.state.cluster import ClusterState, Node
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.experience import Step, Wait
from singularity_scheduler.core.steps import keeping, turns
from singularity_scheduler.core.values.administration import NodeDuty, NodeMark
from singularity_scheduler.core.values.model import PARK_RETRY_S, SessionView
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.text.reasons import render

from .facts import reason_facts

FEWEST = 5
"""So many waits are needed before something is said by experience."""


class Basis(str, Enum):
    """What an estimate is based on."""

    CERTAIN = "certain"
    """What is under way, or may be taken at a known time."""
    EXPERIENCE = "experience"
    """How long others waited."""
    NONE = "none"


@dataclass(frozen=True)
class Estimate:
    """`low_s` and `high_s` are seconds from now; None: nobody can say. `why` is the basis."""

    basis: Basis
    why: Reason
    low_s: float | None = None
    high_s: float | None = None
    samples: int = 0
    """How many waits or moves it is based on."""
    after: Reason | None = None
    """What has to happen first, from when on the seconds count; None: nothing."""

    @property
    def said(self) -> Reason:
        """ "expected in 20 s to 3 min, as ..."."""
        if self.low_s is None or self.high_s is None:
            return because("cannot_be_said", why=self.why)
        return because(
            "expected", low_s=self.low_s, high_s=self.high_s, why=self.why, after=self.after
        )

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "basis": self.basis.value,
            "why": render(self.why),
            **reason_facts(self.why),
            "low_s": None if self.low_s is None else round(self.low_s, 1),
            "high_s": None if self.high_s is None else round(self.high_s, 1),
            "samples": self.samples,
            "after": render(self.after) if self.after else None,
        }


def estimate(state: ClusterState, view: SessionView, now: float) -> Estimate | None:
    """When it has what it waits for; of one that is parked or in the store: after it asks. None
    for a session that waits for nothing."""
    if view.final or view.id not in state.sessions:
        return None
    if view.held_back:
        return _unknown(because("waits_for_somebody", by=view.held_by))
    if step := step_of(view):
        return _under_way(state, view, step, now)
    if view.pending:
        return _of_start(state, view, now)
    if view.process_state in (ProcessState.SUSPENDING, ProcessState.SUSPENDED):
        return _of_return(state, view, now) if view.called else _after_a_request(state, view)
    if view.device_state is DeviceState.WAITING:
        return _of_devices(state, view, now)
    if view.device_state in (DeviceState.PARKING, DeviceState.PARKED):
        when = because("is_parked") if view.wants else because("next_device_call")
        return replace(_of_devices(state, view, now), after=when)
    return None


# -- what is under way ----------------------------------------------------------------------

_STEPS: dict[ProcessState | DeviceState, Step] = {
    ProcessState.STARTING: Step.LAUNCH,
    ProcessState.RESUMING: Step.RESUME,
    DeviceState.ATTACHING: Step.ATTACH,
}


def step_of(view: SessionView) -> Step | None:
    """What is done with it just now, whoever else waits; None: nothing."""
    return _STEPS.get(view.process_state) or _STEPS.get(view.device_state)


def _under_way(state: ClusterState, view: SessionView, step: Step, now: float) -> Estimate:
    """Its own step, which nobody else delays."""
    left, why, samples = _left_of(state, view, step, now)
    if left is None:
        return _unknown(why)
    return Estimate(Basis.CERTAIN, why, left, left, samples)


def _left_of(
    state: ClusterState, view: SessionView, step: Step, now: float
) -> tuple[float | None, Reason, int]:
    """Seconds until this step of a session is done (None: nobody knows), the basis, and how many
    steps that is based on."""
    seen = state.experience.steps(step, view.node)
    if not seen:
        return None, because("step_not_measured", step=step.value, node=view.node), 0
    began = state.experience.since(view.id, step)
    spent = now - began if began is not None else 0.0
    usual = _quantile(seen, 0.5)
    why = because("step_takes", step=step.value, usual_s=usual, node=view.node, samples=len(seen))
    return max(0.0, usual - spent), why, len(seen)


# -- what is waited for ---------------------------------------------------------------------


def _of_devices(state: ClusterState, view: SessionView, now: float) -> Estimate:
    """Devices of its node."""
    node = state.nodes[view.node]
    if not node.connected:
        return _unknown(obstacles.no_answer(view.node))
    if node.duty.leaving:
        return _unknown(because("devices_go_to_nobody", **_duty(node.duty)))
    if len(node.usable) < view.needs:
        return _unknown(_too_small(node))
    if why := quotas.barred(Draft(state, now), view):
        return _unknown(why)
    return _coming(state, view, node, now) or _by_waits(state, view, Wait.DEVICES, now)


def _of_start(state: ClusterState, view: SessionView, now: float) -> Estimate:
    """Room for a run that is not started yet."""
    node = state.nodes[view.node]
    if not node.connected:
        return _unknown(obstacles.no_answer(view.node))
    if node.duty.duty is not NodeDuty.OPEN:
        return _unknown(because("no_other_takes_it", **_duty(node.duty)))
    if len(node.usable) < view.needs:
        return _unknown(_too_small(node))
    if why := quotas.run_barred(Draft(state, now), view):
        return _unknown(why)
    return _by_waits(state, view, Wait.START, now)


def _too_small(node: Node) -> Reason:
    return because("has_too_few", node=node.id, number=len(node.usable))


def _duty(mark: NodeMark) -> dict[str, Words | None]:
    return {
        "node": mark.node,
        "state": mark.duty.value,
        "by": mark.by or None,
        "why": mark.reason,
    }


def _of_return(state: ClusterState, view: SessionView, now: float) -> Estimate:
    """A node to come back to."""
    draft = Draft(state, now)
    nodes = placement.candidates(draft, view)
    if all(placement.barred(draft, view, node) for node in nodes):
        return _unknown(because("no_node_takes_it"))
    return _by_waits(state, view, Wait.RETURN, now)


def _after_a_request(state: ClusterState, view: SessionView) -> Estimate:
    """In the store until somebody asks for it."""
    left, why, samples = _left_of(state, view, Step.RESUME, 0.0)
    found = _unknown(why)
    if left is not None:
        why = because("when_there_is_room", why=why)
        found = Estimate(Basis.CERTAIN, why, left, left, samples)
    return replace(found, after=because("is_asked_for"))


# -- certain: devices that become free at a known time --------------------------------------


@dataclass(frozen=True)
class _Supply:
    at_s: float | None
    """Seconds from now; None: soon, and nobody knows when."""
    devices: int
    why: Reason
    samples: int = 0


def parked_at(state: ClusterState, holder: SessionView) -> float | None:
    """When a holder whose devices stay idle is parked by itself; None: it works, or that is never
    done. As `queue.park_idle` decides."""
    parameters = state.parameters
    if not parameters.idle_soft_s or holder.quiet_since is None:
        return None
    return max(
        holder.quiet_since + parameters.idle_soft_s,
        (holder.held_since or 0.0) + parameters.min_run_s,
        holder.rests_until,
        keeping.end_of(holder, parameters) or 0.0,
    )


def _coming(state: ClusterState, view: SessionView, node: Node, now: float) -> Estimate | None:
    """By devices that are free, are being freed, or will be given up by those who are idle; None
    when they are not enough for it and all before it."""
    need = view.needs
    usable = set(node.usable)
    for sid in turns.line(state, node.id):
        if sid == view.id:
            break
        other = state.sessions[sid]
        if other.held_back or other.tier.rank < view.tier.rank:
            break  # one that does not wait yet would be the last one of its tier
        need += other.needs
        if need > len(usable):
            return None
    takes = turns.will_give_up(Draft(state, now), view, node.id)
    supplies = [_Supply(0.0, len(usable - node.leases.keys()), because("devices_are_free"))]
    for sid in dict.fromkeys(node.leases[d] for d in node.devices if d in node.leases):
        holder = state.sessions[sid]
        count = len(usable.intersection(holder.devices))
        if supply := _supply(state, holder, takes.get(sid), count, now):
            supplies.append(supply)
    supplies.sort(key=lambda s: math.inf if s.at_s is None else s.at_s)
    total, samples = 0, 0
    for supply in supplies:
        total, samples = total + supply.devices, samples + supply.samples
        if total >= need:
            if supply.at_s is None:
                return _unknown(supply.why)
            return Estimate(Basis.CERTAIN, supply.why, supply.at_s, supply.at_s, samples)
    return None


def _supply(
    state: ClusterState,
    holder: SessionView,
    takes: tuple[str, float] | None,
    devices: int,
    now: float,
) -> _Supply | None:
    """`takes`: by which rule, and from when on, the one that waits takes them."""
    if queue.parking(holder):
        leaves = holder.process_state is ProcessState.SUSPENDING
        step = Step.SUSPEND if leaves else Step.PARK
        left, why, samples = _left_of(state, holder, step, now)
        why = because("devices_are_freed", holder=holder.label, why=why)
        return _Supply(left, devices, why, samples)
    if holder.device_state is not DeviceState.HELD:
        return None
    if takes is None:
        return None
    rule, at = takes
    seen = state.experience.steps(Step.PARK, holder.node)
    left = max(0.0, at - now) + (_quantile(seen, 0.5) if seen else 0.0)
    if rule == "preempt.idle" and at <= now:
        why = because("idle_gives_up", holder=holder.label)
    elif rule == "preempt.idle":
        why = because("holder_is_idle", holder=holder.label, keeps=_keeps(state, holder, at))
    elif rule == "preempt.service":
        why = because("turn_ends", holder=holder.label)
    else:
        why = because("gives_them_up", holder=holder.label, rule=rule)
    return _Supply(left, devices, why, len(seen))


def _keeps(state: ClusterState, holder: SessionView, at: float) -> Reason:
    """Which parameter lets an idle holder keep its devices until `at`, which is still to come."""
    parameters = state.parameters
    if holder.held_since is not None and at == holder.held_since + parameters.min_run_s:
        return because("had_them_for", limit_s=parameters.min_run_s)
    if at == holder.rests_until:
        return because("another_try", after_s=PARK_RETRY_S)
    return because("grace", limit_s=parameters.idle_grace_s)


# -- by experience --------------------------------------------------------------------------


def _by_waits(state: ClusterState, view: SessionView, what: Wait, now: float) -> Estimate:
    seen = state.experience.waits(what, view.tier.value, view.virtual_devices)
    if len(seen) < FEWEST:
        return _unknown(because("few_waits", **_of_kind(what, view, seen)), len(seen))
    waited = waited_s(state, view, now)
    longer = [seconds for seconds in seen if seconds > waited]
    if not longer:
        why = because(
            "waited_longer", **_of_kind(what, view, seen), waited_s=waited, longest_s=max(seen)
        )
        return _unknown(why, len(seen))
    low, high = _quantile(longer, 0.5), _quantile(longer, 0.9)
    if waited < 1:
        why = because("last_waits", **_of_kind(what, view, seen), low_s=low, high_s=high)
    else:
        why = because(
            "longer_waits",
            **_of_kind(what, view, seen),
            waited_s=waited,
            longer=len(longer),
            low_s=low,
            high_s=high,
        )
    return Estimate(Basis.EXPERIENCE, why, low - waited, high - waited, len(longer))


def _of_kind(what: Wait, view: SessionView, seen: Sequence[float]) -> dict[str, Any]:
    """Which waits were measured, as arguments of a reason."""
    return {
        "wait": what.value,
        "tier": view.tier.value,
        "needs": view.virtual_devices,
        "samples": len(seen),
    }


def waited_s(state: ClusterState, view: SessionView, now: float) -> float:
    """How long it has waited; 0 when it does not, or nobody knows since when."""
    since: float | None = None
    if view.pending:
        since = state.experience.since(view.id, Wait.START) or view.created_at
    elif view.returning:
        since = state.experience.since(view.id, Wait.RETURN)
    elif view.device_state is DeviceState.WAITING:
        since = view.waiting_since
    return 0.0 if since is None else max(0.0, now - since)


def _unknown(why: Reason, samples: int = 0) -> Estimate:
    return Estimate(Basis.NONE, why, samples=samples)


# -- numbers --------------------------------------------------------------------------------


def _quantile(values: Sequence[float], share: float) -> float:
    """The nearest rank: a value that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
