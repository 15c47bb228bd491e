"""The operations of the REST API: thin functions over the controller, each with its row of the
table (see `table`), and the web application made of them.

Every refusal is an ``application/problem+json`` document whose `detail` is the sentence for people
and whose `error` is the name of the typed error, so `ServiceClient` raises it again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from singularity_proxy.errors import BadRequest, Forbidden, NotFound, Unsupported
from tornado.web import Application, RequestHandler

from singularity_scheduler.core.steps import tiers
from singularity_scheduler.core.values.administration import TiersAsked
from singularity_scheduler.requests.spec import parse_launch, parse_spec, parse_tier
from singularity_scheduler.service.api import checks
from singularity_scheduler.service.api.endpoint import Endpoint, Unknown
from singularity_scheduler.service.api.paging import CURSOR, LIMIT, LINK, link
from singularity_scheduler.service.api.services import Services
from singularity_scheduler.service.api.translate import MAX_HISTORY
from singularity_scheduler.service.dashboard import PLACE
from singularity_scheduler.service.schemas import common as schemas
from singularity_scheduler.service.schemas.openapi import openapi_text
from singularity_scheduler.service.schemas.vocabulary import KIND, STATE, TEXT, TIER, listed, record

from . import administer, administer_nodes, clusters, devices, groups, streams, usage, verbs
from .table import MAX_GRACE_S, TABLE, Operation, Parameter, Reply, Who, operation

schemas.COMPONENTS |= {
    "Nothing": record({}),
    "Service": record({"name": TEXT, "api": TEXT}),
    "OpenTiers": record({"tiers": {**listed(TIER), "minItems": 1, "uniqueItems": True}}),
}


# -- about the service ----------------------------------------------------------------------


@operation(
    "GET",
    "",
    "Which service this is. Browsers, which accept text/html, are sent to the dashboard.",
    answer="Service",
    who=Who.ANYBODY,
    also=(302,),
    headers={"Location": "Address of the dashboard, with status 302."},
)
async def get_service(call: Endpoint) -> Reply:
    if "text/html" in call.request.headers.get("Accept", ""):
        where = call.request.path + PLACE
        return Reply({}, 302, {"Location": where, "Vary": "Accept"})
    return Reply({"name": "jupyter-singularity", "api": "api/v1"})


@operation("GET", "openapi.json", "This description.", answer="object", who=Who.ANYBODY)
async def get_openapi(call: Endpoint) -> Reply:
    return Reply(openapi_text())


@operation(
    "GET",
    "healthz",
    "200 when sessions can be started, else 503; says what is wrong.",
    answer="Health",
    who=Who.ANYBODY,
    also=(503,),
)
async def get_health(call: Endpoint) -> Reply:
    controller = call.controller
    trouble = controller.ledger_trouble or controller.node_trouble
    nodes = sum(n.connected for n in controller.state.nodes.values())
    healthy = not trouble and nodes > 0
    return Reply(
        {
            "status": "ok" if healthy else "degraded",
            "nodes": nodes,
            "detail": trouble or ("ready" if nodes else "no node is connected"),
        },
        200 if healthy else 503,
    )


@operation(
    "GET",
    "cluster",
    "Nodes, devices, tiers and how many sessions wait. A device names its session only to who may "
    "see it.",
    answer="Cluster",
)
async def get_cluster(call: Endpoint) -> Reply:
    return Reply(call.controller.cluster(call.caller.sees))


@operation(
    "PUT",
    "users/{user}",
    "The uid of a user's processes, made when there is none.",
    answer="Identity",
    who=Who.OWNER,
    body="Nothing",
)
async def put_user(call: Endpoint) -> Reply:
    user = call.path_values["user"]
    own = call.caller.is_user and call.caller.name == user
    if not call.caller.admin and not own:
        raise Forbidden("an identity can only be asked for by its user or an administrator")
    return Reply(await call.controller.identity(user))


@operation(
    "GET",
    "users/{user}/tiers",
    "The tiers that are open to a user's sessions.",
    answer="OpenTiers",
    who=Who.OWNER,
)
async def get_tiers(call: Endpoint) -> Reply:
    user = call.path_values["user"]
    own = call.caller.is_user and call.caller.name == user
    if not call.caller.admin and not own:
        raise Forbidden("only the user and administrators may ask which tiers are open to a user")
    return _open_tiers(call, user)


@operation(
    "PUT",
    "users/{user}/tiers",
    "Say which tiers are open to a user, for new sessions and changes of the tier; sessions that "
    "exist keep theirs. The Hub's spawner says so with each start of a server.",
    answer="OpenTiers",
    who=Who.ADMIN,
    body="OpenTiers",
)
async def put_tiers(call: Endpoint) -> Reply:
    user, open_ = call.path_values["user"], tuple(map(parse_tier, call.body["tiers"]))
    await call.controller.submit(TiersAsked(call.caller.name, user, open_))
    return _open_tiers(call, user)


def _open_tiers(call: Endpoint, user: str) -> Reply:
    found = tiers.open_to(call.controller.state, user)
    return Reply({"tiers": [tier.value for tier in found]})


# -- sessions -------------------------------------------------------------------------------


@operation(
    "GET",
    "sessions",
    "Sessions one may see, newest first, in pages; the `Link` header leads to the next one. Long "
    "parameters and variables of runs are null here; `GET sessions/{session}` has them.",
    answer="SessionPage",
    query=(
        Parameter(
            "state",
            {"type": "string", "enum": ["active", *STATE["enum"]]},
            "Only those with this word; active: those that have not ended.",
        ),
        Parameter("kind", KIND, "Only this kind."),
        Parameter(
            "user",
            {"type": "string", "minLength": 1, "maxLength": 255},
            "Only this user's, for admins.",
        ),
        LIMIT,
        CURSOR,
    ),
    headers=LINK,
)
async def list_sessions(call: Endpoint) -> Reply:
    state, kind, owner = (call.query[name] for name in ("state", "kind", "user"))
    limit = call.query["limit"]
    scope = repr(("sessions", call.caller.sees, state, kind, owner))
    at = checks.read_cursor(call.query["cursor"], scope, (float, str))
    views, after = await call.controller.archive.page(
        call.caller.sees,
        state=state,
        kind=kind,
        owner=owner,
        limit=limit,
        after=(at[0], at[1]) if at else None,
    )
    following = checks.make_cursor((float(after[0]), after[1]), scope) if after else None
    listed = call.services.texts.sessions(views)
    text = f'{{"sessions": {listed}, "next": {_quoted(following)}}}'
    return Reply(text.encode(), headers=link(call, following))


def _explain_new(call: Endpoint, body: dict[str, Any]) -> None:
    spec = parse_spec(body, largest=call.controller.largest)
    if spec.run is None:
        parse_launch(body.get("launch"))
    elif body.get("launch") is not None:
        raise BadRequest(
            "a session either runs a notebook (run) or starts a process (launch): send one of them"
        )


@operation(
    "POST",
    "sessions",
    "Start a session, or submit the run of a notebook. Answered as soon as it is durable: a run is "
    "then queued and starts when it is its turn. Its user is the user of the token.",
    answer="CreatedSession",
    who=Who.USER,
    body="NewSession",
    explain=_explain_new,
    status=201,
    headers={"Location": "Address of the session."},
    errors=(Unsupported, NotFound),
    verb="create",
)
async def create_session(call: Endpoint) -> Reply:
    body, controller = call.body, call.controller
    spec = parse_spec(body, largest=controller.largest)
    launch = {} if spec.run else parse_launch(body.get("launch"))
    if not spec.run:
        controller.require_node()
    view, answer = await controller.desk.create(
        call.caller.name,
        spec,
        launch,
        server=call.caller.server,
        key=call.key,
        fingerprint=call.fingerprint,
    )
    call.about(view.id)
    document = controller.status(view)
    if answer is not None:
        document["launch"] = answer
    where = f"{call.request.path.rstrip('/')}/{view.id}"
    return Reply(document, headers={"Location": where})


@operation("GET", "sessions/{session}", "One session.", answer="SessionStatus")
async def get_session(call: Endpoint) -> Reply:
    return Reply(call.controller.status(await call.session()))


@operation(
    "DELETE",
    "sessions/{session}",
    "End it; answers its last state. May be repeated; the session stays readable with its history.",
    answer="SessionStatus",
    query=(
        Parameter(
            "reason",
            {"type": "string", "maxLength": 500, "format": "printable"},
            "Why, for its history.",
            "",
        ),
        Parameter(
            "grace_s",
            {"type": "number", "minimum": 0, "maximum": int(MAX_GRACE_S), "x-unit": "seconds"},
            "Seconds its process gets after SIGTERM.",
            5.0,
        ),
    ),
    verb="end",
)
async def end_session(call: Endpoint) -> Reply:
    view = await call.session()
    reason = call.query["reason"]
    if not reason.isprintable():
        raise BadRequest("reason must be printable text")
    ended = await call.controller.desk.end(
        view, call.caller.name, reason, float(call.query["grace_s"])
    )
    return Reply(call.controller.status(ended))


@operation(
    "GET",
    "sessions/{session}/why",
    "Why it is in its state: a sentence and the facts behind it.",
    answer="Explanation",
)
async def explain_session(call: Endpoint) -> Reply:
    return Reply(call.controller.why(await call.session()))


@operation(
    "GET",
    "sessions/{session}/history",
    "Its newest changes, oldest first; `next` leads to older ones.",
    answer="HistoryPage",
    query=(
        Parameter(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": MAX_HISTORY},
            "Most entries of a page.",
            100,
        ),
        CURSOR,
    ),
    headers=LINK,
)
async def list_history(call: Endpoint) -> Reply:
    view = await call.session()
    scope = repr(("history", view.id))
    at = checks.read_cursor(call.query["cursor"], scope, (int,))
    lines, before = await call.controller.archive.history_page(
        view, call.query["limit"], at[0] if at else None
    )
    following = checks.make_cursor((before,), scope) if before is not None else None
    return Reply({"history": lines, "next": following}, headers=link(call, following))


def _quoted(text: str | None) -> str:
    return "null" if text is None else f'"{text}"'


# -- the application ------------------------------------------------------------------------


def by_path() -> dict[str, dict[str, Operation]]:
    """Route below the prefix -> method -> operation."""
    found: dict[str, dict[str, Operation]] = {}
    for row in [*TABLE]:
        found.setdefault(row.route, {})[row.method] = row
    return found


def make_application(
    services: Services, base: str, pages: Sequence[tuple[Any, ...]]
) -> Application:
    """The web application: the API below `base`, which ends in a slash, and these `pages`."""
    return Application(
        [
            *pages,
            *(
                (
                    base + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.replace(".", r"\.")),
                    Endpoint,
                    {"services": services, "operations": operations},
                )
                for route, operations in by_path().items()
            ),
        ],
        cookie_secret=secrets.token_bytes(32),
        default_handler_class=Unknown,
        default_handler_args={"services": services, "operations": {}},
        log_function=_logged_already,
    )


def _logged_already(handler: RequestHandler) -> None:
    """`Endpoint.on_finish` writes the access log."""


__all__ = [
    "administer",
    "administer_nodes",
    "by_path",
    "clusters",
    "devices",
    "groups",
    "make_application",
    "streams",
    "usage",
    "verbs",
]
