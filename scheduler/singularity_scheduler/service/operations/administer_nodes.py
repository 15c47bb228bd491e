"""The operations of administrators on nodes: cordon, drain, notice, upgrade."""

from __future__ import annotations

import time
from typing import Any

from singularity_proxy.errors import BadRequest, NotFound

from singularity_scheduler.core.operations import drains
from singularity_scheduler.core.placement import choice as placement
from singularity_scheduler.core.state.cluster import ClusterState, Node
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values.administration import DutyEvent, NodeDuty, UpgradeState
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.documents import iso, parse_iso
from singularity_scheduler.service.schemas.vocabulary import (
    COUNT,
    STATE,
    TEXT,
    TIER,
    TIME,
    Schema,
    listed,
    nullable,
    record,
    ref,
)
from singularity_scheduler.text.meanings import DUTIES
from singularity_scheduler.text.reasons import render, render_words

from .administer import REASON
from .table import Reply, Who, operation

Json = dict[str, Any]

MAX_AHEAD_S = 30 * 86400

_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": MAX_AHEAD_S}

_STAYING = record(
    {
        "id": TEXT,
        "user": TEXT,
        "name": TEXT,
        "tier": TIER,
        "state": STATE,
        "reason": TEXT,
    }
)

schemas.COMPONENTS |= {
    "AdminNode": record(
        {
            "id": TEXT,
            "cluster": {
                **nullable(TEXT),
                "description": "null: it has not answered since the service began.",
            },
            "connected": {"type": "boolean"},
            "duty": {
                "type": "string",
                "enum": [duty.value for duty in NodeDuty],
                "description": "What it is used for: "
                + "; ".join(f"{duty}: {text}" for duty, text in DUTIES.items()),
            },
            "by": {**nullable(TEXT), "description": "null: by itself."},
            "reason": TEXT,
            "since": nullable(TIME),
            "deadline": nullable(TIME),
            "overdue": {
                "type": "boolean",
                "description": "The deadline of the drain is over and something is still there.",
            },
            "notice": {
                "type": "boolean",
                "description": "Its machine goes away at the deadline, whatever is still there.",
            },
            "force": {
                "type": "boolean",
                "description": "What can neither move nor be stored is ended.",
            },
            "spot": {
                "type": "boolean",
                "description": "Its machine may be taken back with a notice.",
            },
            "version": {**TEXT, "description": "Of its agent."},
            "devices": COUNT,
            "free": {
                **COUNT,
                "description": "Devices that nobody has and that are well.",
            },
            "sessions": {
                **listed(_STAYING),
                "description": "Those of which it has something, in the order in which a drain "
                "takes them off.",
            },
            "connections": {
                **COUNT,
                "description": "Kernel connections that are still here of sessions that are not: "
                "when the machine goes, they are made anew elsewhere.",
            },
        }
    ),
    "AdminNodes": record({"nodes": listed(ref("AdminNode"))}),
    "Cordon": record({"reason": REASON}, "reason"),
    "NodeDrain": record(
        {
            "reason": REASON,
            "deadline_s": {
                **nullable(_SECONDS),
                "description": "Seconds in which it is to be over; null: whenever.",
            },
            "force": {
                "type": "boolean",
                "description": "End what can neither move nor be stored (at the deadline, if there "
                "is one), and say so in its history.",
            },
            "store": {
                "type": "boolean",
                "description": "Sessions that no other node can take wait in the store; false: "
                "such a drain is refused.",
            },
        },
        "reason",
        "deadline_s",
        "force",
        "store",
    ),
    "Notice": record(
        {
            "in_s": {**_SECONDS, "description": "Seconds until the machine goes away."},
            "at": {**TIME, "description": "Or when it does."},
            "reason": REASON,
        },
        "in_s",
        "at",
        "reason",
    ),
    "NewUpgrade": record(
        {
            "nodes": {
                **listed({"type": "string", "minLength": 1, "maxLength": 255}),
                "description": "Which, in this order; none: all of them.",
            },
            "at_once": {
                "type": "integer",
                "minimum": 1,
                "maximum": 100_000,
                "description": "How many may be out at the same time; 1 when it is missing.",
            },
            "wait": {
                "type": "boolean",
                "description": "Sessions that have no room elsewhere wait in the store; false: the "
                "upgrade stops and says so.",
            },
            "reason": REASON,
        },
        "nodes",
        "at_once",
        "wait",
        "reason",
    ),
    "UpgradeChange": record(
        {
            "state": {"type": "string", "enum": ["running", "paused"]},
            "wait": {"type": "boolean"},
        },
        "wait",
    ),
    "Upgrade": record(
        {
            "state": {"type": "string", "enum": ["none", *(s.value for s in UpgradeState)]},
            "why": {**TEXT, "description": "What it waits for when it has stopped."},
            "by": nullable(TEXT),
            "reason": TEXT,
            "at": nullable(TIME),
            "at_once": COUNT,
            "wait": {"type": "boolean"},
            "nodes": listed(
                record(
                    {
                        "node": TEXT,
                        "state": {
                            "type": "string",
                            "enum": [state.value for state in adm.StepState],
                            "description": "out: empty, whoever upgrades it can begin; back: its "
                            "agent came back with another version, or somebody said so.",
                        },
                        "before": {**TEXT, "description": "Version before."},
                        "version": {**TEXT, "description": "Version now."},
                        "left": {**COUNT, "description": "Sessions still there."},
                    }
                )
            ),
        }
    ),
}


