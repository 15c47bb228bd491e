"""The REST API, prefix ``<service prefix>api/v1``: thin handlers over the controller.

Every refusal is an ``application/problem+json`` document whose `detail` is the sentence for people
and whose `error` is the name of the typed error, so `ServiceClient` raises it again.
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any, ClassVar

from singularity_proxy.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    SingularityError,
    to_wire,
)
from tornado.web import Application, HTTPError, RequestHandler

from singularity_scheduler.core.model import SessionView
from singularity_scheduler.core.spec import parse_launch, parse_spec

from . import translate
from .auth import Caller, Gate
from .controller import Controller
from .documents import session_document

log = logging.getLogger("singularity.service")

SESSION = r"sessions/(?P<session>[^/]+)"
MAX_KEY = 200
MAX_GRACE_S = 600.0


class ApiHandler(RequestHandler):
    """Base: checks the token, reads JSON, turns errors into problem documents."""

    public: ClassVar[bool] = False
    """True: no token needed."""
    caller: Caller

    def initialize(self, controller: Controller, gate: Gate) -> None:
        self.controller = controller
        self.gate = gate

    async def prepare(self) -> None:
        if not self.public:
            self.caller = await self.gate.caller(self.request.headers.get("Authorization"))

    def check_xsrf_cookie(self) -> None:
        """Not needed: cookies are not looked at, see `auth`."""

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    # -- reading ----------------------------------------------------------------------------

    def body(self) -> dict[str, Any]:
        """The JSON object of the request; an empty body is an empty object."""
        if not self.request.body:
            return {}
        try:
            value = json.loads(self.request.body)
        except ValueError:
            raise BadRequest("the request's body is not JSON") from None
        if not isinstance(value, dict):
            raise BadRequest("the request's body must be a JSON object")
        return value

    def key(self) -> str | None:
        """The Idempotency-Key header."""
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise BadRequest(f"an Idempotency-Key has 1 to {MAX_KEY} characters")
        return key

    async def session(self, session: str) -> SessionView:
        """The session, if the caller may see it; others' are not there at all."""
        view = await self.controller.find(session)
        if not self.caller.admin and (view.user != self.caller.name or not self.caller.is_user):
            raise NotFound(f"there is no session {session}", session=session)
        return view

    # -- answering --------------------------------------------------------------------------

    def answer(self, document: dict[str, Any], status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(document))

    def answer_session(self, view: SessionView) -> None:
        self.answer(self.controller.status(view))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        self.set_header("Content-Type", "application/problem+json")
        self.set_status(error.http_status if isinstance(error, SingularityError) else status_code)
        self.finish(json.dumps(problem(error, self.get_status())))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if isinstance(value, SingularityError):
            log.info("%s %s refused: %s", self.request.method, self.request.path, value.message)
        else:
            super().log_exception(typ, value, tb)


def problem(error: BaseException | None, status: int) -> dict[str, Any]:
    """The problem document (RFC 9457) of an error. What we did not foresee is named by its kind
    only: its text may hold what the caller must not see."""
    if isinstance(error, SingularityError):
        wire, reason = to_wire(error), error.reason
    else:
        phrase = HTTPStatus(status).phrase
        kind: type[SingularityError] = {
            400: BadRequest,
            403: Forbidden,
            404: NotFound,
            405: BadRequest,
        }.get(status, SingularityError)
        sentence = f"the request failed: {phrase.lower()}"
        if isinstance(error, HTTPError) and error.reason:
            sentence = error.reason
        wire, reason = to_wire(kind(sentence)), kind.reason
    return {
        **{k: v for k, v in wire["fields"].items() if _is_json(v)},
        "type": f"urn:jupyter-singularity:{reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": wire["message"],
        "reason": reason,
        "error": wire["type"],
    }


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)


class HealthHandler(ApiHandler):
    """GET healthz: 200 when sessions can be started, else 503; in words, without a token."""

    public = True

    def get(self) -> None:
        controller = self.controller
        trouble = controller.ledger_trouble or controller.node_trouble
        nodes = sum(n.connected for n in controller.state.nodes.values())
        healthy = not trouble and nodes > 0
        self.answer(
            {
                "status": "ok" if healthy else "degraded",
                "nodes": nodes,
                "detail": trouble or ("ready" if nodes else "no node is connected"),
            },
            200 if healthy else 503,
        )


class ClusterHandler(ApiHandler):
    def get(self) -> None:
        self.answer(self.controller.cluster(self.caller.sees))


