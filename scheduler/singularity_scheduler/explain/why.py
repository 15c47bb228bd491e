"""Why a session is in its state: one sentence for people and the facts behind it. Pure.

`text` says what it waits for, its place, who goes before it by which rule, and when it is expected
(`estimate`); of one that was preempted by whom, by which rule, and what was saved. `told` puts the
same text into the history, so that it is also what the events of that moment say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from singularity_scheduler.core.gangs import members as gangs
from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.reasons import of_devices as reasons
from singularity_scheduler.core.reasons.reason import Reason, because
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.decision import Decision
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.state.experience import Taken
from singularity_scheduler.core.steps import groups, keeping, turns
from singularity_scheduler.core.values.administration import NodeDuty
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.core.values.rules import RULES
from singularity_scheduler.core.values.states import WORDS, DeviceState, ProcessState
from singularity_scheduler.text.phrases import holder as name_holder
from singularity_scheduler.text.phrases import told_of
from singularity_scheduler.text.reasons import render, render_change, render_first

from . import precedence
from .estimate import estimate, parked_at, step_of, waited_s
from .facts import reason_facts

Clause = tuple[Reason, dict[str, Any]]
Clauses = tuple[list[Reason], dict[str, Any]]
"""What is said, and the facts of it."""

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
        "reason": render(view.why),
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
    besides = []
    for about in (_kept, _rests):
        if not view.final and (found := about(state, view, now)):
            besides.append(render(found[0]))
            facts |= found[1]
    return {"sentence": told_of(view.label, view.word, said, besides), "facts": facts}


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
            if said != render_change(lines[number]):
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
        return render(view.why), {}
    parts = [view.why]
    facts: dict[str, Any] = {}
    if view.held_back and (view.pending or view.device_state is DeviceState.WAITING):
        parts = [reasons.held_back(view)]
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
            parts.append(found.said)
    return "; ".join(map(render, parts)), facts


# -- what it waits for ----------------------------------------------------------------------


def _place(
    state: ClusterState, view: SessionView, now: float
) -> tuple[int, list[Reason], dict[str, Any]]:
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
    named = tuple(
        (other.label, other.tier.value, rule) for other, rule in zip(first, rules, strict=True)
    )
    if not named:
        return number + 1, [], facts
    more = number - len(first)
    before = because("goes_after", before=named, more=more, looked_at=turns.LOOKED_AT)
    return number + 1, [before], facts


def _waiting(state: ClusterState, view: SessionView, now: float) -> Clauses:
    node = state.nodes[view.node]
    place, before, facts = _place(state, view, now)
    holders = tuple(
        (device, holder.label, holder.tier.value, _doing(holder))
        for device, sid in node.leases.items()
        if (holder := state.sessions.get(sid))
    )
    free = tuple(d for d in node.usable if d not in node.leases)
    drained = tuple(d for d in node.devices if d not in node.usable)
    used = [name_holder(*one) for one in holders]
    facts |= {"free": list(free), "holders": used, "drained": list(drained)}
    waiting_s = waited_s(state, view, now)
    tier = view.tier.value
    parts = [because("place_for_devices", place=place, tier=tier, waiting_s=waiting_s)]
    parts += _of_gang(state, view, facts)
    if drained:
        parts.append(because("drained_there", devices=drained))
    stuck = not node.connected or node.duty.leaving or len(node.usable) < view.needs
    if stuck or quotas.barred(Draft(state, now), view):
        return parts, facts  # the estimate says why
    parts += before
    if holders:
        parts.append(because("used_there", holders=holders))
    if free:
        parts.append(because("free_there", devices=free, part=view.part is not None))
    return parts, facts


def _queued(state: ClusterState, view: SessionView, now: float) -> Clauses:
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
    parts = [because("needs_and_place", least=view.needs, most=view.most, place=place)]
    parts += _of_gang(state, view, facts)
    stuck = not node.connected or node.duty.duty is not NodeDuty.OPEN
    if stuck or view.needs > len(node.usable):
        return parts, facts
    if view.member is not None:
        at_once = groups.running(Draft(state, now), view.member.group)
        facts["group"] = {"running": at_once, "max_parallel": view.member.max_parallel}
        if groups.full(Draft(state, now), view.member):
            return [because("group_is_full", running=at_once), *parts], facts
    if quotas.run_barred(Draft(state, now), view):
        return parts, facts
    parts += before
    if running:
        named = tuple((other.label, other.tier.value) for other in running[:NAMED])
        parts.append(because("starts_after", running=named, more=len(running) - len(named)))
    return parts, facts


def _of_gang(state: ClusterState, view: SessionView, facts: dict[str, Any]) -> list[Reason]:
    """What the other parts of its gang are doing: it goes on together with them."""
    if view.part is None:
        return []
    others = [
        (other.part.number, other)
        for other in gangs.others(Draft(state, state.latest), view)
        if other.part is not None
    ]
    facts["gang"] = {
        str(number): {"session": other.id, "node": other.node, "state": other.word}
        for number, other in others
    }
    each = (
        because("other_part_is", part=number, node=other.node, word=other.word)
        for number, other in others
    )
    return [because("parts_go_together"), *each]


def _returning(state: ClusterState, view: SessionView, now: float) -> Clauses:
    place, before, facts = _place(state, view, now)
    why = placement.waits(Draft(state, now), view)
    facts["why"] = render(why)
    known = any(one.find("why") == why for one in view.why.chain())
    said = [] if known else [because("now", why=why)]
    return [because("place_for_nodes", place=place), *before, *said], facts


def _doing(holder: SessionView) -> str:
    """Whether it works, or what becomes of its devices."""
    if holder.device_state is DeviceState.HELD:
        return "idle" if holder.idle else "busy"
    return str(holder.device_state.value)


def _kept(state: ClusterState, view: SessionView, now: float) -> Clause | None:
    """For how long somebody keeps it alive."""
    end = keeping.end_of(view, state.parameters)
    if end is None or end <= now:
        return None
    return because("is_kept_alive", left_s=end - now), {"kept_s": round(end - now, 1)}


def _rests(state: ClusterState, view: SessionView, now: float) -> Clause | None:
    """From when on an idle holder gives its devices to others, and when it is parked by itself."""
    if view.device_state is not DeviceState.HELD:
        return None
    gives_at = turns.released_at(state, view)
    parks_at = parked_at(state, view)
    if not view.idle and parks_at is None:
        return None
    if view.idle and view.unused_since == 0.0:  # as `turns.holder_claim`
        return because("still_busy"), {}
    gives_in_s = max(0.0, gives_at - now) if gives_at is not None else None
    parks_in_s = max(0.0, parks_at - now) if parks_at is not None else None
    most = min(view.most, len(state.nodes[view.node].usable))
    grows_to = most if view.idle and len(view.physical) < most else None
    found = {
        "gives_in_s": None if gives_in_s is None else round(gives_in_s, 1),
        "parks_in_s": None if parks_in_s is None else round(parks_in_s, 1),
        "grows_to": grows_to,
    }
    reason = because(
        "rests",
        idle=view.idle,
        gives_in_s=gives_in_s or None,
        parks_in_s=parks_in_s,
        grows_to=grows_to,
    )
    return reason, {name: value for name, value in found.items() if value is not None}


# -- what was taken from it -----------------------------------------------------------------


def _preempted(state: ClusterState, view: SessionView, now: float) -> Clauses:
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
    root, rule = view.why.root, taken.rule
    parts = [
        because("by_rule", rule=rule)
        if root == taken.why
        else because("before_that", why=taken.why, rule=rule)
    ]
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


def _saved(view: SessionView, now: float) -> Clause:
    """What there is of it while it has no devices, and where."""
    newest = view.newest_whole
    stored = newest and {
        "checkpoint": newest.id,
        "name": newest.name,
        "bytes": newest.bytes,
        "age_s": round(max(0.0, now - newest.at), 1),
    }
    if view.process_state is ProcessState.SUSPENDING:
        said = because("goes_to_store")
        return said, {"where": "store", "level": "process", "done": False, **(stored or {})}
    if view.process_state in _AWAY and newest is not None:
        said = because(
            "is_in_checkpoint",
            name=reasons.name_of(newest),
            stored_bytes=newest.bytes,
            age_s=reasons.age_s_of(newest, now),
        )
        return said, {"where": "store", "level": "process", "done": True, **(stored or {})}
    done = view.device_state is not DeviceState.PARKING
    said = because("is_in_memory", node=view.node, done=done)
    facts = {"where": "node", "node": view.node, "level": "device", "done": done}
    return said, {**facts, "stored": stored or None}
