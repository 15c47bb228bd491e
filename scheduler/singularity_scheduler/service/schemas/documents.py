"""The JSON documents of the API, made from the values of `core`; the one place with their keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import chain, islice
from typing import Any

from singularity_scheduler.core.moves import scaling
from singularity_scheduler.core.state import checkpoints, shares
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.devices import DeviceHealth
from singularity_scheduler.core.state.stored import CheckpointRef, LossReport
from singularity_scheduler.core.steps import goals, keeping, tiers, turns
from singularity_scheduler.core.values.model import Change, SessionView
from singularity_scheduler.core.values.requested import BatchRun, Member, Part, Tier
from singularity_scheduler.core.values.states import DeviceState, ProcessState
from singularity_scheduler.explain import planned
from singularity_scheduler.explain.facts import reason_facts
from singularity_scheduler.model.session import SHOWN
from singularity_scheduler.requests.size_spec import policy_document
from singularity_scheduler.text.reasons import render, render_change, render_words

Json = dict[str, Any]

MAX_OTHERS = 20
"""How many other waiting sessions a status names."""


def iso(at: float | None) -> str | None:
    """UNIX seconds as ISO 8601 in UTC with milliseconds; None stays None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def parse_iso(text: object, fallback: float) -> float:
    """UNIX seconds of an ISO 8601 time or of a number; `fallback` for anything else."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return fallback


def session_document(
    state: ClusterState, view: SessionView, run: Callable[[BatchRun], Json] | None = None
) -> Json:
    """One session as REST, the event stream and the magics show it; `run`: how its run is shown,
    if not by `run_document`."""
    checkpoint = view.last_checkpoint
    return {
        "id": view.id,
        "user": view.user,
        "kind": view.kind.value,
        "name": view.name,
        "tier": view.tier.value,
        "state": view.word,
        "process_state": view.process_state.value,
        "device_state": view.device_state.value,
        "reason": render(view.why),
        **reason_facts(view.why),
        "idle_since": iso(view.idle_since),
        "unused_since": iso(view.unused_since or None) if view.leased else None,
        "keep_until": iso(keep_until(state, view)),
        "planned": planned_document(state, view),
        "gives_at": iso(planned.given_at(state, view)),
        "busy": view.busy is not False,
        "virtual_devices": view.virtual_devices,
        "device_share": view.share_milli / 1000,
        "devices": list(view.devices),
        "physical_devices": len(view.physical),
        "resizable": resizable_document(state, view),
        "scale_policy": view.scale and policy_document(view.scale),
        "node": view.node,
        "cluster": view.cluster,
        "region": state.geography.region(view.cluster),
        "created_at": iso(view.created_at),
        "updated_at": iso(view.updated_at),
        "waiting_since": iso(view.waiting_since),
        "queue": queue_document(state, view),
        "sla": sla_document(state, view),
        "last_checkpoint": checkpoint and checkpoint_document(checkpoint),
        "checkpoints": sum(not c.dropped for c in view.checkpoints),
        "undo_end": undo_document(view),
        "loss": view.loss and loss_document(view.loss),
        "progress": state.progress.get(view.id),
        "held_back": view.held_back,
        "run": view.run and (run or run_document)(view.run),
        "group": view.member and member_document(view.member),
        "part": view.part and part_document(view.part),
        "recorded": json.loads(view.recorded),
        **_declared_fields(view),
        "owner": {} if view.server is None else {"server": view.server},
    }


_SAME = tuple((each.key, each.name) for each in SHOWN if each.shows is None)
_OTHER = tuple((each.key, each.name, each.shows) for each in SHOWN if each.shows is not None)


def _declared_fields(view: SessionView) -> Json:
    """The fields that are shown as they are."""
    values = vars(view)
    found = {key: values[name] for key, name in _SAME}
    for key, name, shows in _OTHER:
        found[key] = shows(values[name])
    return found


def keep_until(state: ClusterState, view: SessionView) -> float | None:
    """Until when it is kept alive; None when nobody keeps it, or that is over."""
    end = keeping.end_of(view, state.parameters)
    return None if end is None or view.final or end <= state.latest else end


def resizable_document(state: ClusterState, view: SessionView) -> Json | None:
    """On how many physical devices it may be asked to run; None: there is no choice."""
    if view.final or view.virtual_devices < 2:
        return None
    node = state.nodes.get(view.node)
    largest = len(node.devices) if node and node.devices else view.virtual_devices
    counts = [count for count in scaling.allowed(view) if count <= largest]
    if len(counts) < 2:
        return None
    return {"min": counts[0], "max": counts[-1], "counts": counts}


def planned_document(state: ClusterState, view: SessionView) -> Json | None:
    """What comes by itself if nothing else happens to it."""
    found = planned.planned(state, view)
    if found is None:
        return None
    return {
        "what": found.what.value,
        "at": iso(found.at),
        "rule": found.rule,
        "why": render(found.why),
        **reason_facts(found.why),
    }


def checkpoint_document(reference: CheckpointRef) -> Json:
    """One stored checkpoint."""
    return {
        "id": reference.id,
        "name": reference.name,
        "at": iso(reference.at),
        "level": reference.level,
        "bytes": reference.bytes,
        "stored_bytes": reference.stored_bytes,
        "sent_bytes": reference.sent_bytes,
        "incarnation": reference.incarnation,
        "reason": reference.reason,
        "cause": reference.cause,
        "damaged": reference.damaged or None,
        "proved_at": iso(reference.proved_at),
        "unproved": reference.proof_fault or None,
        # Gangs go back by themselves alone, and are not forked.
        "restorable": reference.whole and not reference.set_id,
    }


def undo_document(view: SessionView) -> Json | None:
    """What the end of a session can be taken back with, and until when; None: it cannot be."""
    if not view.final or view.member is not None:
        return None
    reference = checkpoints.undo_of(view, view.process_state is ProcessState.COMPLETED)
    if reference is None or not reference.whole or not (reference.name or reference.undo_until):
        return None
    until = None if reference.name else iso(reference.undo_until)
    return {"checkpoint": reference.id, "name": reference.name, "until": until}


def checkpoints_document(view: SessionView) -> list[Json]:
    """Those that people see, newest first."""
    return [checkpoint_document(c) for c in reversed(view.checkpoints) if not c.dropped]


def loss_document(loss: LossReport) -> Json:
    """What a restore brought back and what it could not."""
    return {
        "level": loss.level,
        "back": list(loss.back),
        "lost": list(loss.lost),
        "rolled_back": loss.rolled_back,
        "hashes_checked": loss.hashes_checked,
        "checkpoint": loss.checkpoint,
        "requests_again": loss.requests_again,
        "outputs_rolled_back": loss.outputs_rolled_back,
        "requests_lost": loss.requests_lost,
        "at": iso(loss.at or None),
    }


def may_wait(view: SessionView) -> bool:
    """Whether it has a place in the queue while it is active."""
    waits = view.device_state is DeviceState.WAITING or view.pending or view.returning
    return waits and not view.held_back


def queue_document(state: ClusterState, view: SessionView) -> Json | None:
    """Its place while it waits or is queued; the one part of a document that changes without the
    session."""
    if not may_wait(view) or view.id not in state.sessions:
        return None
    place = turns.place(state, view)
    return {"place": place, "ahead": place - 1}


def sla_document(state: ClusterState, view: SessionView) -> Json:
    """What it got of what its tier promises, up to now."""
    parameters = state.parameters
    share = view.share if view.final else shares.accounted(view, state.latest, parameters)
    return {
        "promised_fraction": parameters.fraction(view.tier.value),
        "window_s": parameters.sla_window_s,
        "windows": share.windows,
        "windows_kept": share.kept,
        "wanted_s": round(share.wanted_s, 3),
        "got_s": round(share.got_s, 3),
        "attained_device_s": round(share.attained_device_s, 3),
    }


def run_document(run: BatchRun) -> Json:
    """A run without the values of its variables: who may look at a session need not see them."""
    return {
        "notebook": run.notebook or None,
        "command": run.command or None,
        "ranked": run.ranked,
        "output": run.output,
        "parameters": json.loads(run.parameters),
        "kernel": run.kernel,
        "folder": run.folder,
        "variables": sorted(json.loads(run.variables)),
        "timeout_s": run.timeout_s,
        "max_retries": run.max_retries,
        "metadata": json.loads(run.metadata),
    }


def member_document(member: Member) -> Json:
    """A session's part in its group."""
    return {
        "id": member.group,
        "name": member.name,
        "number": member.number,
        "members": member.members,
        "values": json.loads(member.values),
        **limits_document(member),
    }


