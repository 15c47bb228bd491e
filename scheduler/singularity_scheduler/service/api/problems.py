"""Problem documents (RFC 9457): what the API answers when it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from singularity_proxy import errors
from singularity_proxy.errors import BadRequest, Forbidden, NotFound, SingularityError
from tornado.web import HTTPError

from singularity_scheduler.core.values.states import InvalidTransition

Json = dict[str, Any]


class Unauthenticated(Forbidden):
    """The request carried no token, or one that JupyterHub does not know. `ServiceClient` raises
    it as `Forbidden`."""

    reason = "unauthenticated"
    http_status = 401


class NotAllowed(BadRequest):
    """The address is right and the method is not; the answer's `Allow` header names those it has.
    `ServiceClient` raises it as `BadRequest`."""

    reason = "method_not_allowed"
    http_status = 405


def _all(cls: type[SingularityError]) -> Iterator[type[SingularityError]]:
    yield cls
    for sub in cls.__subclasses__():
        if sub.__module__ in (errors.__name__, __name__, InvalidTransition.__module__):
            yield from _all(sub)


ERRORS: tuple[type[SingularityError], ...] = tuple(_all(SingularityError))
"""Every typed error that the API may answer with."""

_OF_STATUS: dict[int, type[SingularityError]] = {
    400: BadRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: NotAllowed,
}


OUTCOMES = ("done", "refused", "failed")
"""What becomes of a request about a session, for metrics and audit."""


def outcome_of(status: int, refused: SingularityError | None) -> str:
    """Which of the `OUTCOMES`: "failed" is what nobody foresaw."""
    if status < 400:
        return "done"
    return "refused" if refused is not None or status < 500 else "failed"


def problem(error: BaseException | None, status: int) -> Json:
    """The document of an error. What we did not foresee is named by its kind only: its text may
    hold what the caller must not see."""
    if not isinstance(error, SingularityError):
        kind = _OF_STATUS.get(status, SingularityError)
        sentence = f"the request failed: {HTTPStatus(status).phrase.lower()}"
        if isinstance(error, HTTPError) and error.reason:
            sentence = error.reason
        error = kind(sentence)
    known = next(cls for cls in type(error).__mro__ if cls in ERRORS)
    return {
        **{k: v for k, v in error.fields.items() if _is_json(v)},
        "type": f"urn:jupyter-singularity:{error.reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "reason": error.reason,
        "error": known.__name__,
    }


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)
