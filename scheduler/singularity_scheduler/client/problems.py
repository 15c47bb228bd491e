"""Problem documents (RFC 9457) of the service, back to the typed errors they were."""

from __future__ import annotations

import json

from singularity_proxy import errors
from singularity_proxy.errors import SingularityError, Unavailable, Unreached

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


def to_error(status: int, reason: str, body: bytes, *, acts: bool = False) -> SingularityError:
    """The typed error behind an ``application/problem+json`` answer; an answer of something else
    (a proxy in between) becomes `Unavailable` with its status. `acts`: the request asked for a
    change; a proxy answers 5xx also when it loses the service's answer, so that is `Unreached`."""
    try:
        problem = json.loads(body)
        name, sentence = str(problem["error"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        if acts and status >= 500:
            return Unreached(
                f"the scheduler service's answer did not come (something in between answered "
                f"{status} {reason}), so whether it did what was asked is not known: look at how "
                "things stand, then try again if it did not",
                status=status,
            )
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