# -- documents ------------------------------------------------------------------------------


def node_document(state: ClusterState, node: Node, now: float) -> Json:
    """A node as administrators see it."""
    mark = node.duty
    there = drains.left_on(Draft(state, now), node.id)
    overdue = mark.deadline is not None and now >= mark.deadline and bool(there)
    away = (
        view.origin == node.id and not view.final and not (view.node == node.id and view.here)
        for view in state.sessions.values()
    )
    return {
        "id": node.id,
        "cluster": node.abilities.cluster or None,
        "connected": node.connected,
        "duty": mark.duty.value,
        "by": mark.by or None,
        "reason": render_words(mark.reason),
        "since": iso(mark.at) if mark.at else None,
        "deadline": iso(mark.deadline),
        "overdue": overdue,
        "notice": mark.notice,
        "force": mark.force,
        "spot": node.abilities.spot or mark.notice,
        "version": node.abilities.version,
        "devices": len(node.devices),
        "free": sum(device not in node.leases for device in node.usable),
        "sessions": [
            {
                "id": view.id,
                "user": view.user,
                "name": view.name,
                "tier": view.tier.value,
                "state": view.word,
                "reason": render(view.why),
            }
            for view in there
        ],
        "connections": sum(away),
    }


def upgrade_document(state: ClusterState, now: float) -> Json:
    """The upgrade that is under way, or the last one."""
    upgrade = state.admin.upgrade
    if upgrade is None:
        empty: Json = {"state": "none", "why": "", "by": None, "reason": "", "at": None}
        return empty | {"at_once": 0, "wait": False, "nodes": []}
    draft = Draft(state, now)
    return {
        "state": upgrade.state.value,
        "why": render_words(upgrade.why),
        "by": upgrade.by,
        "reason": upgrade.reason,
        "at": iso(upgrade.at),
        "at_once": upgrade.at_once,
        "wait": upgrade.wait,
        "nodes": [
            {
                "node": step.node,
                "state": step.state.value,
                "before": step.version,
                "version": state.node(step.node).abilities.version,
                "left": len(drains.left_on(draft, step.node)),
            }
            for step in upgrade.steps
        ],
    }


def _node(call: Endpoint) -> Reply:
    controller = call.controller
    node = placement.named(controller.state, call.path_values["node"])
    return Reply(node_document(controller.state, node, controller.now()))


# -- nodes ----------------------------------------------------------------------------------


@operation(
    "GET",
    "admin/nodes",
    "The nodes: what they are used for, who said so and why, and what is on them.",
    answer="AdminNodes",
    who=Who.ADMIN,
)
async def list_nodes(call: Endpoint) -> Reply:
    state, now = call.controller.state, call.controller.now()
    found = [node_document(state, state.nodes[name], now) for name in sorted(state.nodes)]
    return Reply({"nodes": found})


@operation("GET", "admin/nodes/{node}", "One node.", answer="AdminNode", who=Who.ADMIN)
async def get_node(call: Endpoint) -> Reply:
    return _node(call)


async def _tell(call: Endpoint, event: DutyEvent, **more: Any) -> Reply:
    node, reason = call.path_values["node"], str(call.body.get("reason", ""))
    await call.controller.submit(adm.DutyAsked(call.caller.name, node, event, reason, **more))
    return _node(call)


@operation(
    "PUT",
    "admin/nodes/{node}/cordon",
    "Place nothing new on a node; what is there goes on. May be repeated.",
    answer="AdminNode",
    who=Who.ADMIN,
    body="Cordon",
)
async def cordon_node(call: Endpoint) -> Reply:
    return await _tell(call, DutyEvent.CORDON)


@operation(
    "DELETE",
    "admin/nodes/{node}/cordon",
    "Place sessions on a cordoned node again.",
    answer="AdminNode",
    who=Who.ADMIN,
)
async def uncordon_node(call: Endpoint) -> Reply:
    return await _tell(call, DutyEvent.UNCORDON)


