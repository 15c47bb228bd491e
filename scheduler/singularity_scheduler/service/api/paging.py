"""What the operations that answer in pages have in common."""

from __future__ import annotations

from singularity_scheduler.service.operations.table import Parameter

from .endpoint import Endpoint

MAX_PAGE = 1000

LIMIT = Parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, "Most entries of a page.", 100
)
CURSOR = Parameter(
    "cursor",
    {"type": "string", "minLength": 1, "maxLength": 500},
    "Where to go on: `next` of the page before.",
)
LINK = {"Link": 'Address of the next page, `rel="next"`; not there on the last one.'}


def link(call: Endpoint, cursor: str | None) -> dict[str, str]:
    """The Link header to the next page: this address with another cursor."""
    if cursor is None:
        return {}
    kept = [p for p in call.request.query.split("&") if p and not p.startswith("cursor=")]
    query = "&".join([*kept, f"cursor={cursor}"])
    return {"Link": f'<{call.request.path}?{query}>; rel="next"'}
