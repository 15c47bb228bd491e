"""Problem documents (RFC 9457) of the service, back to the typed errors they were."""

from __future__ import annotations

import json

from singularity_proxy import errors
from singularity_proxy.errors import SingularityError, Unavailable

_KNOWN = {"type", "title", "status", "detail", "reason", "error"}

_BY_STATUS = {
    400: "BadRequest",
    401: "Forbidden",
    403: "Forbidden",
    404: "NotFound",
    405: "BadRequest",
    409: "Conflict",
    413: "TooLarge",
    429: "TooMany",
    501: "Unsupported",
    503: "Unavailable",
    507: "NoSpace",
}
"""What an error counts as whose own class this process does not have."""


def to_error(status: int, reason: str, body: bytes) -> SingularityError:
    """The typed error behind an ``application/problem+json`` answer; an answer of something else
    (a proxy in between) becomes `Unavailable` with its status."""
    try:
        problem = json.loads(body)
        name, sentence = str(problem["error"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(
            f"the scheduler service is not reachable: something in between answered "
            f"{status} {reason}",
            status=status,
        )
    fields = {k: v for k, v in problem.items() if k not in _KNOWN}
    error = errors.from_wire({"type": name, "message": sentence, "fields": fields})
    if type(error) is SingularityError and name != "SingularityError":
        kind = getattr(errors, _BY_STATUS.get(status, ""), SingularityError)
        error = kind(sentence, **fields)
    return error