@operation(
    "PUT",
    "admin/nodes/{node}/drain",
    "Empty a node: its sessions go on elsewhere, or wait in the store until there is room; what "
    "cannot be stored is parked and stays. Answered at once; `sessions` shows what is still there. "
    "May be repeated, with another deadline. Refused when no other node could take one of them, "
    "unless `store` or `force` says otherwise.",
    answer="AdminNode",
    who=Who.ADMIN,
    body="NodeDrain",
)
async def drain_node(call: Endpoint) -> Reply:
    seconds = call.body.get("deadline_s")
    deadline = None if seconds is None else call.controller.now() + float(seconds)
    force, store = (call.body.get(name) is True for name in ("force", "store"))
    return await _tell(call, DutyEvent.DRAIN, deadline=deadline, force=force, store=store)


@operation(
    "DELETE",
    "admin/nodes/{node}/drain",
    "Call a drain off, or use a drained node again.",
    answer="AdminNode",
    who=Who.ADMIN,
)
async def undrain_node(call: Endpoint) -> Reply:
    return await _tell(call, DutyEvent.UNDRAIN)


@operation(
    "PUT",
    "admin/nodes/{node}/notice",
    "The machine of a node goes away at that time: it is drained until then, those of a higher "
    "tier first. When it comes back as a new machine it is used again.",
    answer="AdminNode",
    who=Who.ADMIN,
    body="Notice",
)
async def notice_node(call: Endpoint) -> Reply:
    return await _tell(call, DutyEvent.DRAIN, deadline=_moment(call), notice=True)


def _moment(call: Endpoint) -> float:
    seconds, at = call.body.get("in_s"), call.body.get("at")
    if (seconds is None) == (at is None):
        raise BadRequest("say either in_s (seconds from now) or at (a time), not both or neither")
    now = call.controller.now()
    if seconds is not None:
        return now + float(seconds)
    moment = parse_iso(at, 0.0)
    if not moment or moment - time.time() > MAX_AHEAD_S:
        raise BadRequest(
            "at must be a time (ISO 8601) within the next 30 days, for example "
            "2027-01-31T12:00:00+00:00"
        )
    return moment


# -- upgrades -------------------------------------------------------------------------------


def _upgrade(call: Endpoint) -> Reply:
    return Reply(upgrade_document(call.controller.state, call.controller.now()))


@operation(
    "GET",
    "admin/upgrade",
    "The upgrade of nodes that is under way, or the last one.",
    answer="Upgrade",
    who=Who.ADMIN,
)
async def get_upgrade(call: Endpoint) -> Reply:
    return _upgrade(call)


@operation(
    "PUT",
    "admin/upgrade",
    "Begin an upgrade of nodes: some at a time are drained, wait until they are back with another "
    "version (or somebody says so), and are used again. It stops when there is no room elsewhere.",
    answer="Upgrade",
    who=Who.ADMIN,
    body="NewUpgrade",
    errors=(NotFound,),
)
async def begin_upgrade(call: Endpoint) -> Reply:
    body = call.body
    await call.controller.submit(
        adm.UpgradeAsked(
            call.caller.name,
            tuple(body.get("nodes", ())),
            body.get("at_once", 1),
            body.get("reason", ""),
            body.get("wait") is True,
        )
    )
    return _upgrade(call)


@operation(
    "PATCH",
    "admin/upgrade",
    "Pause an upgrade (nothing new is drained) or let it go on, after it stopped too.",
    answer="Upgrade",
    who=Who.ADMIN,
    body="UpgradeChange",
    errors=(NotFound,),
)
async def change_upgrade(call: Endpoint) -> Reply:
    state = UpgradeState(call.body["state"])
    event = adm.UpgradeChange(call.caller.name, state, call.body.get("wait"))
    await call.controller.submit(event)
    return _upgrade(call)


@operation(
    "DELETE",
    "admin/upgrade",
    "Cancel an upgrade: the nodes that it took out are used again.",
    answer="Upgrade",
    who=Who.ADMIN,
    errors=(NotFound,),
)
async def cancel_upgrade(call: Endpoint) -> Reply:
    await call.controller.submit(adm.UpgradeChange(call.caller.name, UpgradeState.CANCELLED))
    return _upgrade(call)


@operation(
    "PUT",
    "admin/upgrade/nodes/{node}",
    "Say that a node of the upgrade is upgraded, so that it is used again.",
    answer="Upgrade",
    who=Who.ADMIN,
    body="Nothing",
)
async def finish_node(call: Endpoint) -> Reply:
    event = adm.UpgradedAsked(call.caller.name, call.path_values["node"])
    await call.controller.submit(event)
    return _upgrade(call)
