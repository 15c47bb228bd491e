"""The operation of accounting."""

from __future__ import annotations

from typing import Any

from singularity_scheduler.client.usage import BY, FIGURES, to_csv
from singularity_scheduler.core.values.requested import MAX_NAME
from singularity_scheduler.service.api import checks
from singularity_scheduler.service.api.endpoint import Endpoint
from singularity_scheduler.service.api.paging import CURSOR, LIMIT, LINK, link
from singularity_scheduler.service.ledger import accounts
from singularity_scheduler.service.ledger.usage_rows import Asked, Place
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.documents import iso
from singularity_scheduler.service.schemas.vocabulary import (
    COUNT,
    KIND,
    SECONDS,
    TEXT,
    TIER,
    TIME,
    Schema,
    listed,
    nullable,
    record,
)

from .table import Parameter, Reply, operation

CSV = "text/csv"

_ABOUT: dict[str, Schema] = {
    "user": TEXT,
    "virtual_cluster": nullable(TEXT),
    "experiment": nullable(TEXT),
    "tier": TIER,
    "day": {"type": "string", "format": "date"},
    "session": TEXT,
    "name": {"type": "string", "maxLength": MAX_NAME},
    "kind": KIND,
    "virtual_devices": COUNT,
    "created_at": TIME,
}

_FIGURES: dict[str, Schema] = {
    name: {**(SECONDS if name.endswith("_s") else COUNT), "description": meaning}
    for name, meaning in FIGURES.items()
}

schemas.COMPONENTS |= {
    "Usage": record(
        {
            "by": {"type": "string", "enum": list(BY)},
            "since": TIME,
            "until": TIME,
            "usage": {
                **listed(record({**_ABOUT, **_FIGURES}, *_ABOUT)),
                "description": "By name; sessions: those that go on, then the last ended first. "
                "What a line is about has the name of `by`.",
            },
            "next": nullable(TEXT),
        }
    )
}


def _time(name: str, description: str) -> Parameter:
    return Parameter(name, {"type": "string", "minLength": 1, "maxLength": 40}, description)


@operation(
    "GET",
    "usage",
    "What was used: of one's own sessions, of everybody's for admins. A session that was there "
    "before or after this time counts for its part in it, under the tier it has now. Sessions and "
    "their histories are only kept for a time (`SchedulerApp.keep_history_days`).",
    answer="Usage",
    other=CSV,
    query=(
        Parameter("by", {"type": "string", "enum": list(BY)}, "What is summed.", "user"),
        _time("since", "ISO 8601 or seconds since 1970; default: 7 days before the end."),
        _time("until", "ISO 8601 or seconds since 1970; default: now."),
        Parameter(
            "user",
            {"type": "string", "minLength": 1, "maxLength": 255},
            "Only this user's sessions, for admins.",
        ),
        Parameter(
            "format",
            {"type": "string", "enum": ["json", "csv"]},
            "How it is answered; default: by the Accept header, else JSON.",
        ),
        LIMIT,
        CURSOR,
    ),
    headers=LINK,
)
async def get_usage(call: Endpoint) -> Reply:
    by, limit, user = call.query["by"], call.query["limit"], call.query["user"]
    given = call.query["since"], call.query["until"]
    scope = repr(("usage", call.caller.sees, by, given, user))
    kinds = (float, float, float, *((int, float, str) if by == "session" else (str,)))
    at = checks.read_cursor(call.query["cursor"], scope, kinds)
    window = accounts.Window(*at[:3]) if at else accounts.window(*given, call.controller.now())
    rows: list[dict[str, Any]] = []
    place: Any = None
    sees = call.caller.sees
    if sees is None or user in (None, sees):
        asked = Asked(window.since, window.until, window.settled, sees or user)
        reader = call.services.accounts
        if by == "session":
            after = Place(bool(at[3]), at[4], at[5]) if at else Place()
            rows, found = await reader.sessions(asked, limit, after)
            place = found and (int(found.over), *found[1:])
        else:
            rows, name = await reader.grouped(by, asked, limit, at[3] if at else None)
            place = None if name is None else (name,)
    times = (window.since, window.until, window.settled)
    following = checks.make_cursor((*times, *place), scope) if place else None
    headers = link(call, following)
    if _wants_csv(call):
        text = to_csv(by, rows, header=at is None)
        return Reply(text.encode(), headers={**headers, "Content-Type": f"{CSV}; charset=utf-8"})
    document = {
        "by": by,
        "since": iso(window.since),
        "until": iso(window.until),
        "usage": rows,
        "next": following,
    }
    return Reply(document, headers=headers)


def _wants_csv(call: Endpoint) -> bool:
    if call.query["format"] is not None:
        return bool(call.query["format"] == "csv")
    accepted = [
        part.split(";")[0].strip() for part in call.request.headers.get("Accept", "").split(",")
    ]
    return CSV in accepted and "application/json" not in accepted
