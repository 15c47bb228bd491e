"""The one table of the API: every operation is declared here, beside the function that does it.

    @operation("GET", "sessions/{session}", "One session.", answer="SessionStatus")
    async def get_session(call: Call) -> Reply: ...

From the table come the routes, the checks of requests, the OpenAPI document, the reference page
and the labels of the metrics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from singularity_proxy.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NoSpace,
    NotFound,
    SingularityError,
    TooLarge,
    TooMany,
    Unavailable,
)

from singularity_scheduler.service.api.problems import Unauthenticated
from singularity_scheduler.service.schemas.vocabulary import SESSION_ID, Schema

if TYPE_CHECKING:
    from singularity_scheduler.service.api.endpoint import Endpoint

MAX_GRACE_S = 600.0
"""Longest time that processes get after SIGTERM."""

API = "api/v1/"
"""What the paths of the API have in front, below the service's prefix."""


class Who(str, Enum):
    """Who may call an operation."""

    ANYBODY = "anybody, without a token"
    CALLER = "everybody with the scope custom:singularity:use, for own sessions; admins for all"
    USER = "users (not services) with the scope custom:singularity:use"
    SESSION_USER = "the session's user alone, with the scope custom:singularity:use"
    OWNER = "the user of that name, and admins"
    ADMIN = "admins: tokens with the scope custom:singularity:admin"
    METRICS = "tokens with the scope custom:singularity:admin or read:metrics"


@dataclass(frozen=True)
class Parameter:
    """A value in the address. `schema` says what is accepted; `unit` and `default` are shown."""

    name: str
    schema: Schema
    description: str
    default: Any = None
    where: str = "query"


@dataclass(frozen=True)
class Reply:
    """An answer: a JSON document, or its text when that is there already."""

    document: dict[str, Any] | bytes
    status: int | None = None
    """None: the operation's own."""
    headers: dict[str, str] = field(default_factory=dict)


Act = Callable[["Endpoint"], Awaitable[Reply | None]]
"""What does an operation; None when it has written its answer itself (a stream)."""

Explain = Callable[["Endpoint", dict[str, Any]], object]
"""Raises the better sentence for a body that does not fit its schema."""


@dataclass(frozen=True)
class Operation:
    """One row of the table."""

    method: str
    path: str
    summary: str
    act: Act
    answer: str
    """Name of the schema of its answer, or a media type for what is no JSON."""
    who: Who
    query: tuple[Parameter, ...]
    body: str | None
    """Name of the schema of its body; None: it takes none."""
    explain: Explain | None
    status: int
    also: tuple[int, ...]
    """Other statuses with the same kind of answer."""
    errors: tuple[type[SingularityError], ...]
    stream: bool
    headers: dict[str, str]
    """Headers of its answer and what they say."""
    verb: str | None
    """What it asks of a session, for metrics and audit; None for what changes none."""
    other: str | None
    """A media type that it answers as, too, when it is asked for; None: none."""

    @property
    def name(self) -> str:
        return self.act.__name__

    @property
    def below_api(self) -> bool:
        return self.path not in ("", "metrics")

    @property
    def route(self) -> str:
        """The path below the service's prefix, with {names}."""
        return f"{API}{self.path}" if self.below_api else self.path

    @property
    def path_parameters(self) -> tuple[Parameter, ...]:
        return tuple(p for name, p in PATH_PARAMETERS.items() if f"{{{name}}}" in self.path)

    @property
    def keyed(self) -> bool:
        """Whether it takes an Idempotency-Key."""
        return self.method == "POST"


TABLE: list[Operation] = []
"""All operations in the order in which they are documented; see `handlers`."""

PATH_PARAMETERS = {
    "session": Parameter(
        "session",
        {"type": "string", "pattern": SESSION_ID},
        "Id of a session.",
        where="path",
    ),
    "group": Parameter(
        "group",
        {"type": "string", "pattern": SESSION_ID},
        "Id of a group.",
        where="path",
    ),
    "node": Parameter(
        "node",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^/\x00-\x1f\x7f]+$"},
        "Name of a node.",
        where="path",
    ),
    "device": Parameter(
        "device",
        {"type": "string", "pattern": r"^[a-z]{1,16}:[0-9]{1,4}$"},
        'A device of the node, "cuda:0".',
        where="path",
    ),
    "checkpoint": Parameter(
        "checkpoint",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^/\x00-\x1f\x7f]+$"},
        "Id or name of a checkpoint.",
        where="path",
    ),
    "virtual_cluster": Parameter(
        "virtual_cluster",
        {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"},
        "Name of a virtual cluster.",
        where="path",
    ),
    "parameter": Parameter(
        "parameter",
        {"type": "string", "minLength": 1, "maxLength": 64, "pattern": r"^[^/\x00-\x1f\x7f]+$"},
        "Name of a parameter of the policy.",
        where="path",
    ),
    "user": Parameter(
        "user",
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^/\x00-\x1f\x7f]+$"},
        "Name of a user of the Hub.",
        where="path",
    ),
}

_WRITES: tuple[type[SingularityError], ...] = (Conflict, NoSpace)


def operation(
    method: str,
    path: str,
    summary: str,
    *,
    answer: str,
    who: Who = Who.CALLER,
    query: tuple[Parameter, ...] = (),
    body: str | None = None,
    explain: Explain | None = None,
    status: int = 200,
    also: tuple[int, ...] = (),
    errors: tuple[type[SingularityError], ...] = (),
    stream: bool = False,
    headers: dict[str, str] | None = None,
    verb: str | None = None,
    other: str | None = None,
) -> Callable[[Act], Act]:
    """Declares the function below it as an operation."""
    found: set[type[SingularityError]] = {BadRequest, TooLarge, Unavailable, *errors}
    if who is not Who.ANYBODY:
        found |= {Unauthenticated, Forbidden}
    if who not in (Who.ANYBODY, Who.METRICS):
        found.add(TooMany)
    if "{" in path:
        found.add(NotFound)
    if method != "GET":
        found |= set(_WRITES)
    ordered = tuple(sorted(found, key=lambda e: (e.http_status, e.__name__)))

    def declare(act: Act) -> Act:
        TABLE.append(
            Operation(
                method,
                path,
                summary,
                act,
                answer,
                who,
                query,
                body,
                explain,
                status,
                also,
                ordered,
                stream,
                headers or {},
                verb,
                other,
            )
        )
        return act

    return declare