def part_document(part: Part) -> Json:
    """A session's part in its gang; without its secret."""
    return {
        "gang": part.gang,
        "number": part.number,
        "parts": part.parts,
        "sessions": list(part.sessions),
    }


def limits_document(member: Member) -> Json:
    """What holds for the whole group."""
    return {
        "max_parallel": member.max_parallel,
        "timeout_s": member.timeout_s,
        "stop_on_failure": member.stop_on_failure,
        "stop_when": member.stop_when or None,
        "objective": objective_document(member.objective),
    }


def objective_document(text: str) -> Json | None:
    """Which member of a group is the best, as a request has it."""
    found = goals.objective_of(text)
    return {"primary_metric": found.metric, "goal": found.goal} if found else None


def others_waiting(state: ClusterState, view: SessionView) -> list[Json]:
    """Who else waits for devices of the same node, in the order in which they are served, then the
    runs that are queued."""
    line = (state.sessions[session] for session in turns.line(state, view.node))
    waiting = chain(line, state.queued(view.node))
    others = (other for other in waiting if other.id != view.id and may_wait(other))
    return [
        {
            "user": other.user,
            "name": other.name,
            "tier": other.tier.value,
            "devices": other.virtual_devices,
        }
        for other in islice(others, MAX_OTHERS)
    ]