class SessionsHandler(ApiHandler):
    """GET sessions[?state=WORD|active], POST sessions."""

    async def get(self) -> None:
        state = self.get_query_argument("state", "")
        views = await self.controller.sessions(self.caller.sees)
        if state == "active":
            views = [v for v in views if not v.final]
        elif state:
            views = [v for v in views if v.word == state]
        documents = [session_document(self.controller.state, view) for view in views]
        self.answer({"sessions": documents})

    async def post(self) -> None:
        if not self.caller.is_user:
            raise Forbidden(
                f"{self.caller.name} is a service and a session belongs to a user: use the user's "
                "token"
            )
        body = self.body()
        spec = parse_spec(body, largest=self.controller.largest)
        launch = parse_launch(body.get("launch"))
        self.controller.require_node()
        view, answer = await self.controller.create(
            self.caller.name, spec, launch, server=self.caller.server, key=self.key()
        )
        self.answer({**self.controller.status(view), "launch": answer}, 201)


class SessionHandler(ApiHandler):
    """GET and DELETE sessions/ID."""

    async def get(self, session: str) -> None:
        self.answer_session(await self.session(session))

    async def delete(self, session: str) -> None:
        view = await self.session(session)
        reason = self.get_query_argument("reason", "")[:500]
        self.answer_session(
            await self.controller.end(view, self.caller.name, reason, self._grace())
        )

    def _grace(self) -> float:
        text = self.get_query_argument("grace_s", "5")
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= MAX_GRACE_S:
            raise BadRequest(f"grace_s must be a number of seconds from 0 to {MAX_GRACE_S:g}")
        return seconds


class SignalHandler(ApiHandler):
    async def post(self, session: str) -> None:
        view = await self.session(session)
        signum = self.body().get("signum")
        if isinstance(signum, bool) or not isinstance(signum, int) or not 1 <= signum <= 64:
            raise BadRequest("signum must be the number of a signal, 1 to 64")
        await self.controller.signal(view, signum, self.caller.name)
        self.answer_session(await self.session(session))


class VerbHandler(ApiHandler):
    """POST sessions/ID/park|resume|migrate|checkpoint."""

    async def post(self, session: str, verb: str) -> None:
        view = await self.session(session)
        by = self.caller.name
        self.answer_session(await self.controller.act(view, verb, self.body(), by, self.key()))


class WhyHandler(ApiHandler):
    async def get(self, session: str) -> None:
        self.answer(self.controller.why(await self.session(session)))


class HistoryHandler(ApiHandler):
    async def get(self, session: str) -> None:
        view = await self.session(session)
        limit = translate.limit(self.get_query_argument("limit", None), 100)
        self.answer({"history": await self.controller.history(view, limit)})


class UserHandler(ApiHandler):
    """PUT users/NAME: the identity of a user's processes, made when it is not there yet."""

    async def put(self, name: str) -> None:
        own = self.caller.is_user and self.caller.name == name
        if not self.caller.admin and not own:
            raise Forbidden("an identity can only be asked for by its user or an administrator")
        self.answer(await self.controller.identity(name))


class RootHandler(ApiHandler):
    """The service's own address: the Hub looks there to see that the service lives."""

    public = True

    def get(self) -> None:
        self.answer({"name": "jupyter-singularity", "api": "api/v1"})


class UnknownHandler(ApiHandler):
    public = True

    async def prepare(self) -> None:
        raise NotFound(f"there is nothing at {self.request.path}")


def make_application(controller: Controller, gate: Gate, prefix: str) -> Application:
    """The web application; `prefix` is JUPYTERHUB_SERVICE_PREFIX, ending in a slash."""
    from .stream import EventsHandler

    base = f"{prefix.rstrip('/')}/api/v1/"
    shared = {"controller": controller, "gate": gate}
    routes: list[tuple[str, type[ApiHandler]]] = [
        ("healthz", HealthHandler),
        ("cluster", ClusterHandler),
        ("events", EventsHandler),
        ("sessions", SessionsHandler),
        (SESSION, SessionHandler),
        (SESSION + "/signal", SignalHandler),
        (SESSION + "/(?P<verb>park|resume|migrate|checkpoint)", VerbHandler),
        (SESSION + "/why", WhyHandler),
        (SESSION + "/history", HistoryHandler),
        ("users/(?P<name>[^/]+)", UserHandler),
    ]
    return Application(
        [
            (prefix, RootHandler, shared),
            *((base + path, handler, shared) for path, handler in routes),
        ],
        default_handler_class=UnknownHandler,
        default_handler_args=shared,
        log_function=_log_request,
    )


def _log_request(handler: RequestHandler) -> None:
    request = handler.request
    level = logging.ERROR if handler.get_status() >= 500 else logging.DEBUG
    log.log(
        level,
        "%d %s %s %.0f ms",
        handler.get_status(),
        request.method,
        request.path,
        1000 * request.request_time(),
    )
