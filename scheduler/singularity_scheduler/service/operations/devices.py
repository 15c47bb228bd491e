"""The operations on devices: an administrator drains one, or returns it."""

from __future__ import annotations

from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.vocabulary import record

from .table import Reply, Who, operation

schemas.COMPONENTS |= {
    "Drain": record(
        {
            "reason": {
                "type": "string",
                "maxLength": 500,
                "format": "printable",
                "description": "Why, for everybody to read.",
            }
        },
        "reason",
    ),
}


@operation(
    "PUT",
    "nodes/{node}/devices/{device}/drain",
    "Give a device to no session any more. Those on it leave: nothing is lost, they come back on "
    "another device. May be repeated.",
    answer="Device",
    who=Who.ADMIN,
    body="Drain",
)
async def drain_device(call: Endpoint) -> Reply:
    node, device = call.path_values["node"], call.path_values["device"]
    reason = str(call.body.get("reason", ""))
    return Reply(await call.controller.drain(node, device, call.caller.name, reason))


@operation(
    "DELETE",
    "nodes/{node}/devices/{device}/drain",
    "Let sessions have a drained device again. What it was drained for is acknowledged: the same "
    "fault does not drain it again, a new one does.",
    answer="Device",
    who=Who.ADMIN,
)
async def return_device(call: Endpoint) -> Reply:
    node, device = call.path_values["node"], call.path_values["device"]
    return Reply(await call.controller.give_back(node, device, call.caller.name))
