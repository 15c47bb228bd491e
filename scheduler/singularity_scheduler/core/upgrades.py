"""Upgrades of nodes, a few at a time: drained, upgraded by whoever does that, opened again. Pure.

The scheduler empties a node and says that it is out; it is back when its agent joins with another
version, or when an administrator says so. An upgrade that would leave sessions without room stops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singularity_proxy.errors import BadRequest, Conflict, NotFound

from . import drains, placement, reasons
from .administration import (
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
from .draft import Draft
from .model import SessionView
from .parameters import nearest

RULE = "node.upgrade"

_ACTIVE = (StepState.DRAINING, StepState.OUT)


# -- what is asked --------------------------------------------------------------------------


def asked(draft: Draft, event: UpgradeAsked) -> None:
    """Begin one; one at a time."""
    now = current(draft)
    if now is not None and not now.over:
        raise Conflict(
            f"an upgrade is {now.state.value} already ({_said(now)}): let it end, or cancel it"
        )
    names = event.nodes or tuple(sorted(draft.state.nodes))
    if not names:
        raise BadRequest("there is no node to upgrade")
    nodes = [placement.named(draft.state, name) for name in dict.fromkeys(names)]
    if not 1 <= event.at_once <= len(nodes):
        raise BadRequest(
            f"at_once must be a whole number from 1 to {len(nodes)} (the nodes of the upgrade), "
            f"not {event.at_once}",
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
                drains.change(
                    draft, step.node, DutyEvent.UNDRAIN, event.by, "the upgrade was cancelled"
                )
    elif event.state not in (UpgradeState.RUNNING, UpgradeState.PAUSED):
        raise BadRequest(f"an upgrade can be running, paused or cancelled, not {event.state.value}")
    wait = upgrade.wait if event.wait is None else event.wait
    after = replace(upgrade, state=event.state, why="", wait=wait)
    _put(draft, after, event.by, event.state.value, "")


def back(draft: Draft, event: UpgradedAsked) -> None:
    """Somebody says that a node of it is upgraded."""
    upgrade = _running(draft)
    step = next((s for s in upgrade.steps if s.node == event.node), None)
    if step is None:
        names = [s.node for s in upgrade.steps]
        raise NotFound(
            f"node {event.node} is not part of the upgrade: {nearest(event.node, names)}",
            node=event.node,
        )
    if step.state is not StepState.OUT:
        raise Conflict(
            f"node {event.node} is not out for the upgrade, it is {step.state.value}: wait until "
            "it is drained",
            node=event.node,
        )
    if draft.duty(event.node).leaving:
        drains.change(draft, event.node, DutyEvent.UNDRAIN, event.by, "it is upgraded")
    _put(draft, _with(upgrade, step, StepState.BACK), event.by, "done", event.node)


def current(draft: Draft) -> Upgrade | None:
    """The newest one, as this decision leaves it."""
    return draft.upgrade or draft.state.admin.upgrade


def _running(draft: Draft) -> Upgrade:
    upgrade = current(draft)
    if upgrade is None or upgrade.over:
        how = f"the last one is {upgrade.state.value}" if upgrade else "there never was one"
        raise NotFound(f"no upgrade is under way ({how})")
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
        why = "" if upgrade.wait else no_room(draft, coming.node)
        if why and not active:
            upgrade = replace(upgrade, state=UpgradeState.STOPPED, why=why)
        if why:
            break  # there is room again when one of the others is back
        reason = f"upgrade{f': {upgrade.reason}' if upgrade.reason else ''}"
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
            drains.change(
                draft, step.node, DutyEvent.UNDRAIN, "", f"it is back with version {version}"
            )
        if new or duty is NodeDuty.OPEN:
            return _with(upgrade, step, StepState.BACK)
    if step.state is StepState.DRAINING and not draft.duty(step.node).leaving:
        why = f"node {step.node} was opened before it was empty"
        stopped = replace(upgrade, state=UpgradeState.STOPPED, why=why)
        return _with(stopped, step, StepState.WAITING)
    return upgrade


def no_room(draft: Draft, node_id: str) -> str:
    """Why the sessions of this node would have no room elsewhere; "": they would."""
    views = drains.left_on(draft, node_id)
    if not views:
        return ""
    start = f"stopped before node {node_id}, of which nothing was touched"
    hint = "add a node or make room, or let sessions wait in the store (wait)"
    if trouble := draft.node(node_id).abilities.trouble:
        return f"{start}: its sessions cannot be stored ({trouble}); end them first"
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
            need = _needs(view)
            what = f" with {reasons.count(need, 'free device')}" if need else ""
            return f"{start}: there is no other open node{what} for {view.label}; {hint}"
        of = draft.state.geography.of_node
        best = min(fits, key=lambda other: (of.get(other) != view.cluster, free[other], other))
        free[best] -= _needs(view)
    return ""


def _needs(view: SessionView) -> int:
    working = view.leased and not view.idle
    waits = placement.waiting_for_device(view)
    return view.virtual_devices if working or waits else 0


# -- writing --------------------------------------------------------------------------------


def _with(upgrade: Upgrade, step: UpgradeStep, state: StepState) -> Upgrade:
    after = replace(step, state=state)
    steps = tuple(after if s.node == step.node else s for s in upgrade.steps)
    return replace(upgrade, steps=steps)


def _put(draft: Draft, after: Upgrade, by: str, verb: str, reason: str) -> None:
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


def _said(upgrade: Upgrade) -> str:
    done = sum(step.state is StepState.BACK for step in upgrade.steps)
    return f"{done} of {reasons.count(len(upgrade.steps), 'node')} done"
