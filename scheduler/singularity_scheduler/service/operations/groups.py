"""The operations on groups: sessions that are submitted together, such as the runs of a sweep."""

from __future__ import annotations

import json
from typing import Any

from singularity_proxy.errors import NotFound

from singularity_scheduler.requests.group_spec import MAX_MEMBERS, parse_group
from singularity_scheduler.requests.run_spec import MAX_TIMEOUT_S
from singularity_scheduler.service.api import checks
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.api.paging import CURSOR, LIMIT, LINK, link
from singularity_scheduler.service.desk.groups import (
    details_document,
    group_document,
    results_document,
)
from singularity_scheduler.service.ledger.group_rows import GroupRow
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas import sessions as session_schemas
from singularity_scheduler.service.schemas.vocabulary import (
    COUNT,
    PROCESS_STATE,
    STATE,
    TEXT,
    TIME,
    listed,
    nullable,
    record,
    ref,
)

from .table import MAX_GRACE_S, Reply, Who, operation

_GROUP = {
    "id": TEXT,
    "user": TEXT,
    "name": TEXT,
    "state": {
        **PROCESS_STATE,
        "description": "queued until a member starts, live until all have ended, then failed if "
        "one has, else cancelled if one was, else completed.",
    },
    "members": COUNT,
    "states": {
        "type": "object",
        "additionalProperties": COUNT,
        "description": "The one word of a session -> how many members are in that state.",
    },
    **session_schemas.LIMITS,
    "created_at": TIME,
    "updated_at": {**TIME, "description": "When a member changed last."},
}

_REACHED = {
    **nullable(record({"session": TEXT, "reason": TEXT})),
    "description": "The member that met `stop_when`, and how; null: none has.",
}

