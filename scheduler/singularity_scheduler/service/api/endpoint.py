"""What every request has in common: who asks, what came with it, refusals, the access log.

One tornado handler per path; the table says what each method does there.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from singularity_proxy.errors import (
    Forbidden,
    NotFound,
    SingularityError,
    TooLarge,
    Unavailable,
)
from tornado.web import stream_request_body

from singularity_scheduler import logs
from singularity_scheduler.core.values.model import SessionView
from singularity_scheduler.service.operations.table import Operation, Reply, Who
from singularity_scheduler.text.errors import in_words

from . import checks
from .auth import Caller
from .callers import Counted
from .problems import NotAllowed, outcome_of, problem

if TYPE_CHECKING:
    from .services import Services

log = logging.getLogger("singularity.service")
access_log = logging.getLogger("singularity.access")

MAX_BODY_BYTES = 4 << 20
"""Largest body that is looked at."""
MAX_DISCARD_BYTES = 32 << 20
"""A larger body is read to its end and refused; beyond this the connection is cut."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@stream_request_body
class Endpoint(Counted):
    """All operations of one path."""

    caller: Caller
    operation: Operation
    path_values: dict[str, str]
    query: dict[str, Any]
    body: dict[str, Any]
    _id = ""
    _cut = False

    def initialize(self, services: Services, operations: Mapping[str, Operation]) -> None:
        self.services = services
        self.controller = services.controller
        self._operations = operations
        self._raw = bytearray()
        self._size = 0
        self._refused: SingularityError | None = None
        self._session: str | None = None
        self._when_left: Callable[[], object] = lambda: None

    # -- before -----------------------------------------------------------------------------

    async def prepare(self) -> None:
        given = self.request.headers.get("X-Request-ID", "")
        self._id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex[:16]
        self.set_default_headers()
        logs.bind_now(request=self._id, session=self.path_kwargs.get("session"))
        length = self.request.headers.get("Content-Length", "0")
        if length.isascii() and length.isdecimal() and int(length) > MAX_DISCARD_BYTES:
            self._cut = True
            raise too_large()
        method = self.request.method or ""
        if method == "OPTIONS":
            return
        found = self._operations.get("GET" if method == "HEAD" else method)
        if found is None:
            raise NotAllowed(
                f"{method} is not possible at {self.request.path}: it takes {self.allowed}"
            )
        self.operation = found
        await self._authenticate(found.who)

    async def _authenticate(self, who: Who) -> None:
        gate, authorization = self.services.gate, self.request.headers.get("Authorization")
        if who is Who.METRICS:
            if self.services.authenticate_metrics:
                await gate.reads_metrics(authorization)
        elif who is not Who.ANYBODY:
            self.caller = await gate.caller(authorization)
            logs.bind_now(user=self.caller.name)
            length = self.request.headers.get("Content-Length", "")
            most = int(length) if length.isascii() and length.isdecimal() else MAX_BODY_BYTES
            reads = self.request.method in ("GET", "HEAD")
            self.count_in(
                self.services.callers,
                self.caller,
                stream=self.operation.stream,
                body_bytes=0 if reads else min(most, MAX_BODY_BYTES),
            )

    def data_received(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._finished:  # it was refused already
            return
        if self._size <= MAX_BODY_BYTES:
            self._raw += chunk
        else:
            self._raw.clear()

    def compute_etag(self) -> None:
        """None: answers are not to be kept, and some are large."""
        return

    def check_xsrf_cookie(self) -> None:
        """Not needed: cookies are not looked at, see `auth`."""

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        if self._id:
            self.set_header("X-Request-ID", self._id)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    @property
    def allowed(self) -> str:
        """The methods of this path, as the Allow header names them."""
        methods = [*self._operations, *(["HEAD"] if "GET" in self._operations else []), "OPTIONS"]
        return ", ".join(methods)

    # -- the operation ----------------------------------------------------------------------

    async def _serve(self, **path: str) -> None:
        self.begin()
        try:
            with in_words():
                await self._act(**path)
        finally:
            self.end()

    async def _act(self, **path: str) -> None:
        if self.request.method == "OPTIONS":
            self.set_status(204)
            self.set_header("Allow", self.allowed)
            await self.finish()
            return
        if self._size > MAX_BODY_BYTES:
            raise too_large()
        self.path_values = checks.read_path(self.operation, path)
        self.query = checks.read_query(self.operation, self.request.query_arguments)
        who = self.operation.who
        if who is Who.USER and not self.caller.is_user:
            raise Forbidden(
                f"{self.caller.name} is a service and a session belongs to a user: use the user's "
                "token"
            )
        if who is Who.ADMIN and not self.caller.admin:
            raise Forbidden(
                f"{self.caller.name} may not do this: it takes an administrator (the scope "
                "custom:singularity:admin)"
            )
        if self.operation.method == "GET":
            self.body = {}
        else:
            self.body = checks.read_json(bytes(self._raw))
            explain = self.operation.explain
            checks.check_body(
                self.operation, self.body, lambda body: explain(self, body) if explain else None
            )
        reply = await self.operation.act(self)
        if reply is not None:
            self._answer(reply)

    get = head = post = put = patch = delete = options = _serve

    def _answer(self, reply: Reply) -> None:
        self.set_status(reply.status or self.operation.status)
        self.set_header("Content-Type", "application/json")
        for name, value in reply.headers.items():
            self.set_header(name, value)
        document = reply.document
        self.finish(document if isinstance(document, bytes) else json.dumps(document))

    # -- for operations ---------------------------------------------------------------------

    @property
    def key(self) -> str | None:
        """The Idempotency-Key header."""
        return checks.read_key(self.request.headers)

    @property
    def fingerprint(self) -> str:
        """What the same key may only come with again."""
        return checks.fingerprint(self.operation.method, self.request.path, self.body)

    async def session(self) -> SessionView:
        """The session in the path, if the caller may see it; others' are not there at all."""
        session = self.path_values["session"]
        view = await self.controller.find(session)
        if not self.caller.admin and (view.user != self.caller.name or not self.caller.is_user):
            raise NotFound(f"there is no session {session}", session=session)
        return view

    async def still_allowed(self) -> bool:
        """For streams: whether the token still is what it was at the start. A Hub that is away
        refuses nobody."""
        try:
            now = await self.services.gate.caller(self.request.headers.get("Authorization"))
        except Unavailable:
            return True
        except Forbidden:
            return False
        return now == self.caller

    def when_left(self, tell: Callable[[], object]) -> None:
        """Call `tell` when the client goes away before the answer is complete."""
        self._when_left = tell

    def on_connection_close(self) -> None:
        self._when_left()
        super().on_connection_close()

    def about(self, session: str) -> None:
        """The session that the request made; for the log and the audit."""
        self._session = session
        logs.bind_now(session=session)

    # -- after ------------------------------------------------------------------------------

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        status = error.http_status if isinstance(error, SingularityError) else status_code
        self.set_status(status)
        self.set_header("Content-Type", "application/problem+json")
        if self._cut:
            self.set_header("Connection", "close")
        if status == 401:
            self.set_header("WWW-Authenticate", 'Bearer realm="JupyterHub"')
        if status == 405:
            self.set_header("Allow", self.allowed)
        self.finish(json.dumps(problem(error, status)))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if isinstance(value, SingularityError):
            self._refused = value
        else:
            super().log_exception(typ, value, tb)

    def on_finish(self) -> None:
        seconds = self.request.request_time()
        status = self.get_status()
        refused = self._refused
        operation = getattr(self, "operation", None)
        if operation is not None and not operation.stream:
            self.services.metrics.request(operation, status, seconds)
            if operation.verb:
                self._asked(operation.verb, outcome_of(status, refused))
        level = logging.ERROR if status >= 500 and refused is None else logging.INFO
        access_log.log(
            level,
            "%s %s %d%s",
            self.request.method,
            self.request.path,
            status,
            f": {refused.message}" if refused else "",
            extra={
                "facts": {
                    "method": self.request.method,
                    "path": self.request.path,
                    "status": status,
                    "ms": round(1000 * seconds, 1),
                }
            },
        )

    def _asked(self, verb: str, outcome: str) -> None:
        self.services.metrics.asked(verb, outcome)
        if hasattr(self, "caller"):
            self.services.audit.asked(
                verb,
                self.caller.name,
                self._session or self.path_kwargs.get("session"),
                self._id,
                outcome,
                self._refused,
            )


class Unknown(Endpoint):
    """Every address that the table does not have."""

    async def prepare(self) -> None:
        raise NotFound(f"there is nothing at {self.request.path}")


def too_large() -> TooLarge:
    return TooLarge(
        f"the request's body is larger than {MAX_BODY_BYTES >> 20} MiB, so nothing of it was "
        "looked at: send less, and put large things into files",
        largest_bytes=MAX_BODY_BYTES,
    )
