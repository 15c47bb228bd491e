"""Why a session is in its state: one sentence for people and the facts behind it. Pure."""

from __future__ import annotations

from typing import Any

from . import reasons
from .cluster import ClusterState
from .model import SessionView
from .states import WORDS, DeviceState


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
    if (
        view.device_state is DeviceState.WAITING
        and not view.held_back
        and view.id in state.sessions
    ):
        waiting, more = _waiting(state, view, now)
        facts |= more
        sentence = f"{view.label} is {view.word}: {waiting}."
    elif view.pending and not view.held_back and view.id in state.sessions:
        queued, more = _queued(state, view)
        facts |= more
        sentence = f"{view.label} is {view.word}: {queued}."
    elif view.device_state is DeviceState.HELD and view.idle and not view.final:
        sentence += " It is idle, so it gives its devices to the next session that needs them."
    return {"sentence": sentence, "facts": facts}


def _waiting(state: ClusterState, view: SessionView, now: float) -> tuple[str, dict[str, Any]]:
    node = state.nodes[view.node]
    place = state.place(view)
    seconds = max(0.0, now - (view.waiting_since or now))
    ahead = [state.sessions[key[-1]] for key in node.queue[: min(place - 1, 3)]]
    holders = [
        f"{device} by {holder.label} ({_doing(holder)})"
        for device, sid in node.leases.items()
        if (holder := state.sessions.get(sid))
    ]
    free = [d for d in node.devices if d not in node.leases]
    facts = {
        "place": place,
        "ahead": place - 1,
        "waiting_s": round(seconds, 1),
        "free": free,
        "holders": holders,
    }
    text = (
        f"it needs {reasons.count(view.virtual_devices)} for {view.tier.value} and waits for "
        f"{_duration(seconds)} at place {place} of the queue"
    )
    if not node.connected:
        return f"{text}; node {view.node} does not answer at the moment", facts
    if len(node.devices) < view.virtual_devices:
        return (
            f"{text}; node {view.node} has only {reasons.count(len(node.devices))} now, so it "
            "waits until there are more",
            facts,
        )
    if ahead:
        text += f"; before it: {', '.join(f'{a.label} ({a.tier.value})' for a in ahead)}"
        if place - 1 > len(ahead):
            text += f" and {place - 1 - len(ahead)} more"
    if holders:
        text += f"; in use: {', '.join(holders)}"
    if free:
        text += f"; free but not enough or kept for who is before it: {', '.join(free)}"
    return text, facts


def _queued(state: ClusterState, view: SessionView) -> tuple[str, dict[str, Any]]:
    node, place = state.nodes[view.node], state.place(view)
    before = [
        other
        for sid in sorted(node.sessions)
        if (other := state.sessions[sid]).admitted and other.tier.rank >= view.tier.rank
    ]
    taken = sum(other.admitted for other in before)
    facts = {
        "place": place,
        "ahead": place - 1,
        "running": [other.label for other in before],
        "devices_of_runs": taken,
        "devices_of_node": len(node.devices),
    }
    text = f"it needs {reasons.count(view.virtual_devices)} and is at place {place} of the queue"
    if not node.connected:
        return f"{text}; node {view.node} does not answer at the moment", facts
    if view.virtual_devices > len(node.devices):
        return f"{text}; node {view.node} has only {reasons.count(len(node.devices))} now", facts
    if before:
        names = ", ".join(f"{other.label} ({other.tier.value})" for other in before[:3])
        more = f" and {len(before) - 3} more" if len(before) > 3 else ""
        text += f"; it starts when one of these ends: {names}{more}"
    return text, facts


def _doing(holder: SessionView) -> str:
    if holder.device_state is DeviceState.HELD:
        return f"{holder.tier.value}, {'idle' if holder.idle else 'busy'}"
    return f"{holder.tier.value}, {holder.device_state.value}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