schemas.COMPONENTS |= {
    "NewGroup": {
        "type": "object",
        "description": "Runs that are submitted together, all or none.",
        "properties": {
            "session": {
                "allOf": [
                    ref("NewSession"),
                    {"required": ["run"], "properties": {"run": {"type": "object"}}},
                ],
                "description": "What they have in common; its `run` says what is run.",
            },
            "members": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_MEMBERS,
                "items": record(
                    {
                        "values": {
                            "type": "object",
                            "description": "Name -> value: over the notebook's parameters. At "
                            "most 2 KiB.",
                        },
                        "command": {
                            **nullable(TEXT),
                            "description": "In place of the session's; of commands alone.",
                        },
                    },
                    "command",
                ),
                "description": "What tells each from the others.",
            },
            "max_parallel": nullable({"type": "integer", "minimum": 1, "maximum": MAX_MEMBERS}),
            "timeout_s": {
                **nullable({"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_S}),
                "description": "So many seconds after it was submitted all of it is ended, waiting "
                "included; null: no limit.",
            },
            "stop_on_failure": nullable({"type": "boolean"}),
            "stop_when": {
                **nullable({"type": "string", "maxLength": 200}),
                "description": "A name, a comparison (<, <=, >, >=, ==, !=) and a number, such as "
                "loss<0.01.",
            },
            "objective": nullable(session_schemas.OBJECTIVE),
        },
        "required": ["session", "members"],
        "additionalProperties": False,
    },
    "Group": record(_GROUP),
    "GroupDetails": record({**_GROUP, "reached": _REACHED, "sessions": listed(ref("Session"))}),
    "GroupResults": record(
        {
            **_GROUP,
            "reached": _REACHED,
            "best": {**nullable(TEXT), "description": "The session that is best by `objective`."},
            "values": {**listed(TEXT), "description": "Names of what tells the members apart."},
            "recorded": {**listed(TEXT), "description": "Names of what they recorded."},
            "results": listed(
                record(
                    {
                        "number": COUNT,
                        "session": TEXT,
                        "state": STATE,
                        "exit_code": nullable({"type": "integer"}),
                        "values": {"type": "object"},
                        "recorded": {"type": "object"},
                    }
                )
            ),
        }
    ),
    "GroupPage": record({"groups": listed(ref("Group")), "next": nullable(TEXT)}),
    "GroupEnd": record(
        {
            "reason": nullable({"type": "string", "maxLength": 500, "format": "printable"}),
            "grace_s": {
                **nullable({"type": "number", "minimum": 0, "maximum": int(MAX_GRACE_S)}),
                "description": "Seconds that processes get after SIGTERM; null: 5.",
            },
        },
        "reason",
        "grace_s",
    ),
}


def _explain_new(call: Endpoint, body: dict[str, Any]) -> None:
    parse_group(body, "", largest=call.controller.largest)


@operation(
    "POST",
    "groups",
    "Submit a group of runs, all of it or nothing. Answered as soon as it is durable; its members "
    "start when it is their turn, at most `max_parallel` of them at a time.",
    answer="GroupDetails",
    who=Who.USER,
    body="NewGroup",
    explain=_explain_new,
    status=201,
    headers={"Location": "Address of the group."},
    errors=(NotFound,),
    verb="create",
)
async def create_group(call: Endpoint) -> Reply:
    body, controller = call.body, call.controller
    row = await controller.groups.create(
        call.caller.name,
        lambda group: parse_group(body, group, largest=controller.largest),
        server=call.caller.server,
        key=call.key,
        fingerprint=call.fingerprint,
    )
    where = f"{call.request.path.rstrip('/')}/{row.id}"
    return await _details(call, row, {"Location": where})


@operation(
    "GET",
    "groups",
    "Groups one may see, newest first, in pages; the `Link` header leads to the next one.",
    answer="GroupPage",
    query=(LIMIT, CURSOR),
    headers=LINK,
)
async def list_groups(call: Endpoint) -> Reply:
    scope = repr(("groups", call.caller.sees))
    at = checks.read_cursor(call.query["cursor"], scope, (float, str))
    rows, after = await call.controller.groups.page(
        call.caller.sees, call.query["limit"], (at[0], at[1]) if at else None
    )
    following = checks.make_cursor((float(after[0]), after[1]), scope) if after else None
    document = {"groups": [group_document(row) for row in rows], "next": following}
    return Reply(document, headers=link(call, following))


@operation(
    "GET", "groups/{group}", "One group and its members by their numbers.", answer="GroupDetails"
)
async def get_group(call: Endpoint) -> Reply:
    return await _details(call, await _group(call))


@operation(
    "GET",
    "groups/{group}/results",
    "What its members recorded, by their numbers.",
    answer="GroupResults",
)
async def get_group_results(call: Endpoint) -> Reply:
    row = await _group(call)
    views = await call.controller.groups.members(row.id)
    return Reply(results_document(row, views))


@operation(
    "POST",
    "groups/{group}/cancel",
    "End all members that have not ended; may be repeated.",
    answer="GroupDetails",
    body="GroupEnd",
    verb="end",
)
async def cancel_group(call: Endpoint) -> Reply:
    row = await _group(call)
    grace_s = call.body.get("grace_s")
    ended = await call.controller.groups.end(
        row.id,
        call.caller.name,
        call.body.get("reason") or "",
        5.0 if grace_s is None else float(grace_s),
        key=call.key,
        fingerprint=call.fingerprint,
    )
    return await _details(call, ended)


async def _group(call: Endpoint) -> GroupRow:
    """The group in the path, if the caller may see it; others' are not there at all."""
    group = call.path_values["group"]
    row = await call.controller.groups.find(group)
    if not call.caller.admin and (row.user != call.caller.name or not call.caller.is_user):
        raise NotFound(f"there is no group {group}", group=group)
    return row


async def _details(call: Endpoint, row: GroupRow, headers: dict[str, str] | None = None) -> Reply:
    views = await call.controller.groups.members(row.id)
    document = details_document(row, views)
    texts = call.services.texts.sessions(views)
    text = f'{json.dumps(document)[:-1]}, "sessions": {texts}}}'
    return Reply(text.encode(), headers=headers or {})
