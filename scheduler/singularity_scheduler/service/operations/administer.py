"""The operations of administrators: the policy's parameters, nodes, upgrades, quotas, the log."""

from __future__ import annotations

import json
from typing import Any

from singularity_proxy.errors import BadRequest, NotFound

from singularity_scheduler.core.operations import quotas
from singularity_scheduler.core.state.cluster import ClusterState
from singularity_scheduler.core.state.draft import Draft
from singularity_scheduler.core.values import administration as adm
from singularity_scheduler.core.values.parameters import MAX_THRESHOLDS, NAMES, describe, known
from singularity_scheduler.core.values.states import DeviceState
from singularity_scheduler.requests.spec import parse_virtual_cluster
from singularity_scheduler.service.api import checks
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.documents import iso
from singularity_scheduler.service.schemas.vocabulary import (
    COUNT,
    RULE,
    TEXT,
    TIME,
    Schema,
    listed,
    nullable,
    record,
    ref,
)
from singularity_scheduler.text.errors import in_words

from .table import Parameter, Reply, Who, operation

Json = dict[str, Any]

MAX_LINES = 1000
"""Lines of the log on a page."""

REASON: Schema = {
    "type": "string",
    "maxLength": 500,
    "format": "printable",
    "description": "Why, for everybody to read.",
}

_VALUE: Schema = {
    "oneOf": [{"type": "number"}, listed({"type": "number"})],
}


def _bounded(name: str) -> Schema:
    """What a parameter may be; that a list must rise is said when it does not."""
    said = describe(name)
    number: Schema = {"minimum": said["low"], "maximum": said["high"]}
    if isinstance(said["default"], list):
        return {**listed({"type": "number", **number}), "maxItems": MAX_THRESHOLDS}
    return {"type": "integer" if isinstance(said["default"], int) else "number", **number}


schemas.COMPONENTS |= {
    "Parameter": record(
        {
            "name": {"type": "string", "enum": list(NAMES)},
            "value": {**_VALUE, "description": "What the policy works with now."},
            "default": {**_VALUE, "description": "As the service is configured."},
            "set": {"type": "boolean", "description": "Whether an administrator has set it."},
            "low": {"type": "number"},
            "high": {"type": "number"},
            "help": TEXT,
        }
    ),
    "Parameters": record({"parameters": listed(ref("Parameter"))}),
    "ParameterChanges": {
        "type": "object",
        "description": "Name -> value, null for the default; all of them are changed or none.",
        "properties": {
            "parameters": {
                "type": "object",
                "minProperties": 1,
                "properties": {name: nullable(_bounded(name)) for name in NAMES},
                "additionalProperties": False,
            },
            "reason": REASON,
        },
        "required": ["parameters"],
        "additionalProperties": False,
    },
    "AdminLine": record(
        {
            "at": TIME,
            "by": TEXT,
            "verb": TEXT,
            "subject": {
                **TEXT,
                "description": "The parameter, node or virtual cluster.",
            },
            "before": {"description": "What it was."},
            "after": {"description": "What it became."},
            "reason": TEXT,
            "rule": RULE,
        }
    ),
    "AdminLog": record(
        {
            "log": listed(ref("AdminLine")),
            "next": nullable(TEXT),
        }
    ),
}


# -- parameters -----------------------------------------------------------------------------


def parameters_document(state: ClusterState) -> Json:
    now, defaults = state.parameters.as_dict(), state.admin.defaults.as_dict()
    return {
        "parameters": [
            {
                "name": name,
                "value": now[name],
                "default": defaults[name],
                "set": name in state.admin.settings,
                **{key: describe(name)[key] for key in ("low", "high", "help")},
            }
            for name in NAMES
        ]
    }


@operation(
    "GET",
    "admin/parameters",
    "The policy's parameters: what they are, between what they may lie, what they do.",
    answer="Parameters",
    who=Who.ADMIN,
)
async def list_parameters(call: Endpoint) -> Reply:
    return Reply(parameters_document(call.controller.state))


def _explain_parameters(call: Endpoint, body: Json) -> None:
    changes = body.get("parameters")
    if isinstance(changes, dict):
        settings = {name: value for name, value in changes.items() if value is not None}
        try:
            with in_words():
                call.controller.state.parameters.changed(**settings)
        except NotFound as error:
            raise BadRequest(error.message, **error.fields) from None


@operation(
    "PATCH",
    "admin/parameters",
    "Change parameters of the policy; they count from its next decision on and are kept.",
    answer="Parameters",
    who=Who.ADMIN,
    body="ParameterChanges",
    explain=_explain_parameters,
)
async def change_parameters(call: Endpoint) -> Reply:
    changes = tuple(call.body["parameters"].items())
    event = adm.ParametersAsked(call.caller.name, changes, call.body.get("reason", ""))
    await call.controller.submit(event)
    return Reply(parameters_document(call.controller.state))


