"""Why a session is in its state: one sentence for people and the facts behind it. Pure.

`text` says what it waits for, its place, who goes before it by which rule, and when it is expected
(`estimate`); of one that was preempted by whom, by which rule, and what was saved. `told` puts the
same text into the history, so that it is also what the events of that moment say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singularity_scheduler.client.words import duration, size
from singularity_scheduler.text.reasons import render, render_briefly, render_first

from . import gangs, groups, keeping, placement, precedence, quotas, reasons, turns
from .administration import NodeDuty
from .cluster import ClusterState
from .decision import Decision
from .draft import Draft
from .estimate import estimate, parked_at, short, step_of, waited_s
from .experience import Taken
from .model import SessionView
from .reason import Reason, to_json
from .rules import RULES
from .states import WORDS, DeviceState, ProcessState

NAMED = 3
"""How many other sessions a sentence names."""

HISTORY_DEPTH = 32
"""Where more than this wait for the devices of one node, its history has reasons only."""

_SAY_WHERE = frozenset({"suspending", "drained_stores", "going_back"})
"""Codes of sentences that say of a session on its way where its state goes."""

_AWAY = (ProcessState.SUSPENDING, ProcessState.SUSPENDED, ProcessState.RESUMING)
_OFF = (DeviceState.PARKING, DeviceState.PARKED, DeviceState.WAITING)


def explain(state: ClusterState, view: SessionView, now: float) -> dict[str, Any]:
    """``{"sentence", "facts"}`` for `why`; an ended session is explained by its last reason."""
    said, more = text(state, view, now)
    facts: dict[str, Any] = {
        "state": view.word,
        "meaning": WORDS[view.word],
        "reason": view.reason,
        **reason_facts(view.why),
        "tier": view.tier.value,
        "priority": view.priority.value,
        "virtual_devices": view.virtual_devices,
        "devices": list(view.devices),
        "node": view.node,
        "cluster": view.cluster,
        "region": state.geography.region(view.cluster),
        "locations": list(view.locations),
        **more,
    }
    sentence = f"{view.label} is {view.word}: {said}."
    for about in (_kept, _rests):
        if not view.final and (found := about(state, view, now)):
            sentence += f" {found[0]}."
            facts |= found[1]
    return {"sentence": sentence, "facts": facts}


def reason_facts(why: Reason) -> dict[str, Any]:
    """Return the code of a reason and its arguments, as the API gives them beside its sentence."""
    told = to_json(why)
    return {"reason_code": told["code"], "reason_args": told["args"]}


def told(state: ClusterState, decision: Decision, now: float) -> Decision:
    """The decision with a history that says what `why` says; `state` has it already."""
    lines = list(decision.history)
    views = {view.id: view for view in decision.sessions}
    # Remarks stay as they are: they do not say why a session is in its state.
    last = {
        change.session: number
        for number, change in enumerate(lines)
        if change.session in views and change.why == views[change.session].why
    }
    for session, number in last.items():
        view = state.sessions.get(session)
        if view is not None and not view.final and not _crowded(state, view):
            said = text(state, view, now)[0]
            if said != lines[number].reason:
                lines[number] = replace(lines[number], text=said)
    history = tuple(lines)
    return decision if history == decision.history else replace(decision, history=history)


def _crowded(state: ClusterState, view: SessionView) -> bool:
    """Whether so many wait with it that its place is not worth finding out for a line of history:
    the next change moves it."""
    waits = view.device_state is DeviceState.WAITING
    return waits and len(state.nodes[view.node].queue) > HISTORY_DEPTH


def text(state: ClusterState, view: SessionView, now: float) -> tuple[str, dict[str, Any]]:
    """What there is to say of a session, its reason first, and the facts of it."""
    if view.final or view.id not in state.sessions:
        return view.reason, {}
    parts = [view.reason]
    facts: dict[str, Any] = {}
    if view.held_back and (view.pending or view.device_state is DeviceState.WAITING):
        parts = [render(reasons.held_back(view))]
    elif view.returning:
        more, facts = _returning(state, view, now)
        parts += more
    elif view.pending:
        more, facts = _queued(state, view, now)
        parts += more
    elif view.process_state is ProcessState.LIVE and view.device_state is DeviceState.WAITING:
        more, facts = _waiting(state, view, now)
        parts += more
    more, about = _preempted(state, view, now)
    parts, facts = [*parts, *more], {**facts, **about}
    if found := estimate(state, view, now):
        facts["estimate"] = found.facts
        # That it is held back is said already, and a step of its own is over in a moment.
        if not (view.held_back or (found.low_s is None and step_of(view))):
            parts.append(found.text)
    return "; ".join(parts), facts


# -- what it waits for ----------------------------------------------------------------------


def _place(
    state: ClusterState, view: SessionView, now: float
) -> tuple[str, list[str], dict[str, Any]]:
    """Its place in the queue, who goes before it by which rule, and the facts of both."""
    number, first = precedence.ahead(state, view, NAMED)
    rules = [precedence.rule(state, other, view) for other in first]
    facts = {
        "place": number + 1,
        "ahead": number,
        "before": [
            {"session": other.label, "tier": other.tier.value, "rule": rule}
            for other, rule in zip(first, rules, strict=True)
        ],
        "waiting_s": round(waited_s(state, view, now), 1),
    }
    named = [
        f"{other.label} ({other.tier.value}, {precedence.WORDS[rule]})"
        for other, rule in zip(first, rules, strict=True)
    ]
    if number > len(first):
        named[-1:] = [f"{named[-1]} and {number - len(first)} more"]
    before = [f"before it: {', '.join(named)}"] if named else []
    return f"place {number + 1} of the queue", before, facts


def _waiting(
    state: ClusterState, view: SessionView, now: float
) -> tuple[list[str], dict[str, Any]]:
    node = state.nodes[view.node]
    place, before, facts = _place(state, view, now)
    holders = [
        f"{device} by {holder.label} ({_doing(holder)})"
        for device, sid in node.leases.items()
        if (holder := state.sessions.get(sid))
    ]
    free = [d for d in node.usable if d not in node.leases]
    drained = [d for d in node.devices if d not in node.usable]
    facts |= {"free": free, "holders": holders, "drained": drained}
    seconds = waited_s(state, view, now)
    waits = f", waiting for {duration(seconds)}" if seconds >= 1 else ""
    parts = [f"{place} for {view.tier.value}{waits}"]
    parts += _of_gang(state, view, facts)
    if drained:
        parts.append(f"drained: {', '.join(drained)}")
    stuck = not node.connected or node.duty.leaving or len(node.usable) < view.needs
    if stuck or quotas.barred(Draft(state, now), view):
        return parts, facts  # the estimate says why
    parts += before
    if holders:
        parts.append(f"in use: {', '.join(holders)}")
    if free:
        but = "" if view.part else " but not enough or kept for who is before it"
        parts.append(f"free{but}: {', '.join(free)}")
    return parts, facts


def _queued(state: ClusterState, view: SessionView, now: float) -> tuple[list[str], dict[str, Any]]:
    node = state.nodes[view.node]
    place, before, facts = _place(state, view, now)
    running = [
        other
        for sid in sorted(node.runs)
        if (other := state.sessions[sid]).tier.rank >= view.tier.rank
    ]
    facts |= {
        "running": [other.label for other in running[:NAMED]],
        "devices_of_runs": sum(other.admitted_milli for other in running) / 1000,
        "devices_of_node": len(node.usable),
    }
    parts = [f"it needs {reasons.needed(view)} and is at {place}"]
    parts += _of_gang(state, view, facts)
    stuck = not node.connected or node.duty.duty is not NodeDuty.OPEN
    if stuck or view.needs > len(node.usable):
        return parts, facts
    if view.member is not None:
        at_once = groups.running(Draft(state, now), view.member.group)
        facts["group"] = {"running": at_once, "max_parallel": view.member.max_parallel}
        if groups.full(Draft(state, now), view.member):
            return [f"{at_once} of its group run now", *parts], facts
    if quotas.run_barred(Draft(state, now), view):
        return parts, facts
    parts += before
    if running:
        parts.append(f"it starts when there is room after: {_named(running)}")
    return parts, facts


def _of_gang(state: ClusterState, view: SessionView, facts: dict[str, Any]) -> list[str]:
    """What the other parts of its gang are doing: it goes on together with them."""
    if view.part is None:
        return []
    draft = Draft(state, state.latest)
    facts["gang"] = {
        str(other.part.number): {"session": other.id, "node": other.node, "state": other.word}
        for other in gangs.others(draft, view)
        if other.part is not None
    }
    return ["all parts of its gang go on together", *gangs.waits_for(draft, view)]


def _returning(
    state: ClusterState, view: SessionView, now: float
) -> tuple[list[str], dict[str, Any]]:
    place, before, facts = _place(state, view, now)
    why = placement.waits(Draft(state, now), view)
    facts["why"] = render(why)
    said = (
        [] if any(one.find("why") == why for one in view.why.chain()) else [f"now: {render(why)}"]
    )
    return [f"{place} for nodes", *before, *said], facts


def _named(sessions: list[SessionView]) -> str:
    """The first of them by name and tier."""
    shown = sessions[:NAMED]
    names = ", ".join(f"{other.label} ({other.tier.value})" for other in shown)
    more = len(sessions) - len(shown)
    return f"{names} and {more} more" if more else names


def _doing(holder: SessionView) -> str:
    if holder.device_state is DeviceState.HELD:
        return f"{holder.tier.value}, {'idle' if holder.idle else 'busy'}"
    return f"{holder.tier.value}, {holder.device_state.value}"


def _kept(state: ClusterState, view: SessionView, now: float) -> tuple[str, dict[str, Any]] | None:
    """For how long somebody keeps it alive."""
    end = keeping.end_of(view, state.parameters)
    if end is None or end <= now:
        return None
    text = (
        f"It is kept alive for another {short(end - now)}: until then it is not parked for being "
        "idle, but a higher tier, or one of its tier that was served less, still goes first"
    )
    return text, {"kept_s": round(end - now, 1)}


def _rests(state: ClusterState, view: SessionView, now: float) -> tuple[str, dict[str, Any]] | None:
    """From when on an idle holder gives its devices to others, and when it is parked by itself."""
    if view.device_state is not DeviceState.HELD:
        return None
    gives_at = turns.released_at(state, view)
    parks_at = parked_at(state, view)
    if not view.idle and parks_at is None:
        return None
    if view.idle and view.unused_since == 0.0:  # as `turns.holder_claim`
        return (
            "Its cell has ended, but calls reached its devices until now: it still counts as busy",
            {},
        )
    parts, facts = [], {}
    if view.idle:
        text = "it gives its devices to the next session that needs them"
        if gives_at is not None and gives_at > now:
            text += f" in {short(gives_at - now)} or later"
        parts.append(text)
    if gives_at is not None:
        facts["gives_in_s"] = round(max(0.0, gives_at - now), 1)
    if parks_at is not None:
        facts["parks_in_s"] = round(max(0.0, parks_at - now), 1)
        parts.append(f"it is parked by itself in {short(max(0.0, parks_at - now))} (idle_soft_s)")
    most = min(view.most, len(state.nodes[view.node].usable))
    if view.idle and len(view.physical) < most:
        facts["grows_to"] = most
        parts.append(
            f"with its next cell it gets up to {reasons.count(most)}, as many as are free then"
        )
    what = "It is idle" if view.idle else "No call reaches its devices"
    return f"{what}, so {reasons.listed(tuple(parts))}", facts


# -- what was taken from it -----------------------------------------------------------------


def _preempted(
    state: ClusterState, view: SessionView, now: float
) -> tuple[list[str], dict[str, Any]]:
    """By whom, by which rule, when, and what was saved; nothing of a session that lost nothing."""
    taken = state.experience.taken.get(view.id)
    if taken is None or not _lacks(view, taken):
        return [], {}
    saved, kept = _saved(view, now)
    facts = {
        "preempted": {
            "by": taken.why.by,
            "tier": taken.why.tier,
            "rule": taken.rule,
            "meaning": RULES[taken.rule],
            "reason": render_first(taken.why),
            **reason_facts(taken.why),
            "since_s": round(max(0.0, now - taken.at), 1),
            "saved": kept,
        }
    }
    root, rule = view.why.root, f"rule {taken.rule}"
    said = f"before that: {render_briefly(taken.why)} ({rule})"
    parts = [rule if root == taken.why else said]
    leaves = view.process_state is ProcessState.SUSPENDING and root.code in _SAY_WHERE
    if not (root.code == "suspended" or leaves):
        parts.append(saved)
    return parts, facts


def _lacks(view: SessionView, taken: Taken) -> bool:
    """Whether it has not got back what was taken."""
    if view.process_state in _AWAY:
        return True
    return view.device_state in _OFF and not (
        taken.process and view.device_state is DeviceState.PARKED
    )


def _saved(view: SessionView, now: float) -> tuple[str, dict[str, Any]]:
    """What there is of it while it has no devices, and where."""
    newest = view.newest_whole
    stored = newest and {
        "checkpoint": newest.id,
        "name": newest.name,
        "bytes": newest.bytes,
        "age_s": round(max(0.0, now - newest.at), 1),
    }
    if view.process_state is ProcessState.SUSPENDING:
        said = "everything of it is on its way to the store"
        return said, {"where": "store", "level": "process", "done": False, **(stored or {})}
    if view.process_state in _AWAY and newest is not None:
        age = duration(max(0.0, now - newest.at))
        name = reasons.shown(newest)
        said = f"everything of it is in checkpoint {name} ({size(newest.bytes)}, {age} old)"
        return said, {"where": "store", "level": "process", "done": True, **(stored or {})}
    done = view.device_state is not DeviceState.PARKING
    verb = "is kept" if done else "is being saved"
    said = f"its device state {verb} in the memory of node {view.node}"
    facts = {"where": "node", "node": view.node, "level": "device", "done": done}
    return said, {**facts, "stored": stored or None}
