"""Why a session is in its state: one sentence for people and the facts behind it. Pure."""

from __future__ import annotations

from typing import Any

from . import placement, reasons
from .cluster import ClusterState, Draft
from .model import SessionView
from .states import WORDS, DeviceState

NAMED = 3
"""How many other sessions a sentence names."""


def explain(state: ClusterState, view: SessionView, now: float) -> dict[str, Any]:
    """``{"sentence", "facts"}`` for `why`; an ended session is explained by its last reason."""
    facts: dict[str, Any] = {
        "state": view.word,
        "meaning": WORDS[view.word],
        "reason": view.reason,
        "tier": view.tier.value,
        "virtual_devices": view.virtual_devices,
        "devices": list(view.devices),
    }
    sentence = f"{view.label} is {view.word}: {view.reason}."
    waits = view.device_state is DeviceState.WAITING
    if view.id in state.sessions and view.returning and not view.held_back:
        why = placement.waits(Draft(state, now), view)
        facts |= {"place": state.place(view), "why": why}
        sentence = f"{view.label} is {view.word}: {view.reason}; now: {why}."
    elif view.id not in state.sessions or view.final or not (waits or view.pending):
        pass
    elif view.held_back:
        sentence = f"{view.label} is {view.word}: {reasons.held_back(view)}."
    else:
        text, more = (_waiting if waits else _queued)(state, view, now)
        facts |= more
        sentence = f"{view.label} is {view.word}: {text}."
    if view.device_state is DeviceState.HELD and view.idle and not view.final:
        sentence += " It is idle, so it gives its devices to the next session that needs them."
    return {"sentence": sentence, "facts": facts}


def _waiting(state: ClusterState, view: SessionView, now: float) -> tuple[str, dict[str, Any]]:
    node = state.nodes[view.node]
    place = state.place(view)
    seconds = max(0.0, now - (view.waiting_since or now))
    ahead = [state.sessions[key[-1]] for key in node.queue[: min(place - 1, NAMED)]]
    holders = [
        f"{device} by {holder.label} ({_doing(holder)})"
        for device, sid in node.leases.items()
        if (holder := state.sessions.get(sid))
    ]
    free = [d for d in node.usable if d not in node.leases]
    drained = [d for d in node.devices if d not in node.usable]
    facts = {
        "place": place,
        "ahead": place - 1,
        "waiting_s": round(seconds, 1),
        "free": free,
        "holders": holders,
        "drained": drained,
    }
    text = (
        f"it needs {reasons.count(view.virtual_devices)} for {view.tier.value} and waits for "
        f"{reasons.duration(seconds)} at place {place} of the queue"
    )
    if not node.connected:
        return f"{text}; node {view.node} does not answer at the moment", facts
    if drained:
        text += f"; drained: {', '.join(drained)}"
    if len(node.usable) < view.virtual_devices:
        return (
            f"{text}; node {view.node} has only {reasons.count(len(node.usable))} now, so it "
            "waits until there are more",
            facts,
        )
    if ahead:
        text += f"; before it: {_named(ahead, place - 1)}"
    if holders:
        text += f"; in use: {', '.join(holders)}"
    if free:
        text += f"; free but not enough or kept for who is before it: {', '.join(free)}"
    return text, facts


def _queued(state: ClusterState, view: SessionView, now: float) -> tuple[str, dict[str, Any]]:
    node, place = state.nodes[view.node], state.place(view)
    running = [
        other
        for sid in sorted(node.sessions)
        if (other := state.sessions[sid]).admitted and other.tier.rank >= view.tier.rank
    ]
    ahead = [state.sessions[key[-1]] for key in node.pending[: min(place - 1, NAMED)]]
    facts = {
        "place": place,
        "ahead": place - 1,
        "waiting_s": round(max(0.0, now - view.created_at), 1),
        "running": [other.label for other in running[:NAMED]],
        "devices_of_runs": sum(other.admitted for other in running),
        "devices_of_node": len(node.usable),
    }
    text = f"it needs {reasons.count(view.virtual_devices)} and is at place {place} of the queue"
    if not node.connected:
        return f"{text}; node {view.node} does not answer at the moment", facts
    if view.virtual_devices > len(node.usable):
        return f"{text}; node {view.node} has only {reasons.count(len(node.usable))} now", facts
    if ahead:
        text += f"; before it: {_named(ahead, place - 1)}"
    if running:
        text += f"; it starts when there is room after: {_named(running, len(running))}"
    return text, facts


def _named(sessions: list[SessionView], number: int) -> str:
    """The first of `number` sessions by name and tier."""
    shown = sessions[:NAMED]
    names = ", ".join(f"{other.label} ({other.tier.value})" for other in shown)
    return f"{names} and {number - len(shown)} more" if number > len(shown) else names


def _doing(holder: SessionView) -> str:
    if holder.device_state is DeviceState.HELD:
        return f"{holder.tier.value}, {'idle' if holder.idle else 'busy'}"
    return f"{holder.tier.value}, {holder.device_state.value}"