def change_document(change: Change) -> Json:
    return {
        "at": iso(change.at),
        "process_state": change.process_state.value,
        "device_state": change.device_state.value,
        "state": change.word,
        "reason": render_change(change),
        **reason_facts(change.why),
        "rule": change.rule,
    }


def device_document(
    state: ClusterState, node_id: str, device_id: str, visible: set[str] | None
) -> Json:
    """One device; it names its session only to who may see it (`visible`, None: all)."""
    node = state.nodes[node_id]
    device, mark = node.devices.get(device_id), node.mark(device_id)
    health = node.health.get(device_id) or DeviceHealth(device_id)
    holder = node.leases.get(device_id)
    seen = holder if holder is None or visible is None or holder in visible else "other"
    return {
        "id": device_id,
        "node": node_id,
        "type": device.type if device else device_id.partition(":")[0],
        "name": device.name if device else "",
        "capacity_bytes": device.capacity_bytes if device else 0,
        "session": seen,
        "uuid": device.uuid if device else health.uuid,
        "drained": {"by": mark.by or None, "reason": render_words(mark.reason), "at": iso(mark.at)}
        if mark.drained
        else None,
        "health": {
            "present": health.present,
            "memory_used_bytes": health.memory_used_bytes,
            "memory_total_bytes": health.memory_total_bytes,
            "utilisation_percent": health.utilisation_percent,
            "temperature_c": health.temperature_c,
            "power_w": health.power_w,
            "ecc_corrected": health.ecc_corrected,
            "ecc_uncorrected": health.ecc_uncorrected,
            "row_remap_pending": health.row_remap_pending,
            "clock_limits": list(health.clock_limits),
            "xids": [{"code": code, "at": iso(at)} for code, at in health.xids],
            "trouble": health.trouble,
        },
    }


def cluster_document(state: ClusterState, user: str | None) -> Json:
    """Nodes, devices and queues as this user may see them (None: all of it): devices that others
    have are just taken, and tiers that are not open to them are not there."""
    visible = None
    if user is not None:
        visible = {sid for sid, view in state.sessions.items() if view.user == user}
    devices = [
        device_document(state, node.id, device, visible)
        for node in state.nodes.values()
        for device in node.devices
    ]
    waiting = {tier.value: 0 for tier in Tier}
    for node in state.nodes.values():
        for view in chain(state.waiting(node.id), state.queued(node.id)):
            waiting[view.tier.value] += may_wait(view)
    return {
        "nodes": [
            {
                "id": n.id,
                "cluster": n.abilities.cluster or None,
                "region": state.geography.region(n.abilities.cluster) or None,
                "connected": n.connected,
                "devices": len(n.devices),
                "images": {
                    "available": n.connected and not n.abilities.trouble,
                    "reason": n.abilities.trouble,
                },
                "store": n.abilities.store or None,
                "duty": n.duty.duty.value,
                "reason": render_words(n.duty.reason),
            }
            for n in state.nodes.values()
        ],
        "devices": devices,
        "tiers": [tier.value for tier in (tiers.open_to(state, user) if user else Tier)],
        "waiting": waiting,
    }
