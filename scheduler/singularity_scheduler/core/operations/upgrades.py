"""Upgrades of nodes, a few at a time: drained, upgraded by whoever does that, opened again. Pure.

The scheduler empties a node and says that it is out; it is back when its agent joins with another
version, or when an administrator says so. An upgrade that would leave sessions without room stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, NotFound

from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons.reason import Reason, Words, because
from singularity_scheduler.core.reasons.refusals import choices, refuse
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values.administration import (
    DutyEvent,
    NodeDuty,
    StepState,
    Upgrade,
    UpgradeAsked,
    UpgradeChange,
    UpgradedAsked,
    UpgradeState,
    UpgradeStep,
)
from singularity_scheduler.core.values.model import SessionView

from . import drains

RULE = "node.upgrade"

_ACTIVE = (StepState.DRAINING, StepState.OUT)


# -- what is asked --------------------------------------------------------------------------


def asked(draft: Draft, event: UpgradeAsked) -> None:
    """Begin one; one at a time."""
    now = current(draft)
    if now is not None and not now.over:
        raise refuse(
            Conflict,
            because(
                "upgrade_under_way",
                state=now.state.value,
                done=sum(step.state is StepState.BACK for step in now.steps),
                number=len(now.steps),
            ),
        )
    names = event.nodes or tuple(sorted(draft.state.nodes))
    if not names:
        raise refuse(BadRequest, because("no_node_to_upgrade"))
    nodes = [placement.named(draft.state, name) for name in dict.fromkeys(names)]
    if not 1 <= event.at_once <= len(nodes):
        raise refuse(
            BadRequest,
            because("at_once_out_of_range", number=len(nodes), at_once=event.at_once),
            at_once=event.at_once,
        )
    steps = tuple(UpgradeStep(node.id, version=node.abilities.version) for node in nodes)
    _put(
        draft,
        Upgrade(event.by, event.reason, draft.now, event.at_once, steps, wait=event.wait),
        event.by,
        "upgrade",
        event.reason,
    )


def changed(draft: Draft, event: UpgradeChange) -> None:
    """Pause, resume or cancel it."""
    upgrade = _running(draft)
    if event.state is UpgradeState.CANCELLED:
        for step in upgrade.steps:
            if step.state in _ACTIVE and draft.duty(step.node).leaving:
                why = because("upgrade_was_cancelled")
                drains.change(draft, step.node, DutyEvent.UNDRAIN, event.by, why)
    elif event.state not in (UpgradeState.RUNNING, UpgradeState.PAUSED):
        raise refuse(BadRequest, because("no_such_upgrade_state", state=event.state.value))
    wait = upgrade.wait if event.wait is None else event.wait
    after = replace(upgrade, state=event.state, why="", wait=wait)
    _put(draft, after, event.by, event.state.value, "")


def back(draft: Draft, event: UpgradedAsked) -> None:
    """Somebody says that a node of it is upgraded."""
    upgrade = _running(draft)
    step = next((s for s in upgrade.steps if s.node == event.node), None)
    if step is None:
        names = [s.node for s in upgrade.steps]
        raise refuse(
            NotFound,
            because("not_of_the_upgrade", **choices(event.node, names)),
            node=event.node,
        )
    if step.state is not StepState.OUT:
        raise refuse(
            Conflict,
            because("not_out_for_the_upgrade", node=event.node, state=step.state.value),
            node=event.node,
        )
    if draft.duty(event.node).leaving:
        drains.change(draft, event.node, DutyEvent.UNDRAIN, event.by, because("is_upgraded"))
    _put(draft, _with(upgrade, step, StepState.BACK), event.by, "done", event.node)


def current(draft: Draft) -> Upgrade | None:
    """The newest one, as this decision leaves it."""
    return draft.upgrade or draft.state.admin.upgrade


def _running(draft: Draft) -> Upgrade:
    upgrade = current(draft)
    if upgrade is None or upgrade.over:
        state = upgrade.state.value if upgrade else None
        raise refuse(NotFound, because("no_upgrade_under_way", state=state))
    return upgrade


# -- what follows ---------------------------------------------------------------------------


def proceed(draft: Draft) -> set[str]:
    """Take the upgrade a step further; the nodes that it began to drain."""
    upgrade = current(draft)
    if upgrade is None or upgrade.over:
        return set()
    before = upgrade
    for step in before.steps:
        upgrade = _followed(draft, upgrade, step)
    begun: set[str] = set()
    while upgrade.state is UpgradeState.RUNNING:
        active = [s for s in upgrade.steps if s.state in _ACTIVE]
        coming = next((s for s in upgrade.steps if s.state is StepState.WAITING), None)
        if coming is None:
            if not active:
                upgrade = replace(upgrade, state=UpgradeState.DONE)
            break
        if len(active) >= upgrade.at_once:
            break
        why = None if upgrade.wait else no_room(draft, coming.node)
        if why and not active:
            upgrade = replace(upgrade, state=UpgradeState.STOPPED, why=why)
        if why:
            break  # there is room again when one of the others is back
        reason = because("upgrade", why=upgrade.reason)
        drains.change(draft, coming.node, DutyEvent.DRAIN, upgrade.by, reason)
        version = draft.node(coming.node).abilities.version
        upgrade = _with(upgrade, replace(coming, version=version), StepState.DRAINING)
        begun.add(coming.node)
    if upgrade != before:
        _put(draft, upgrade, "", "upgrade", upgrade.why)
    return begun


def _followed(draft: Draft, upgrade: Upgrade, step: UpgradeStep) -> Upgrade:
    """The upgrade after what became of one of its nodes."""
    duty = draft.duty(step.node).duty
    if step.state is StepState.DRAINING and duty is NodeDuty.DRAINED:
        step = replace(step, state=StepState.OUT)
        upgrade = _with(upgrade, step, StepState.OUT)
    if step.state is StepState.OUT:
        version = draft.node(step.node).abilities.version
        new = bool(version) and version != step.version and draft.node(step.node).connected
        if new and duty is NodeDuty.DRAINED:
            why = because("back_with_version", version=version)
            drains.change(draft, step.node, DutyEvent.UNDRAIN, "", why)
        if new or duty is NodeDuty.OPEN:
            return _with(upgrade, step, StepState.BACK)
    if step.state is StepState.DRAINING and not draft.duty(step.node).leaving:
        opened = because("opened_too_early", node=step.node)
        stopped = replace(upgrade, state=UpgradeState.STOPPED, why=opened)
        return _with(stopped, step, StepState.WAITING)
    return upgrade


def no_room(draft: Draft, node_id: str) -> Reason | None:
    """Return why the sessions of this node would have no room elsewhere; None: they would."""
    views = drains.left_on(draft, node_id)
    if not views:
        return None
    if trouble := draft.node(node_id).abilities.trouble:
        return because("stopped_before_unstorable", node=node_id, trouble=trouble)
    free = {
        other: sum(holder is None or holder.idle for holder in draft.usable(other).values())
        for other in draft.state.nodes
        if other != node_id
    }
    for view in sorted(views, key=lambda v: (-_needs(v), v.id)):
        fits = [
            other
            for other, number in free.items()
            if number >= _needs(view) and not placement.barred(draft, view, other)
        ]
        if not fits:
            return because("stopped_before_full", node=node_id, needs=_needs(view), who=view.label)
        of = draft.state.geography.of_node
        best = min(fits, key=lambda other: (of.get(other) != view.cluster, free[other], other))
        free[best] -= _needs(view)
    return None


def _needs(view: SessionView) -> int:
    working = view.leased and not view.idle
    waits = placement.waiting_for_device(view)
    return view.virtual_devices if working or waits else 0


# -- writing --------------------------------------------------------------------------------


def _with(upgrade: Upgrade, step: UpgradeStep, state: StepState) -> Upgrade:
    after = replace(step, state=state)
    steps = tuple(after if s.node == step.node else s for s in upgrade.steps)
    return replace(upgrade, steps=steps)


def _put(draft: Draft, after: Upgrade, by: str, verb: str, reason: Words) -> None:
    before = current(draft)
    draft.upgrade = after
    draft.order(by, verb, "upgrade", _short(before), _short(after), reason, RULE)


def _short(upgrade: Upgrade | None) -> dict[str, Any] | None:
    """As the log shows it."""
    if upgrade is None:
        return None
    return {
        "state": upgrade.state.value,
        "nodes": {step.node: step.state.value for step in upgrade.steps},
    }