@operation(
    "DELETE",
    "admin/parameters/{parameter}",
    "Let a parameter have its default again.",
    answer="Parameters",
    who=Who.ADMIN,
)
async def reset_parameter(call: Endpoint) -> Reply:
    name = known(call.path_values["parameter"])
    await call.controller.submit(adm.ParametersAsked(call.caller.name, ((name, None),)))
    return Reply(parameters_document(call.controller.state))


# -- virtual clusters -----------------------------------------------------------------------

schemas.COMPONENTS |= {
    "VirtualCluster": record(
        {
            "name": TEXT,
            "quota_devices": COUNT,
            "may_borrow": {
                "type": "boolean",
                "description": "Whether its sessions may have more while nobody else needs it.",
            },
            "used": {**COUNT, "description": "Devices that its sessions hold."},
            "borrowed": {**COUNT, "description": "Of them, those beyond its quota."},
            "waiting": {**COUNT, "description": "Devices that its sessions wait for."},
            "sessions": COUNT,
        }
    ),
    "VirtualClusters": record({"virtual_clusters": listed(ref("VirtualCluster"))}),
    "Quota": record(
        {
            "quota_devices": {"type": "integer", "minimum": 0, "maximum": quotas.MAX_QUOTA},
            "may_borrow": {"type": "boolean", "description": "true when it is missing."},
            "reason": REASON,
        },
        "may_borrow",
        "reason",
    ),
}


def clusters_document(state: ClusterState, now: float) -> Json:
    draft = Draft(state, now)
    found: dict[str, Json] = {
        name: {
            "name": name,
            "quota_devices": cluster.quota_devices,
            "may_borrow": cluster.may_borrow,
            "used": draft.held_of(name),
            "borrowed": quotas.borrowed(draft, name),
            "waiting": 0,
            "sessions": 0,
        }
        for name, cluster in sorted(state.admin.clusters.items())
    }
    for view in state.sessions.values():
        if view.final or view.virtual_cluster not in found:
            continue
        entry = found[view.virtual_cluster]
        entry["sessions"] += 1
        waits = view.device_state is DeviceState.WAITING or view.pending
        entry["waiting"] += view.virtual_devices if waits else 0
    return {"virtual_clusters": list(found.values())}


def _clusters(call: Endpoint) -> Reply:
    return Reply(clusters_document(call.controller.state, call.controller.now()))


@operation(
    "GET",
    "admin/virtual-clusters",
    "The virtual clusters: how many devices belong to each, and how many it uses and has borrowed.",
    answer="VirtualClusters",
    who=Who.ADMIN,
)
async def list_virtual_clusters(call: Endpoint) -> Reply:
    return _clusters(call)


@operation(
    "PUT",
    "admin/virtual-clusters/{virtual_cluster}",
    "Make a virtual cluster, or give it another quota. It counts from the next decision on.",
    answer="VirtualClusters",
    who=Who.ADMIN,
    body="Quota",
)
async def put_virtual_cluster(call: Endpoint) -> Reply:
    name = parse_virtual_cluster(call.path_values["virtual_cluster"])
    body = call.body
    cluster = adm.VirtualCluster(name, body["quota_devices"], body.get("may_borrow", True))
    await call.controller.submit(adm.QuotaAsked(call.caller.name, cluster, body.get("reason", "")))
    return _clusters(call)


@operation(
    "DELETE",
    "admin/virtual-clusters/{virtual_cluster}",
    "Remove a virtual cluster that has no sessions any more.",
    answer="VirtualClusters",
    who=Who.ADMIN,
)
async def delete_virtual_cluster(call: Endpoint) -> Reply:
    name = call.path_values["virtual_cluster"]
    await call.controller.submit(adm.QuotaGone(call.caller.name, name))
    return _clusters(call)


# -- the log --------------------------------------------------------------------------------


@operation(
    "GET",
    "admin/log",
    "Who changed what, newest first; `next` leads to older lines.",
    answer="AdminLog",
    who=Who.ADMIN,
    query=(
        Parameter(
            "subject",
            {"type": "string", "minLength": 1, "maxLength": 255},
            "Only this parameter, node or virtual cluster.",
        ),
        Parameter(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": MAX_LINES},
            "Most lines of a page.",
            100,
        ),
        Parameter(
            "cursor",
            {"type": "string", "minLength": 1, "maxLength": 500},
            "Where to go on: `next` of the page before.",
        ),
    ),
)
async def list_admin_log(call: Endpoint) -> Reply:
    subject, limit = call.query["subject"], call.query["limit"]
    scope = repr(("admin-log", subject))
    at = checks.read_cursor(call.query["cursor"], scope, (int,))
    lines = await call.controller.ledger.admin_log(subject, limit + 1, at[0] if at else None)
    more = checks.make_cursor((lines[limit - 1][0],), scope) if len(lines) > limit else None
    return Reply({"log": [_line(order) for _, order in lines[:limit]], "next": more})


def _line(order: adm.Order) -> Json:
    values = {"before": json.loads(order.before), "after": json.loads(order.after)}
    return {**vars(order), **values, "at": iso(order.at)}
